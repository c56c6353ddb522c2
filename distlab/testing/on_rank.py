"""Runs a test on this rank by pytest itself, with its fixtures, plugins and rewritten asserts.

Runs on every rank, called by shared_cluster.py. The first test of a rank starts a pytest there, as
pytest-xdist does in its workers; the others use it. Its module is imported for each test anew, so
that no test sees the variables of another.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from distlab import simulated
from distlab.compat.pytest import forget_late_errors, run_only, start_session
from distlab.debugger import console
from distlab.errors import DistlabError
from distlab.wire.namespace import namespace_of_cells

# plugins that have nothing to do on a rank: the process that finds the tests has them
NOT_ON_RANKS = (
    "debugging",
    "faulthandler",
    "junitxml",
    "skipping",
    "xdist",
    "timeout",
    "pytest_cov",
    "nbval",
    "distlab",
)
TORCH_ERRORS = "c10d-NullHandler-default"  # torch's logger, which repeats what is raised
# Plugins that this process imported before pytest began here would each be warned of.
NO_REWRITE_WARNING = "ignore::pytest.PytestAssertRewriteWarning"
# options that only the process that finds the tests heeds
OFF = (
    "cov_source",
    "lf",
    "failedfirst",
    "newfirst",
    "cacheclear",
    "stepwise",
    "strict_config",
    "strict",
)


@dataclass(frozen=True)
class RankTest:
    """What a rank needs to know of a test.

    Attributes:
        node: the path of its file, and what comes after it in the test's id.
        options: pytest's, by name.
        folder: where pytest was started.
        sys_path: where modules are found.
        tmp_path: the folder that the test's ranks share; None if it does not ask for it.
        pauses: "breakpoint" if the debugger may be opened: Cluster.run looks for that word in what
            it sends.
    """

    node: str
    options: dict[str, Any]
    folder: str
    sys_path: tuple[str, ...]
    tmp_path: Path | None
    pauses: str


def run_test(rank: int, world_size: int, test: RankTest) -> None:
    """Run a test, and raise what it raises, pytest's exception for a skipped test included."""
    os.chdir(test.folder)
    if RankPytest.here is None:
        RankPytest.here = RankPytest(rank, world_size, test)
    RankPytest.here.run(test)


def last_report(rank: int, world_size: int) -> dict[str, Any] | None:
    """What pytest says of the last test, see `RankPytest`; None in a new process as well."""
    here = RankPytest.here
    if here is None:
        return None
    return here.report


def last_error(rank: int, world_size: int) -> BaseException:
    """What the last test has raised here.

    Raises:
        LookupError: it has raised nothing, or the process is new.
    """
    here = RankPytest.here
    if here is None or here.error is None:
        raise LookupError(f"no test has raised on rank {rank}")
    return here.error


class RankPytest:
    """pytest on this rank, and a plugin in it.

    Attributes:
        here: the one of this process, from its first test on.
        error: what the last test has raised; None if it has passed.
        report: pytest's report of the last test, for the hook pytest_report_from_serializable; None
            if this rank is not at fault.
    """

    here: RankPytest | None = None

    def __init__(self, rank: int, world_size: int, test: RankTest):
        self._rank = rank
        self._world_size = world_size
        self._test = test
        self.error: BaseException | None = None
        self.report: dict[str, Any] | None = None
        sys.path[:] = test.sys_path
        options = test.options | dict.fromkeys(OFF, False)
        options["basetemp"] = test.options["basetemp"] / f"rank{rank}"
        options["capture"] = "no"
        options["color"] = "no"
        options["logger_disable"] = [TORCH_ERRORS]
        options["pythonwarnings"] = [*(test.options["pythonwarnings"] or ()), NO_REWRITE_WARNING]
        self._session = start_session(options, test.node, NOT_ON_RANKS, self)

    # --- hooks and fixtures ---

    @pytest.fixture
    def rank(self) -> int:
        return self._rank

    @pytest.fixture
    def world_size(self) -> int:
        return self._world_size

    @pytest.fixture
    def cluster_clock(self) -> Callable[[], float]:
        return lambda: simulated.clock(self._rank, self._world_size)

    @pytest.fixture
    def same_as_one_process(self) -> Callable[..., Any]:
        # only now: other tests need none of it
        from distlab.comparison.in_test import compare_in_test
        from distlab.comparison.watching import watch  # noqa: F401  # one of the libraries to hide

        _hide_libraries()

        def check(train: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            found = compare_in_test(train, args, kwargs)
            if not found.same:
                pytest.fail(repr(found))
            return found

        return check

    @pytest.fixture
    def tmp_path(self) -> Path | None:
        return self._test.tmp_path

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[Any]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.excinfo:
            self._note(report, call.excinfo.value)
        return report

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._note(report, pytest.Collector.CollectError(str(report.longrepr)))

    def pytest_exception_interact(self, call: Any) -> None:
        if self._test.options.get("usepdb"):
            console.post_mortem(call.excinfo.value)

    # --- a test ---

    def run(self, test: RankTest) -> None:
        """Run a test, and raise what it raises."""
        self._test = test
        if self.error is not None:
            # an interrupt that freed this rank may have hit a destructor: pytest would have the
            # next test fail
            forget_late_errors(self._session)
        self.error = None
        self.report = None
        _hide_libraries()
        # Both are restored at the end, whatever the test has changed in them.
        with mock.patch.dict(os.environ), mock.patch.dict(namespace_of_cells()):
            for item in run_only(self._session, test.node):
                module = getattr(item, "module", None)
                if module is not None:
                    sys.modules.pop(module.__name__, None)
        if self.error is not None:
            raise self.error

    def _note(self, report: Any, error: BaseException) -> None:
        """Remember what a phase of the test has raised, if it is the first one that has.

        What skips the test gives way to an error of a later phase.
        """
        # It imports torch, which the process that finds the tests does without.
        from distlab.rank.raised import is_at_fault

        if self.error is not None and not isinstance(self.error, pytest.skip.Exception):
            return
        self.error = error
        if is_at_fault(error):
            config = self._session.config
            self.report = config.hook.pytest_report_to_serializable(config=config, report=report)


def _hide_libraries() -> None:
    """Have pytest leave lines of distlab and torch out of tracebacks, where they explain nothing.

    Those of torch are left out on the way to an error that distlab raises.
    """
    for name, module in list(sys.modules.items()):
        if name.startswith("distlab."):
            vars(module)["__tracebackhide__"] = True
        elif name.startswith("torch.distributed."):
            vars(module)["__tracebackhide__"] = _is_distlabs


def _is_distlabs(found: pytest.ExceptionInfo[BaseException]) -> bool:
    """Whether an error is one of distlab's own, such as a MismatchError."""
    return found.errisinstance(DistlabError)
