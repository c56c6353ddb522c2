"""`await` in a cell: coroutines that end, raise, wait for other ranks, or never end."""

import os
import signal
import threading

import pytest

import distlab
from tests.cluster.conftest import pid_on_rank, px, sum_of_ranks
from tests.processes import until
from tests.refused import raised

CLUSTER = {"n": 2, "timeout": 60}
pytestmark = pytest.mark.usefixtures("quick_watch")

KEPT = "Variables are kept and the process group is rebuilt: change the cell and run it again."
DEFINED = """
import asyncio
import contextlib

async def add_up():
    total = torch.ones(1)
    dist.all_reduce(total)
    await asyncio.sleep(0.01)
    dist.all_reduce(total)
    return total.item()

async def fail():
    await asyncio.sleep(0)
    raise ValueError("no data")

@contextlib.asynccontextmanager
async def opened():
    await asyncio.sleep(0)
    yield "opened"

async def counted():
    for number in range(3):
        await asyncio.sleep(0)
        yield number
"""


@pytest.fixture
def defined(usable):
    """The cluster, with coroutines on its ranks."""
    px(usable, DEFINED)
    return usable


RIGHT = {  # a cell, and what both ranks print
    "await asyncio.sleep(0.01)\nprint('slept')": "slept",
    "print(await add_up())": "4.0",
    "print(await asyncio.gather(add_up(), asyncio.sleep(0.02)))": "[4.0, None]",
    "print(await asyncio.wait_for(add_up(), 60))": "4.0",
    "async with opened() as what:\n    print(what)": "opened",
    "async for number in counted():\n    print(number)": "0\n1\n2",
    "print([number async for number in counted()])": "[0, 1, 2]",
    "await asyncio.to_thread(dist.barrier)\nprint('met')": "met",
    "adding = asyncio.create_task(add_up())\nprint(await adding)": "4.0",
    "try:\n    await fail()\nexcept ValueError:\n    print('caught')": "caught",
}


@pytest.mark.parametrize("code", RIGHT, ids=range(len(RIGHT)))
def test_a_cell_awaits(defined, code, capsys):
    """What it prints, on both ranks alike."""
    px(defined, code)
    shown = capsys.readouterr().out
    assert [line[11:] for line in shown.splitlines()] == RIGHT[code].splitlines()


FAILING = {
    "await fail()": "  ranks 0-1   line 2   await fail()\n              line 15 in fail",
    "await asyncio.gather(fail(), asyncio.sleep(0.01))": (
        "  ranks 0-1   line 2   await asyncio.gather(fail(), asyncio.sleep(0.01))\n"
        "              line 15 in fail"
    ),
}


@pytest.mark.parametrize("code", FAILING)
def test_what_a_coroutine_raises(defined, code):
    """Its lines, from the cell's on."""
    error = raised(distlab.RankError, px, defined, code)
    assert str(error).startswith(f"ranks 0-1 raised ValueError: no data\n{FAILING[code]}")


EXITS = (
    "import sys\n"
    "async def leave():\n"
    "    await asyncio.sleep(0)\n"
    "    if rank == 1:\n"
    "        sys.exit(3)\n"
)


@pytest.mark.parametrize(
    "awaits",
    [
        "await leave()",
        "await asyncio.gather(leave(), asyncio.sleep(0.01))",
        "leaving = asyncio.create_task(leave())\nawait leaving",
    ],
)
def test_sys_exit_in_a_coroutine_is_reported_as_in_a_cell(defined, awaits):
    """Also in a task, where asyncio ends the event loop: the rank and its variables live."""
    pids = defined.run(pid_on_rank)
    error = raised(distlab.RankError, px, defined, EXITS + awaits)
    assert str(error).startswith("rank 1 raised SystemExit: 3\n")
    assert "line 6 in leave" in str(error)
    px(defined, "await asyncio.sleep(0)")
    assert defined.run(pid_on_rank) == pids


