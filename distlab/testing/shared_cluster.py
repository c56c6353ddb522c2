"""The cluster on which marked tests run, one after another, and what they fail with.

Runs in pytest's process, called by plugin.py; on_rank.py runs each test on the ranks.
"""

from __future__ import annotations

import contextlib
import sys
from inspect import signature
from typing import Any

import pytest

from distlab.arguments import one_of, whole_number
from distlab.compat.pytest import base_folder
from distlab.diagnosis.afterwards import NEXT_STEP
from distlab.errors import ArgumentError, DistlabError, RankDied, RanksFailed
from distlab.notebook.cluster import Cluster
from distlab.notebook.preempting import Preemption
from distlab.scripts import preempting
from distlab.testing import on_rank
from distlab.wire.preemption import GRACE

OWN_KEYWORDS = ["timeout", "check", "fresh", "preempt", "grace"]  # of the mark
CLUSTER_KEYWORDS = list(signature(Cluster).parameters)[1:]  # all but the number of ranks
KEYWORDS = list(dict.fromkeys([*OWN_KEYWORDS, *CLUSTER_KEYWORDS]))
MARK_EXAMPLE = "For example: @pytest.mark.ranks(4, timeout=10)."
# of options that are sent to the ranks
TRAVELLING_TYPES = (bool, int, float, str, list, tuple, dict, type(None))


