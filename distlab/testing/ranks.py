"""The cluster on which marked tests run, one after another, and what they fail with. Runs in
pytest's process.
"""

from __future__ import annotations

import re
import sys
from inspect import signature
from typing import Any

import pytest

from distlab.arguments import one_of, whole_number
from distlab.compat.pytest import base_folder
from distlab.errors import ArgumentError, DistlabError, RankDied, RanksFailed
from distlab.notebook.cluster import Cluster
from distlab.testing import on_rank

KEYWORDS = list(
    dict.fromkeys(["timeout", "check", "fresh", *list(signature(Cluster).parameters)[1:]])
)
EXAMPLE = "For example: @pytest.mark.ranks(4, timeout=10)."
# what a notebook goes on with
REBUILT = re.compile(r"\n.*(process group is rebuilt|rebuilds the process group).*")
PLAIN = (bool, int, float, str, list, tuple, dict, type(None))


class Ranks:
    """One cluster for the tests of a pytest process; another number of ranks or other options make
    it anew.
    """

    def __init__(self, config: pytest.Config):
        self._config = config
        self._cluster: Cluster | None = None
        self._kind: Any = None  # how many ranks the cluster has, and its options
        # of the last test: each rank that is at fault, and its pytest's report
        self._reports: list[Any] = []
        self._words = ""  # what the engine has said of it

    def stop(self) -> None:
        """End the ranks; the next test has new ones."""
        if self._cluster is not None:
            self._cluster.stop()
        self._cluster = None

    def run(self, item: pytest.Item) -> None:
        """Run a test: returns if it has passed on every rank, else raises as it would in this
        process.
        """
        mark = item.get_closest_marker("ranks")
        if len(mark.args) != 1:
            raise ArgumentError(
                f"the mark ranks must have one number of ranks, got {mark.args}. {EXAMPLE}"
            )
        whole_number("the mark's ranks", mark.args[0], 1, advice=EXAMPLE)
        for name in mark.kwargs:
            one_of("a keyword of the mark ranks", name, KEYWORDS, EXAMPLE)
        n = self._config.getoption("ranks")
        n = (
            mark.args[0]
            if n is None
            else whole_number("--ranks", n, 1, advice="For example: pytest --ranks 2.")
        )
        try:
            self._run(item, n, **mark.kwargs)
        except RanksFailed as error:
            raise self._culprit(error) from None
        except BaseException:
            self.stop()
            raise

    def _run(
        self,
        item: pytest.Item,
        n: int,
        timeout: float = 60.0,
        check: bool = False,
        fresh: bool = False,
        **options: Any,
    ) -> None:
        """Run a test with the arguments of its mark: in a new process group, in new processes if
        that must be.
        """
        if fresh or self._cluster is not Cluster.current or self._kind != (n, options):
            self._cluster, self._kind = None, (n, options)
        if self._cluster is None:
            self._cluster = Cluster(n, **{"preload": ["distlab.testing.on_rank"], **options})
        else:
            self._cluster.ranks.rebuild()
        self._cluster.run(on_rank.run, self._plan(item), timeout=timeout, check=check)

    def _plan(self, item: pytest.Item) -> on_rank.Plan:
        config = self._config
        options = {
            name: value for name, value in vars(config.option).items() if isinstance(value, PLAIN)
        }
        del options["file_or_dir"]
        options |= {
            "rootdir": str(config.rootpath),
            "inifilename": config.inipath and str(config.inipath),
        }
        # those of plugins that ranks do without, too
        markers = "markers=" + "\n".join(config.getini("markers"))
        options |= {
            "basetemp": base_folder(config),
            "override_ini": [*(options["override_ini"] or ()), markers],
        }
        return on_rank.Plan(
            node=f"{item.path}::{item.nodeid.partition('::')[2]}",
            options=options,
            folder=str(config.invocation_params.dir),
            sys_path=tuple(sys.path),
            tmp_path=item.funcargs.get("tmp_path"),
            pauses="breakpoint"
            if config.getoption("usepdb") or "breakpoint(" in item.path.read_text()
            else "",
        )

    def _culprit(self, error: RanksFailed) -> BaseException:
        """What the test fails with: the exception of a rank that is at fault, or else that of the
        whole run.
        """
        error.args = (REBUILT.sub("", str(error)),)
        self._words = str(error)
        if isinstance(error, RankDied):
            return error
        sent, report = (
            self._cluster.call(on_rank.last_report),
            self._config.hook.pytest_report_from_serializable,
        )
        reports = [
            (rank, report(config=self._config, data=one)) for rank, one in enumerate(sent) if one
        ]
        if not reports:
            return error
        self._reports = sorted(reports, key=lambda one: one[1].skipped)  # what failed comes first
        rank, first = self._reports[0]
        if first.skipped:
            # its class says that it is Python's, so that it cannot be pickled
            return pytest.skip.Exception()
        try:
            return self._cluster.call(on_rank.last_error, ranks=[rank])[0]
        except Exception:  # whatever its own pickling and unpickling raise
            return error

    def describe(self, report: pytest.TestReport, found: pytest.ExceptionInfo) -> None:
        """Have the report of a test that has not passed say what the ranks' own reports say."""
        reports, self._reports = self._reports, []
        for rank, one in reports:
            report.sections += [(f"{name}, rank {rank}", text) for name, text in one.sections]
        if reports:
            rank, first = reports[0]
            report.longrepr = first.longrepr
            # none where the test was skipped
            if crash := getattr(first.longrepr, "reprcrash", None):
                crash.message = f"rank {rank}: {crash.message}"
                first.longrepr.addsection("ranks", self._words)
        elif isinstance(found.value, DistlabError):
            report.longrepr = found.getrepr(style="value")
