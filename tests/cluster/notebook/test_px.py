"""%%px in a real kernel: outputs, options, errors, and what a person sees meanwhile."""

import os
import re
import signal
import threading
import time

import pytest

from tests.cluster.conftest import plain

RANKS_OF_NOTEBOOK = 4


@pytest.fixture(autouse=True)
def usable(notebook):
    """After every test the ranks of the notebook still work."""
    yield
    assert notebook.text("%px dist.barrier()") == ""


@pytest.fixture
def no_proof(notebook):
    """No deadlock is reported, however long a rank waits."""
    notebook.run(
        "from distlab.notebook import seconds; before, seconds.UNMOVED = seconds.UNMOVED, 60"
    )
    yield
    notebook.run("seconds.UNMOVED = before")


SORTED = (
    "%%px\n"
    "import time\n"
    "time.sleep(0.1 * (3 - rank))\n"
    "print('hello', rank // 2)\n"
    "rank if rank else None"
)
HALVES = "%%px\ndef half(x):\n    return 1 / x\n\nprint('before')\nif rank == 1:\n    half(0)"
MISMATCH = (
    "%%px --check\ntry:\n    dist.all_reduce(torch.ones(1 + rank))\n"
    "except Exception as error:\n    print(type(error).__name__)"
)
SHOWN = {
    SORTED: "ranks 0-1: hello 0\nranks 2-3: hello 1\nrank 1 ->  1\nrank 2 ->  2\nrank 3 ->  3",
    "%%px --targets 0,2\nprint('here')": "ranks 0 and 2: here",
    "%%px --targets ::3\nprint('here')": "ranks 0 and 3: here",
    "%%px --targets x\nran = True": (
        "ArgumentError: --targets must be a rank, a list of ranks or a slice, got 'x'. "
        "For example: --targets 0,2 or --targets ::2."
    ),
    "%%px --timeout 0\nran = True": (
        "ArgumentError: timeout must be above 0, got 0.0. For example: timeout=5."
    ),
    "%px 'ran' in globals()": "ranks 0-3 -> False",
    "%%px\ndisplay(1); display(1)": "ranks 0-3: 1\nranks 0-3: 1",
    "%%px\nx = 1\ny = = 2": (
        "RankError: ranks 0-3 raised SyntaxError: invalid syntax\n  ranks 0-3   line 3   y = = 2"
    ),
    "%%px\n\n\n  x = 1\n  y = 1 / 0": (
        "RankError: ranks 0-3 raised ZeroDivisionError: division by zero\n"
        "  ranks 0-3   line 5   y = 1 / 0"
    ),
    "%px 1 / 0": (
        "RankError: ranks 0-3 raised ZeroDivisionError: division by zero\n"
        "  ranks 0-3   line 1   1 / 0"
    ),
    "%%px\n\nimport warnings\nwarnings.warn('careful')": (
        "ranks 0-3 stderr: line 4: UserWarning: careful\n"
        "                    warnings.warn('careful')"
    ),
    HALVES: (
        "ranks 0-3: before\n"
        "RankError: rank 1 raised ZeroDivisionError: division by zero\n"
        "  rank 1   line 7   half(0)\n"
        "           line 3 in half   return 1 / x\n"
        "Ranks 0, 2 and 3 finished.\n"
        "The process group is rebuilt and variables are kept: change the cell and run it again."
    ),
    MISMATCH: "ranks 0-3: MismatchError",
}


@pytest.mark.parametrize(("source", "shown"), SHOWN.items(), ids=range(len(SHOWN)))
def test_what_a_cell_shows(notebook, source, shown):
    """Sorted by rank, what is common once; errors with lines as the notebook shows them."""
    assert notebook.text(source) == shown
    assert notebook.status == ("error" if "Error: " in shown else "ok")


def test_the_html_form_names_the_ranks_and_escapes(notebook):
    """The label and the escaped text, without a terminal's colours; a display stays."""
    source = (
        "%%px --targets 2\nfrom IPython.display import HTML, display\n"
        "print('\\x1b[31m<b>&\\x1b[0m'); display(HTML(f'<i>{rank}</i>'))"
    )
    written, shown = notebook.run(source)
    assert written["data"]["text/plain"] == "rank 2: \x1b[31m<b>&\x1b[0m"
    assert ">&lt;b&gt;&amp;<" in written["data"]["text/html"]
    assert "rank 2:" in written["data"]["text/html"]
    assert "<i>2</i>" in shown["data"]["text/html"]
    assert shown["data"]["text/plain"].startswith("rank 2: ")


def test_a_person_sees_an_error_that_fits_the_pane(notebook):
    """As HTML, because JupyterLab breaks text within words; a program gets the text."""
    message, error = notebook.run("%%px\n1 / 0", someone_watches=True)
    assert message["data"]["text/plain"].startswith(
        "RankError: ranks 0-3 raised ZeroDivisionError: division by zero"
    )
    assert (
        "<b>RankError</b>: ranks 0-3 raised ZeroDivisionError: division by zero</div>"
        in message["data"]["text/html"]
    )
    assert error["traceback"] == ["RankError (see above)"]
    assert error["evalue"].startswith("ranks 0-3 raised ")
    (alone,) = notebook.run("%%px\n1 / 0")
    assert (
        alone["traceback"][0] == "RankError: ranks 0-3 raised ZeroDivisionError: division by zero"
    )


def freed(text):
    """A report with the time that it took left out."""
    return re.sub(r"Freed after \d+\.\d s", "Freed after <time>", text)