def test_sys_exit_in_a_task_that_nobody_awaits(defined):
    """The cell goes on, and so does the rank."""
    pids = defined.run(pid_on_rank)
    px(
        defined,
        EXITS
        + (
            "leaving = asyncio.create_task(leave())\n"
            "await asyncio.sleep(0.05)\n"
            "assert leaving.done()"
        ),
    )
    px(defined, "kind = type(leaving.exception()).__name__")
    assert defined.pull("kind") == ["NoneType", "SystemExit"]
    assert defined.run(pid_on_rank) == pids


def test_asyncio_run_is_told_to_be_await(defined):
    """The advice names what works."""
    error = raised(distlab.RankError, px, defined, "adding = add_up()\nasyncio.run(adding)")
    assert str(error).endswith(
        "Cells already run in an event loop, so write await main() instead of asyncio.run(main())."
    )
    px(defined, "await adding")


def test_one_coroutine_raises_and_the_other_waits_for_its_rank(defined):
    """The one that raised is the culprit."""
    code = (
        "async def main():\n"
        "    if rank == 1:\n"
        "        await fail()\n"
        "    dist.barrier()\n"
        "await main()"
    )
    error = raised(distlab.RankError, px, defined, code)
    assert str(error).startswith("rank 1 raised ValueError: no data\n")
    assert (
        "\nrank 0 waited in communication and could not go on:\n  rank 0   line 6   await main()\n"
        in str(error)
    )


# --- coroutines that never end ---

NEVER = {
    "await asyncio.sleep(1000)": "awaiting  line 2  await asyncio.sleep(1000)",
    "await asyncio.Event().wait()": "awaiting  line 2  await asyncio.Event().wait()",
    "await asyncio.gather(asyncio.sleep(1000), add_up())": (
        "awaiting  line 2  await asyncio.gather("
    ),
    (
        "async def main():\n    await asyncio.sleep(1000)\nawait main()"
    ): "awaiting  line 3 in main  await asyncio",
    (
        "async def main():\n    while True: pass\nawait main()"
    ): "computing  line 3 in main  while True: pass",
    (
        "async def main():\n    while True: pass\nawait asyncio.gather(main(), add_up())"
    ): "computing  line 3 in main  ",
    # in one line: it may be seen where it looks at its condition, or in its wait
    (
        "async def main():\n    while True: await asyncio.sleep(0)\nawait main()"
    ): "line 3 in main  while True: await asyncio",
    (
        "async def main():\n"
        "    for _ in range(3):\n"
        "        with contextlib.suppress(asyncio.CancelledError):\n"
        "            await asyncio.sleep(1000)\n"
        "await main()"
    ): "awaiting  line 5 in main  await asyncio.sleep(1000)",
}


@pytest.mark.parametrize("code", NEVER, ids=range(len(NEVER)))
def test_a_coroutine_that_never_ends_is_freed(defined, code):
    """Its ranks are usable again, with their variables; the report says at which line it waited."""
    defined.push({"kept": 5})
    error = raised(distlab.RankTimeout, px, defined, code, timeout=0.5)
    first, *table, last = str(error).splitlines()
    assert first == "ranks 0-1 did not come back within 0.5 s."
    # one row, but for ranks that are seen between
    assert [NEVER[code] in row for row in table] == [True] * len(table)
    assert last.startswith("Freed after ")
    assert last.endswith(KEPT)
    assert "raised" not in str(error)
    assert defined.pull("kept") == [5, 5]
    px(defined, "await asyncio.sleep(0)")


@pytest.mark.usefixtures("python_handles_sigint")
def test_a_coroutine_is_interrupted(defined, tmp_path):
    """By a person; variables stay."""

    def interrupt():
        until(lambda: [(tmp_path / f"{rank}").exists() for rank in range(2)] == [True, True])
        os.kill(os.getpid(), signal.SIGINT)

    defined.push({"folder": tmp_path, "kept": 5})
    person = threading.Thread(target=interrupt)
    person.start()
    code = "(folder / f'{rank}').touch()\nawait asyncio.sleep(1000)"
    error = raised(distlab.errors.Interrupted, px, defined, code)
    person.join()
    assert str(error).startswith(
        "Ranks 0-1 had not finished.\n  ranks 0-1  awaiting  line 3  await asyncio.sleep(1000)\n"
    )
    assert defined.pull("kept") == [5, 5]


