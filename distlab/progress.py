"""How far a long piece of work has come, shown to a person who looks on, and gone when the work is done.

Called by sweeps.py on the notebook's kernel. Nothing is shown where nobody watches.
"""

from __future__ import annotations

import contextlib
import html
import sys
import time
from collections.abc import Callable, Iterator

from distlab.frontend import notebook_shell, publish, somebody_watches


@contextlib.contextmanager
def progress(total: int) -> Iterator[Callable[[int, str], None]]:
    """Give a function to be told (steps done, what comes next); what it shows is erased at the end.

    Args:
        total: how many steps there are.
    """
    if not somebody_watches():
        yield lambda done, what: None
        return
    began = time.monotonic()
    show, erase = _in_notebook(total) if notebook_shell() is not None else _in_terminal()
    try:
        yield lambda done, what: show(done, f"{done} of {total}, {time.monotonic() - began:.0f} s: {what}")
    finally:
        erase()


def _in_notebook(total: int) -> tuple[Callable[[int, str], None], Callable[[], None]]:
    """Show a bar and a line in an output of the cell; erasing leaves the output there, with nothing in it."""
    place = None

    def show(done: int, line: str) -> None:
        nonlocal place
        bar = f'<progress value="{done}" max="{total}" style="vertical-align:middle"></progress>'
        bundle = {"text/plain": line, "text/html": f"{bar} {html.escape(line)}"}
        place = publish(bundle, update=place) if place is not None else publish(bundle, handle=True)

    def erase() -> None:
        if place is not None:
            publish({"text/plain": ""}, update=place)

    return show, erase


def _in_terminal() -> tuple[Callable[[int, str], None], Callable[[], None]]:
    """Show a line on stderr that the next one writes over."""
    longest = 0

    def show(done: int, line: str) -> None:
        nonlocal longest
        longest = max(longest, len(line))
        print(f"\r{line:<{longest}}", end="", file=sys.stderr, flush=True)

    def erase() -> None:
        print("\r" + " " * longest + "\r", end="", file=sys.stderr, flush=True)

    return show, erase
