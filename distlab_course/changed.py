"""A program with a piece of its text replaced, so that a lesson shows a fix without the rest.

Runs on the notebook's kernel, called by lab 23.
"""

import inspect
import linecache
import textwrap
from collections.abc import Callable
from typing import Any

from distlab.arguments import refuse


def changed(program: Callable[..., Any], old: str, new: str) -> Callable[..., Any]:
    """The program with one piece of its text replaced.

    Runs on: anywhere.

    Args:
        program: a function that was defined in a cell or a file. It stays as it is.
        old: a piece of its text, which is there once.
        new: what stands there instead. It may use the names that the program sees.

    Raises:
        ArgumentError: `old` is not there, or there several times.
    """
    source = textwrap.dedent(inspect.getsource(program))
    times = source.count(old)
    if times != 1:
        rule = f"a piece of {program.__name__} that is there once"
        refuse("old", rule, old, f"It is there {times} times.")
    text = source.replace(old, new)
    file = f"<{program.__name__} with {new}>"
    # where tracebacks and reports look for lines
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    defined: dict[str, Any] = {}
    exec(compile(text, file, "exec"), program.__globals__, defined)
    return defined[program.__name__]
