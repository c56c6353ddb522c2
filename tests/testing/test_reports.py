"""How marked tests are reported: each way to end, on ranks; and pytest's options."""

import re

import pytest

from tests.testing.inner import ROOT, Inner

CONFTEST = """
import pytest

@pytest.fixture(scope="module")
def shared():
    return []

@pytest.fixture
def number(rank):
    yield rank * 10
    import torch.distributed as dist
    dist.barrier()
"""
PROJECT = """
import logging
import os
import time
import distlab
import pytest
import torch
import torch.distributed as dist

ranks = pytest.mark.ranks

@ranks(2)
def test_fixtures(rank, world_size, number, shared, caplog, capsys, monkeypatch, tmp_path_factory):
    monkeypatch.setenv("FROM_A_TEST", "1")
    logging.getLogger("ours").warning("from %d", rank)
    print("printed")
    assert caplog.messages == [f"from {rank}"]
    assert capsys.readouterr().out == "printed\\n"
    assert (world_size, number, shared) == (2, rank * 10, [])
    shared.append(rank)
    assert tmp_path_factory.mktemp("own").is_dir()

@ranks(2)
def test_environment():
    assert "FROM_A_TEST" not in os.environ

@ranks(3)
def test_values(rank):
    print("rank", rank, "was here")
    logging.getLogger("ours").warning("logged by %d", rank)
    found = {"a": [1, 2, rank // 2]}
    assert found == {"a": [1, 2, 0]}

@ranks(2)
def test_raises(rank, number):
    if rank == 1:
        raise ValueError("only here")
    dist.all_reduce(torch.ones(1))

@ranks(2)
def test_deadlock(rank):
    dist.recv(torch.ones(1), src=1 - rank)

@ranks(2)
def test_dies(rank):
    if rank == 1:
        os._exit(3)
    dist.barrier()

@ranks(2)
def test_after_a_death(world_size):
    ones = torch.ones(1)
    dist.all_reduce(ones)
    assert ones == world_size

@ranks(2, timeout=1)
def test_too_long(rank):
    while rank:
        pass

@ranks(2, check=True)
def test_mismatch(rank):
    dist.all_reduce(torch.ones(1 + rank))

@ranks(2)
def test_teardown(rank, request):
    def end():
        assert rank == 0, "at the end"
    request.addfinalizer(end)

@ranks(2)
def test_skips():
    pytest.skip("not today")

@ranks(2)
def test_skips_on_one_rank(rank):
    if rank == 0:
        pytest.skip("not here")
    dist.barrier()

@ranks(2)
def test_skips_beside_a_failure(rank):
    if rank == 0:
        pytest.skip("not here")
    raise ValueError("but here")

@pytest.fixture
def ends_badly():
    yield
    raise ValueError("in the end")

@ranks(2)
def test_skips_and_ends_badly(ends_badly):
    pytest.skip("not today")

@ranks(2)
def test_fails_when_it_is_freed(rank):
    if rank == 1:
        raise ValueError("at fault")
    try:
        dist.barrier()
    except RuntimeError:
        raise KeyError("afterwards")

@ranks(2)
@pytest.mark.skipif(True, reason="never")
def test_skipped():
    raise AssertionError

@ranks(2)
@pytest.mark.xfail(raises=ZeroDivisionError, strict=True)
def test_expected_exception(rank):
    1 / rank

@ranks(2)
@pytest.mark.xfail(raises=distlab.errors.DeadlockError, strict=True)
def test_expected_deadlock(rank):
    if rank == 0:
        dist.barrier()

@ranks(2)
@pytest.mark.xfail(strict=True)
def test_that_passes():
    pass

@ranks(2)
def test_xfails():
    pytest.xfail("one day")

@ranks(4, network=distlab.Network("5 us", "1 GB/s"))
def test_virtual_clock(cluster_clock):
    dist.all_reduce(torch.ones(1 << 20))
    assert 4e-3 < cluster_clock() < 7e-3

@ranks(2)
@pytest.mark.parametrize("x", [1, object()], ids=["one", "object"])
class TestClass:
    before = []

    @pytest.fixture(autouse=True)
    def around(self, rank):
        self.mine = rank

    def test_method(self, x, rank):
        assert (self.mine, self.before) == (rank, [])
        self.before.append(x)

PIDS = []

@ranks(2)
def test_processes(tmp_path_factory, rank):
    (tmp_path_factory.getbasetemp().parent / f"pid{rank}").write_text(str(os.getpid()))

@ranks(2)
def test_the_same_processes(tmp_path_factory, rank):
    assert (tmp_path_factory.getbasetemp().parent / f"pid{rank}").read_text() == str(os.getpid())

@ranks(2, fresh=True)
def test_fresh_processes(tmp_path_factory, rank):
    assert (tmp_path_factory.getbasetemp().parent / f"pid{rank}").read_text() != str(os.getpid())

@ranks(2)
def test_breakpoint(rank):
    breakpoint()

def test_without_mark(rank):
    pass

@ranks()
def test_no_number():
    pass

@ranks("2")
def test_words():
    pass

@ranks(2, bakcend="gloo")
def test_unknown_option():
    pass

@ranks(2, backend="nccl")
def test_no_gpu():
    pass

def test_plain():
    pass
"""
MISMATCH_AT = 1 + PROJECT.splitlines().index("    dist.all_reduce(torch.ones(1 + rank))")
ENDS = {
    "passed": [
        *(
            "test_fixtures",
            "test_environment",
            "test_after_a_death",
            "test_virtual_clock",
            "test_processes",
        ),
        *(
            "test_the_same_processes",
            "test_fresh_processes",
            "test_method[one]",
            "test_method[object]",
            "test_plain",
        ),
    ],
    "skipped": [
        *(
            "test_skips",
            "test_skips_on_one_rank",
            "test_skipped",
            "test_expected_exception",
            "test_expected_deadlock",
        ),
        *("test_xfails",),
    ],
    "error": ["test_without_mark"],
}
SAYS = {
    "test_values": [
        "rank 2: ",
        "'a': [1, 2, 0]",
        "rank = 2",
        "rank 0: rank 0 was",
        "rank 2: rank 2 was",
    ],
    "test_raises": [
        "rank 1: ValueError: only here",
        ">           raise",
        "rank 0 calls all_reduce, rank 1",
    ],
    "test_deadlock": [
        "DeadlockError: 2 of 2 ranks wait for each other",
        "recv(src=1)",
        "dist.recv(torch.ones(1)",
    ],
    "test_dies": ["RankDied: rank 1 ended with exit status 3"],
    "test_too_long": ["RankTimeout: rank 1 did not come back within 1 s", "while rank:"],
    "test_mismatch": [
        "MismatchError: The ranks' all_reduce calls do not match: rank 0 has float32[1]",
        f"test_project.py:{MISMATCH_AT}: MismatchError\n",  # the test's line, and none of torch's
    ],
    "test_teardown": ["rank 1: AssertionError: at the end"],
    "test_skips": ["not today", "test_project.py:"],
    "test_skips_on_one_rank": ["not here"],
    "test_skips_beside_a_failure": ["rank 1: ValueError: but here"],
    "test_skips_and_ends_badly": ["rank 0: ValueError: in the end"],
    "test_fails_when_it_is_freed": ["rank 1: ValueError: at fault"],
    "test_that_passes": ["XPASS(strict)"],
    "test_breakpoint": ["breakpoint() needs somebody who types", "pytest with -s"],
    "test_without_mark": ["mark this one with @pytest.mark.ranks(2)"],
    "test_no_number": ["must have one number of ranks, got ()"],
    "test_words": ["must be a whole number of 1 or more, got '2'"],
    "test_unknown_option": ["must be one of 'timeout', 'check', 'fresh'", "got 'bakcend'"],
    "test_no_gpu": ["backend must be one that"],
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("a project")
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_project.py").write_text(PROJECT)
    (folder / "pytest.ini").write_text(
        "[pytest]\naddopts = --strict-markers\nfilterwarnings = error\ntimeout = 200\n"
    )
    return folder


@pytest.fixture(scope="module")
def run(folder):
    return Inner(folder)


def test_how_each_test_ends(run):
    ends = {name: how for how, names in ENDS.items() for name in names}
    assert {name: outcome.how for name, outcome in run.outcomes.items()} == {
        name: ends.get(name, "failed") for name in run.outcomes
    }
    assert {*ends, *SAYS} <= {*run.outcomes}


@pytest.mark.parametrize("name", SAYS)
def test_what_is_said(run, name):
    outcome = run.outcomes[name]
    for words in SAYS[name]:
        assert words in outcome.line + outcome.text
    assert "distlab/testing" not in outcome.text
    assert "process group is rebuilt" not in outcome.text


def test_values_are_compared(run):
    assert "{'a': [1, 2, 1]} != {'a': [1, 2, 0]}" in run.output


def test_logs_are_shown_by_rank(run):
    assert "Captured log call, rank 2" in run.output
    assert "logged by 2" in run.output


def test_the_number_of_ranks_can_be_given(folder):
    run = Inner(folder, "--ranks", "3", "-k", "test_after_a_death or test_fixtures")
    assert run.outcomes["test_after_a_death"].how == "passed"
    assert "assert (3, " in run.outcomes["test_fixtures"].text
    assert (
        "--ranks must be a whole number of 1 or more, got 0"
        in Inner(folder, "--ranks=0", "-k", "a_death").output
    )


@pytest.mark.new_python
def test_the_first_failure_ends_a_run_that_wants_it(folder):
    run = Inner(folder, "-x", "-k", "test_values or test_raises")
    assert [*run.outcomes] == ["test_values"]


def test_beside_xdist(folder):
    run = Inner(
        folder,
        "-n",
        "2",
        "-k",
        "test_environment or test_values or TestClass or test_raises or test_deadlock",
    )
    assert {name: outcome.how for name, outcome in run.outcomes.items()} == {
        **dict.fromkeys(("test_environment", "test_method[one]", "test_method[object]"), "passed"),
        **dict.fromkeys(("test_values", "test_raises", "test_deadlock"), "failed"),
    }
    assert "rank 0 calls all_reduce, rank 1 calls barrier" in run.outcomes["test_raises"].text


def test_the_project_in_the_documentation(tmp_path):
    """docs/testing.md: its files, as they stand there, pass."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/testing.md").read_text(), re.DOTALL)
    for number, block in enumerate(blocks):
        if "import" not in block:  # a test that fails, on purpose
            continue
        name = re.match(r"# (\w+\.py)\n", block)
        (tmp_path / (name[1] if name else f"test_{number}.py")).write_text(block)
    run = Inner(tmp_path)
    assert len(run.outcomes) == 11
    assert {outcome.how for outcome in run.outcomes.values()} == {"passed"}, run.output


LATE_CONFTEST = """
import os
import pytest

class Late:
    def __del__(self):
        raise ValueError("too late")

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item, call):
    if "RANK" in os.environ and call.when == "teardown" and item.name == "test_fails":
        Late()
