"""What a person sees while ranks start or a cell runs: a sign of life that is gone when it is over.

Called by ranks.py and cell.py, on the notebook's kernel. What stays, and is saved, comes from display.py.
"""

from __future__ import annotations

import contextlib
import html
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from distlab import interrupts
from distlab.display import Item, as_html, as_text, collect
from distlab.errors import rank_list
from distlab.frontend import Place, notebook_shell

LIVE_AFTER_SECONDS = 1.0
TICK_SECONDS = 0.25


class Watch:
    """Waits for the ranks of a cell, and shows what they write meanwhile when somebody is there to see it.

    Args:
        result: ipyparallel's AsyncResult. targets: its ranks.
        live_after: seconds before the newest lines are shown; None never.

    Attributes:
        place: where they are shown.
    """

    def __init__(self, result: Any, targets: Sequence[int], live_after: float | None = LIVE_AFTER_SECONDS):
        self._result, self._targets, self._live_after = result, list(targets), live_after
        self.place = Place()

    def wait(self, limit: float | None, on_tick: Callable[[], str | bool]) -> bool:
        """True when every rank has ended, False after `limit` seconds (None: no limit).

        Args:
            on_tick: is called meanwhile; True ends the wait, a text is shown as what the ranks do.
        """
        began = time.monotonic()
        while True:
            seconds = time.monotonic() - began
            left = None if limit is None else limit - seconds
            with interrupts.allowed():
                if self._result.wait(TICK_SECONDS if left is None else max(0.0, min(TICK_SECONDS, left))):
                    return True
            if left is not None and left <= TICK_SECONDS:
                return False
            doing = on_tick()
            if doing is True:
                return False
            if self._live_after is not None and seconds + TICK_SECONDS >= self._live_after:
                self._update(seconds + TICK_SECONDS, doing or "")

    def unfinished(self) -> list[int]:
        """The ranks that have not answered yet."""
        return [rank for rank, child in self._children() if not child.done()]

    def replies(self) -> dict[int, Any]:
        """What the ranks that have answered answered; an exception object where ipyparallel reports one."""
        return {rank: child.exception() or child.result() for rank, child in self._children() if child.done()}

    def _children(self) -> list[tuple[int, Any]]:
        return list(zip(self._targets, self._result._children, strict=True))

    def _update(self, seconds: float, doing: str) -> None:
        busy = self.unfinished()
        head = doing or f"{rank_list(busy)} busy" if busy else "collecting output"
        head = f"{seconds:.0f} s: {head}"
        items = [
            Item(i.kind, i.ranks, "\n".join(i.text.splitlines()[-5:])) for i in collect(self._result, self._targets)
        ]
        words = {"text/plain": f"{head}\n{as_text(items)}", "text/html": f"<i>{html.escape(head)}</i>{as_html(items)}"}
        self.place.show(words)


@contextlib.contextmanager
def starting(n: int, backend: str) -> Iterator[None]:
    """A sign of life while ranks start; afterwards one line that is the same on every run."""
    place, ready = Place(), threading.Event()
    words = f"starting {n} rank{'s' if n > 1 else ''} ..."

    def tick() -> None:
        began = time.monotonic()
        while not ready.wait(0.5):
            place.show({"text/plain": f"{words} {time.monotonic() - began:.0f} s"})

    place.show({"text/plain": words})
    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    line = f"The cluster did not start: {n} ranks were asked for."
    try:
        yield
        line = f"{n} rank{'s are' if n > 1 else ' is'} ready ({backend})."
    finally:
        ready.set()
        thread.join()
        if notebook_shell() is not None:
            place.leave({"text/plain": line})
        place.erase()