# --- who waits for whom ---

STUCK = {
    "in a coroutine": "async def main():\n    if rank == 0:\n        dist.barrier()\nawait main()",
    "in a task": (
        "async def main():\n"
        "    await asyncio.sleep(0.01)\n"
        "    if rank == 0:\n"
        "        dist.barrier()\n"
        "await asyncio.gather(main(), asyncio.sleep(0.05))\n"
        "None"
    ),
}


@pytest.mark.parametrize("name", STUCK)
def test_a_wait_in_a_coroutine_is_a_deadlock_as_elsewhere(defined, name):
    """Its event loop cannot continue anything else."""
    error = raised(distlab.DeadlockError, px, defined, STUCK[name])
    assert str(error).startswith(
        "Rank 0 waits in barrier for rank 1, which has finished without calling it.\n"
    )
    assert " in main  dist.barrier()\n  rank 1  finished\n" in str(error)


RIGHT_WAITS = {
    "one rank sleeps": """
if rank == 0:
    dist.barrier()
else:
    await asyncio.sleep(1)
    dist.barrier()
""",
    "a task that is left sends later": """
async def later():
    await asyncio.sleep(1)
    dist.send(torch.ones(1), 0)
if rank == 0:
    dist.recv(torch.ones(1), 1)
else:
    sending = asyncio.create_task(later())
""",
    "a timer of the loop sends later": """
if rank == 0:
    dist.recv(torch.ones(1), 1)
else:
    asyncio.get_running_loop().call_later(1, lambda: dist.send(torch.ones(1), 0))
""",
    "one task waits for another one": """
async def sender():
    await asyncio.sleep(1)
    dist.send(torch.ones(1), 0)
if rank == 0:
    await asyncio.to_thread(dist.recv, torch.ones(1), 1)
else:
    await asyncio.gather(sender(), asyncio.sleep(0))
""",
    "waiting by hand": """
import distlab
arrived = asyncio.Event()
async def arrive():
    await asyncio.sleep(1)
    arrived.set()
async def wait():
    with distlab.waiting("for a file", [1 - rank]) as wait:
        while not arrived.is_set():
            wait.check()
            await asyncio.sleep(0.01)
await asyncio.gather(arrive(), wait())
""",
}


@pytest.mark.parametrize("name", RIGHT_WAITS)
def test_a_rank_whose_event_loop_sleeps_may_still_act(defined, name):
    """No false alarm: it has not finished, or what it has left will act."""
    px(defined, RIGHT_WAITS[name], timeout=60)


# --- what a cell leaves in the event loop ---


def test_tasks_that_a_cell_leaves_break_no_other_cell(defined, capsys):
    """One goes on and one raises; the next cells communicate, wait for it, and get stuck."""
    px(
        defined,
        "beats = 0\nasync def beat():\n    global beats\n    while True:\n        beats += 1\n"
        "        await asyncio.sleep(0.01)\n"
        "beating = asyncio.create_task(beat())\nfailing = asyncio.create_task(fail())",
    )
    px(
        defined,
        (
            "before = beats\n"
            "assert await add_up() == 4\n"
            "while beats < before + 3:\n"
            "    await asyncio.sleep(0.01)"
        ),
    )
    assert defined.run(sum_of_ranks) == [1.0, 1.0]
    error = raised(distlab.DeadlockError, px, defined, "dist.recv(torch.ones(1), src=1 - rank)")
    assert str(error).startswith("2 of 2 ranks wait for each other; nobody will send.\n")
    code = (
        "beating.cancel()\n"
        "try:\n"
        "    await beating\n"
        "except asyncio.CancelledError:\n"
        "    print(failing.exception())"
    )
    px(defined, code)
    assert capsys.readouterr().out == "ranks 0-1: no data\n"
