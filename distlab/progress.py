"""How far a long piece of work has come, shown to a person who looks on, and gone when the work is done.

Called by sweeps.py on the notebook's kernel. Nothing is shown where nobody watches.
"""

from __future__ import annotations

import contextlib
import html
import time
from collections.abc import Callable, Iterator

from distlab.frontend import Place


@contextlib.contextmanager
def progress(total: int) -> Iterator[Callable[[int, str], None]]:
    """Give a function to be told (steps done, what comes next); what it shows is erased at the end.

    Args:
        total: how many steps there are.
    """
    place, began = Place(), time.monotonic()

    def show(done: int, what: str) -> None:
        line = f"{done} of {total}, {time.monotonic() - began:.0f} s: {what}"
        bar = f'<progress value="{done}" max="{total}" style="vertical-align:middle"></progress>'
        place.show({"text/plain": line, "text/html": f"{bar} {html.escape(line)}"})

    try:
        yield show
    finally:
        place.erase()
