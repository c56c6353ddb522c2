"""The pytest plugin: `@pytest.mark.ranks(4)` runs a test on every rank of a cluster.

Runs in pytest's process. It imports nothing of distlab's engine until a test has the mark.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

if TYPE_CHECKING:
    from distlab.testing.shared_cluster import SharedCluster

MARK = (
    "ranks(n, *, timeout=60, check=False, fresh=False, preempt=(), grace=5, **options): run the "
    "test on each of n ranks, in a process group of its own. timeout: seconds; check: compare the "
    "arguments of collectives and messages; fresh: in new interpreters, as under torchrun; "
    'preempt: "1:20" or "1:step3" sends rank 1 SIGTERM after 20 s or 3 optimizer steps, and '
    "SIGKILL after `grace` seconds; options: of distlab.Cluster, such as backend and network."
)
SHARED_CLUSTER = pytest.StashKey["SharedCluster"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("distlab", "tests on several ranks")
    words = "run the tests that are marked with ranks on N ranks, whatever their marks say"
    group.addoption("--ranks", type=int, metavar="N", help=words)
    words = "let tests that call torch.multiprocessing.spawn call distlab.spawn, as they are"
    group.addoption("--distlab-spawn", action="store_true", help=words)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARK)
    if config.getoption("distlab_spawn") and _runs_tests(config):
        from distlab.testing import spawned

        spawned.replace_torchs()


def _runs_tests(config: pytest.Config) -> bool:
    """Whether this process runs tests: pytest-xdist's own does not, nor one that lists them."""
    is_worker = hasattr(config, "workerinput")
    if getattr(config.option, "dist", "no") != "no" and not is_worker:
        return False
    return not config.getoption("collectonly")


def pytest_unconfigure(config: pytest.Config) -> None:
    if config.getoption("distlab_spawn") and _runs_tests(config):
        from distlab.testing import spawned

        spawned.restore_torchs()
    if SHARED_CLUSTER in config.stash:
        config.stash[SHARED_CLUSTER].stop()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Have a test with the mark run on ranks, with its fixtures there.

    Only the folder that the ranks share is made here.
    """
    if item.get_closest_marker("ranks") and hasattr(item, "fixturenames"):
        item.fixturenames = ["tmp_path"] if "tmp_path" in item.fixturenames else []
        # pytest calls this method of the item, here an attribute of its own
        item.runtest = lambda: _shared_cluster(item.config).run(item)  # type: ignore[method-assign]


def _shared_cluster(config: pytest.Config) -> SharedCluster:
    """The ranks of this run of pytest, made for the first test that needs them."""
    if SHARED_CLUSTER not in config.stash:
        from distlab.testing.shared_cluster import SharedCluster

        config.stash[SHARED_CLUSTER] = SharedCluster(config)
    return config.stash[SHARED_CLUSTER]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show how a test has ended on a rank as the pytest of that rank describes it.

    Of any test, show the verdict of a comparison that it asserts.
    """
    report = yield
    if call.excinfo and report.failed:
        _show_verdict(report, call.excinfo)
    if item.get_closest_marker("ranks") and call.excinfo and SHARED_CLUSTER in item.config.stash:
        item.config.stash[SHARED_CLUSTER].describe(report, call.excinfo)
        # The debugger was opened on the rank: pytest must not open it in this process as well.
        if item.config.getoption("usepdb"):
            call.excinfo = None
    return report


def _show_verdict(report: pytest.TestReport, found: pytest.ExceptionInfo[BaseException]) -> None:
    """Add the whole verdict of the comparison that an assert has found false.

    pytest itself shows the first 240 characters of a value. What a rewritten assert has computed is
    among the variables of its frame.
    """
    verdict = sys.modules.get("distlab.comparison.verdict")
    add_section = getattr(report.longrepr, "addsection", None)
    if verdict is None or add_section is None:
        return
    for value in found.traceback[-1].frame.f_locals.values():
        if isinstance(value, verdict.Comparison) and not value:
            add_section("distlab.compare", repr(value))
            return


def _fixture(name: str, words: str) -> Any:
    """A fixture that only a test on ranks has."""

    def value() -> NoReturn:
        pytest.fail(
            f"{name} is there in tests on ranks only: mark this one with @pytest.mark.ranks(2)",
            pytrace=False,
        )

    value.__doc__ = words
    return pytest.fixture(value, name=name)


rank = _fixture("rank", "In a test on ranks: the number of this rank.")
world_size = _fixture("world_size", "In a test on ranks: how many ranks there are.")
cluster_clock = _fixture(
    "cluster_clock", "In a test with network=...: returns this rank's virtual seconds."
)
same_as_one_process = _fixture(
    "same_as_one_process",
    "In a test on ranks: compares train(rank, world_size, ...) on these ranks with one process.",
)