class SharedCluster:
    """One cluster for the tests of a pytest process.

    Another number of ranks, or other options, make it anew.
    """

    def __init__(self, config: pytest.Config):
        self._config = config
        self._cluster: Cluster | None = None
        self._kind: Any = None  # how many ranks the cluster has, and its options
        # of the last test: each rank that is at fault, and the report of its pytest
        self._reports: list[tuple[int, Any]] = []
        self._words = ""  # what the engine has said of the last test

    def stop(self) -> None:
        """End the ranks; the next test has new ones."""
        if self._cluster is not None:
            self._cluster.stop()
        self._cluster = None

    def run(self, item: pytest.Item) -> None:
        """Run a test on every rank; if it fails on one, raise as it would in this process."""
        n, keywords = self._read_mark(item)
        timeout = keywords.pop("timeout", 60.0)
        check = keywords.pop("check", False)
        fresh = keywords.pop("fresh", False)
        grace = keywords.pop("grace", GRACE)
        orders = preempting.orders_in_mark(keywords.pop("preempt", ()), n)
        try:
            cluster = self._cluster_for(n, fresh, keywords)
        except BaseException:
            self.stop()
            raise
        preemption: Preemption | None = None
        reports: list[str] = []
        try:
            with contextlib.ExitStack() as ends:
                if orders:
                    preempted = preempting.reported(cluster, orders, grace, reports)
                    preemption = ends.enter_context(preempted)
                cluster.run(on_rank.run_test, self._test_of(item), timeout=timeout, check=check)
        except RanksFailed as error:
            error.args = ("\n".join([str(error), *reports]),)
            raise self._culprit(cluster, error) from None
        except BaseException:
            self.stop()
            raise
        if preemption is not None and not preemption.all_sent:
            # it has tried nothing
            pytest.fail(preemption.report, pytrace=False)

    def _read_mark(self, item: pytest.Item) -> tuple[int, dict[str, Any]]:
        """The number of ranks that a test runs on, and the keywords of its mark.

        Raises:
            ArgumentError: the mark, or --ranks, breaks a rule.
        """
        args: tuple[Any, ...] = ()
        keywords: dict[str, Any] = {}
        mark = item.get_closest_marker("ranks")
        if mark is not None:
            args = mark.args
            keywords = dict(mark.kwargs)
        if len(args) != 1:
            raise ArgumentError(
                f"the mark ranks must have one number of ranks, got {args}. {MARK_EXAMPLE}"
            )
        n = whole_number("the mark's ranks", args[0], 1, advice=MARK_EXAMPLE)
        for name in keywords:
            one_of("a keyword of the mark ranks", name, KEYWORDS, MARK_EXAMPLE)
        asked = self._config.getoption("ranks")
        if asked is not None:
            n = whole_number("--ranks", asked, 1, advice="For example: pytest --ranks 2.")
        return n, keywords

    def _cluster_for(self, n: int, fresh: bool, options: dict[str, Any]) -> Cluster:
        """A cluster with a new process group, in new processes if that must be.

        Args:
            n: the number of ranks.
            fresh: whether each rank must be a new interpreter, in which nothing has run.
            options: of `Cluster`.
        """
        kind = (n, fresh, options)
        is_usable = self._cluster is Cluster.current and self._kind == kind
        if self._cluster is not None and is_usable and not fresh:
            self._cluster.ranks.rebuild()
            return self._cluster
        self._cluster = None
        self._kind = kind
        preload = {"preload": ["distlab.testing.on_rank"]}
        self._cluster = Cluster(n, fresh=fresh, **{**preload, **options})
        self._cluster.of_tests = True
        return self._cluster

    def _test_of(self, item: pytest.Item) -> on_rank.RankTest:
        """What a rank needs to know of a test."""
        config = self._config
        is_debugged = config.getoption("usepdb") or "breakpoint(" in item.path.read_text()
        return on_rank.RankTest(
            node=f"{item.path}::{item.nodeid.partition('::')[2]}",
            options=self._options(),
            folder=str(config.invocation_params.dir),
            sys_path=tuple(sys.path),
            tmp_path=getattr(item, "funcargs", {}).get("tmp_path"),
            pauses="breakpoint" if is_debugged else "",
        )

    def _options(self) -> dict[str, Any]:
        """The options of pytest on a rank, as far as they can travel."""
        config = self._config
        options: dict[str, Any] = {}
        for name, value in vars(config.option).items():
            if isinstance(value, TRAVELLING_TYPES):
                options[name] = value
        del options["file_or_dir"]
        options["rootdir"] = str(config.rootpath)
        options["inifilename"] = None
        if config.inipath:
            options["inifilename"] = str(config.inipath)
        options["basetemp"] = base_folder(config)
        # also the markers of plugins that ranks do without
        markers = "markers=" + "\n".join(config.getini("markers"))
        options["override_ini"] = [*(options["override_ini"] or ()), markers]
        return options

    def _culprit(self, cluster: Cluster, error: RanksFailed) -> BaseException:
        """What the test fails with.

        It is the exception of a rank that is at fault, or else that of the whole run.
        """
        error.args = (NEXT_STEP.sub("", str(error)),)
        self._words = str(error)
        if isinstance(error, RankDied):
            return error
        self._reports = self._reports_of_ranks(cluster)
        if not self._reports:
            return error
        rank, first = self._reports[0]
        if first.skipped:
            # The class names `builtins` as its module, where pickle does not find it.
            return pytest.skip.Exception()
        try:
            culprit: BaseException = cluster.call(on_rank.last_error, ranks=[rank])[0]
        except Exception:  # whatever its own pickling and unpickling raise
            return error
        return culprit

    def _reports_of_ranks(self, cluster: Cluster) -> list[tuple[int, Any]]:
        """Each rank that is at fault in the last test, and its report; failures come first."""
        read = self._config.hook.pytest_report_from_serializable
        failed: list[tuple[int, Any]] = []
        skipped: list[tuple[int, Any]] = []
        for rank, sent in enumerate(cluster.call(on_rank.last_report)):
            if sent:
                report = read(config=self._config, data=sent)
                of_its_kind = skipped if report.skipped else failed
                of_its_kind.append((rank, report))
        return failed + skipped

    def describe(
        self, report: pytest.TestReport, found: pytest.ExceptionInfo[BaseException]
    ) -> None:
        """Have the report of a test that has not passed say what the ranks' own reports say."""
        reports = self._reports
        self._reports = []
        for rank, one in reports:
            report.sections += [(f"{name}, rank {rank}", text) for name, text in one.sections]
        if reports:
            rank, first = reports[0]
            report.longrepr = first.longrepr
            crash = getattr(first.longrepr, "reprcrash", None)
            if crash:  # none where the test was skipped
                crash.message = f"rank {rank}: {crash.message}"
                first.longrepr.addsection("ranks", self._words)
        elif isinstance(found.value, DistlabError):
            report.longrepr = found.getrepr(style="value")