def test_timeout_frees_the_ranks(notebook, no_proof):
    """--timeout ends a cell that does not come back, and variables stay."""
    notebook.run("%px kept = rank")
    began = time.monotonic()
    text = notebook.text("%%px --timeout 1\nif rank == 0:\n    dist.recv(torch.zeros(1), src=1)")
    assert time.monotonic() - began < 10
    assert freed(text) == (
        "    1  %%px --timeout 1\n"
        "    2  if rank == 0:\n"
        ">   3      dist.recv(torch.zeros(1), src=1)   "
        "rank 0: recv(src=1) float32[1]\n"
        "RankTimeout: rank 0 did not come back within 1 s.\n"
        "  rank 0     recv(src=1)  float32[1]  line 3  "
        "dist.recv(torch.zeros(1), src=1)\n"
        "  ranks 1-3  finished\n"
        "Freed after <time>. Variables are kept and the process group is rebuilt: "
        "change the cell and run it again."
    )
    assert notebook.text("%px kept") == "rank 0 -> 0\nrank 1 -> 1\nrank 2 -> 2\nrank 3 -> 3"


def interrupt(notebook, after=1):
    """As the interrupt button does, after some seconds."""
    threading.Timer(after, os.kill, (notebook.pid, signal.SIGINT)).start()


@pytest.mark.parametrize(
    ("line", "doing"),
    [
        ("dist.recv(torch.zeros(1), src=0)", "recv(src=0)  float32[1]"),
        ("while True: pass", "computing"),
    ],
)
def test_the_interrupt_button(notebook, no_proof, line, doing):
    """Interrupting frees ranks that block or loop, fails the cell, and says where they were."""
    interrupt(notebook)
    began = time.monotonic()
    text = notebook.text(f"%%px --targets 1:\n{line}")
    assert time.monotonic() - began < 10
    assert freed(text).partition("Interrupted: ")[2] == (
        "Ranks 1-3 had not finished.\n"
        f"  ranks 1-3  {doing}  line 2  {line}\n"
        "Freed after <time>. Variables are kept and the process group is rebuilt: "
        "change the cell and run it again."
    )


def test_a_long_cell_shows_a_sign_of_life_to_a_person_only(notebook):
    """Newest lines are shown while the cell runs, and replaced by the sorted form."""
    source = "%%px\nimport time\nfor i in range(12): print(i); time.sleep(0.25)"
    (message,) = notebook.run(source)
    final = plain({"type": "display_data", **message})
    assert final.startswith("ranks 0-3: 0\n")
    messages = notebook.run(source, someone_watches=True)
    kinds = [message["type"] for message in messages]
    assert kinds == ["display_data"] + ["update_display_data"] * (len(kinds) - 1)
    assert len(kinds) > 2
    assert re.match(r"\d s: ranks 0-3: (computing|sleeping) \(line 3\)\n", plain(messages[0]))
    assert plain(messages[-1]) == final
    drawn = ["<svg" in message["data"]["text/html"] for message in messages]
    assert (drawn[0], drawn[-2], drawn[-1]) == (False, True, False)


def test_the_picture_shows_who_waits_for_whom(notebook):
    """A lane for each rank with its call, seconds and memory, and arrows to its peers."""
    source = (
        "%%px --timeout 4\n"
        "if rank == 0:\n"
        "    while True: pass\n"
        "dist.recv(torch.zeros(1), src=rank - 1)"
    )
    shown = [
        one.get("data", {}).get("text/html", "")
        for one in notebook.run(source, someone_watches=True)
    ]
    last = [picture for picture in shown if "<svg" in picture][-1]
    assert last.count("<path") == last.count("<polygon") == 3
    assert re.search(r">computing, line 3 · \d+ s( · \d+ MB)?<", last)
    assert re.search(r">recv\(src=0\), line 4 · \d+ s( · \d+ MB)?<", last)


def test_a_new_cluster_takes_over_px(notebook):
    """Cluster(...) run again replaces the ranks behind %%px, at another size and back."""
    assert notebook.text("cluster = distlab.Cluster(2)") == "2 ranks are ready (gloo)."
    assert notebook.text("%px world_size") == "ranks 0-1 -> 2"
    assert notebook.text("cluster.stop()\n%px 1") == (
        "ClusterError: No cluster is running here. Make one first: cluster = distlab.Cluster(4)."
    )
    # while ranks start a person sees a counter; what stays is one line that is the same on every
    # run
    messages = notebook.run("cluster = distlab.Cluster(4, timeout=20)", someone_watches=True)
    assert plain(messages[0]) == "starting 4 ranks ..."
    assert plain(messages[-1]) == "4 ranks are ready (gloo)."
    assert {message["type"] for message in messages[1:]} == {"update_display_data"}


UNEVEN = """%%px
small = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
for batch in range(3 if rank == 0 else 2):
    small(torch.ones(1, 4)).sum().backward()
"""


def test_passes_of_ddp_are_those_of_the_cell(notebook):
    """Whatever cells before it have trained."""
    words = (
        "Ranks 1-3 have made 2 forward passes, and this one is number 3: "
        "with fewer batches on some ranks"
    )
    assert words in notebook.text(UNEVEN)
    assert words in notebook.text(UNEVEN.replace("%%px", "%%px --check"))
    assert notebook.text(UNEVEN.replace("3 if rank == 0 else 2", "5")) == ""
    assert words in notebook.text(UNEVEN)
