"""What was found before a person interrupted: it stays with the error.

Called by predict.py and planner.py, on the notebook's kernel. `distlab.sweep` does the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from distlab.tables import count


@contextlib.contextmanager
def keeping(partial: Callable[[], Any], number: Callable[[], int], noun: str) -> Iterator[None]:
    """Give an interrupt the result so far, because minutes of work must not be lost.

    Args:
        partial: returns the result so far; not called if there is nothing in it.
        number: returns how many things are in it.
        noun: for one of them.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        if number():
            error.partial = partial()  # type: ignore[attr-defined]  # only this one has it
            found = f"{count(number(), noun)} predicted before that"
            words = f"{found}: `import sys; sys.last_value.partial` has them."
            error.args = (f"{error}\n{words}".lstrip(), *error.args[1:])
        raise