"""
LATE_TESTS = """
import pytest

@pytest.mark.ranks(2)
def test_fails():
    raise ValueError("at once")

@pytest.mark.ranks(2)
def test_next():
    pass
"""


def test_what_a_failed_test_leaves_behind_does_not_fail_the_next_one(tmp_path):
    """As where the interrupt that frees a rank hits a destructor."""
    (tmp_path / "conftest.py").write_text(LATE_CONFTEST)
    (tmp_path / "test_late.py").write_text(LATE_TESTS)
    run = Inner(tmp_path, "-W", "error::pytest.PytestUnraisableExceptionWarning")
    assert {name: outcome.how for name, outcome in run.outcomes.items()} == {
        "test_fails": "failed",
        "test_next": "passed",
    }, run.output


PREEMPTED_TESTS = """
import pytest
import torch
import torch.distributed as dist

def train():
    weight = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(5):
        weight.sum().backward()
        dist.all_reduce(weight.grad)
        optimizer.step()

@pytest.mark.ranks(2, preempt="1:step2")
def test_dies():
    train()

@pytest.mark.ranks(2, preempt=["0:20", "1:step9"])
def test_never():
    train()

@pytest.mark.ranks(2, preempt="1:soon")
def test_wrong_mark():
    train()
"""


def test_preemption_by_the_mark(tmp_path):
    """The report of a test says what happened to the rank; a test that ended before has failed."""
    (tmp_path / "test_preempted.py").write_text(PREEMPTED_TESTS)
    run = Inner(tmp_path)
    assert "It had no handler for SIGTERM" in run.outcomes["test_dies"].text
    assert "Rank 0 waited in all_reduce() at test_preempted.py:11" in run.outcomes["test_dies"].text
    assert "Rank 1 got no SIGTERM (asked for at" in run.outcomes["test_never"].text
    words = "the mark's preempt must be RANK:SECONDS or RANK:stepN, got '1:soon'."
    assert words in run.outcomes["test_wrong_mark"].text
