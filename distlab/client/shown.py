"""How a cluster is shown: as text, as HTML and as one dict a rank. Runs on the notebook's kernel, below cluster.py."""

from __future__ import annotations

from typing import Any

from distlab.client import arguments, display


class Shown:
    """The part of `Cluster` that only tells."""

    def describe(self) -> list[dict[str, Any]]:
        """One dict a rank: rank, pid, state ("idle", what it does and in which line, or how it died), megabytes, host.

        Memory counts shared pages in proportion (PSS) where the system reports that, otherwise in full (RSS); None of a
        dead rank. Only the ranks of several hosts have a "host".
        """
        return [] if self._ranks is None else self._ranks.describe()

    def __repr__(self) -> str:
        return self._repr_mimebundle_()["text/plain"]

    def _repr_html_(self) -> str:
        return self._repr_mimebundle_()["text/html"]

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return display.cluster(self._headline(), self.describe())

    def _headline(self) -> str:
        if self._ranks is None:
            return f"Cluster({self.n}) {self._why_stopped}"
        engines = "" if self.engines == arguments.check_launcher(None) else f", engines {self.engines}"
        hosts = f" on {' and '.join(dict.fromkeys(self._ranks.hosts))}" if self._ranks.hosts else ""
        more = f", {self.simulated}" if self.simulated else ""
        return f"Cluster({self.n}){hosts}: backend {self.backend}{engines}{more}"
