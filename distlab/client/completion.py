"""What a person who types is told about the ranks: completion and Shift-Tab in %%px cells, and what a NameError means.

Runs on the notebook's kernel, put in place by `%load_ext distlab`. The kernel's own answers stay; those of rank 0 are
added.
"""

import functools
import re
import sys
from collections.abc import Callable
from typing import Any

from distlab.client.cluster import Cluster
from distlab.errors import DistlabError
from distlab.rank import entry

ON_RANKS = ("rank", "world_size", "dist")  # which every cluster defines
PX = re.compile(r"\s*%%?px\b")
OPTION = re.compile(r"%%px [^\n]*?(--\w*)$")
EXERCISE = re.compile(r"""\b(?:check|hint)\(["'](\w*)$""")
NAME = re.compile(r"(?:([\w.]+)\.)?(\w*)$")
SECONDS = 10.0  # for rank 0 to answer


def install(shell: Any, options: list[str]) -> None:
    """Add the ranks' names to a shell's answers.

    Args:
        options: of %%px, such as "--targets".
    """
    if shell.custom_exceptions == ():  # another extension's handler stays
        shell.set_custom_exc((NameError,), _explain)
    kernel = getattr(shell, "kernel", None)
    if kernel is not None:
        kernel.do_complete = functools.partial(_complete, kernel.do_complete, options)
        kernel.do_inspect = functools.partial(_inspect, kernel.do_inspect)


def _complete(own: Callable[..., Any], options: list[str], code: str, cursor: int) -> Any:
    """The kernel's reply to a front end that asks how a word may go on."""
    reply, before = own(code, cursor), code[:cursor]
    if match := OPTION.fullmatch(before):
        fragment, words = match[1], options
    elif match := EXERCISE.search(before):
        from distlab.checking import all_exercises  # which imports torch

        fragment, words = match[1], list(all_exercises())
    elif PX.match(code) and (match := NAME.search(before)):
        fragment, words = match[2], _ask(entry.names_below, match[1] or "") or []
    else:
        return reply
    hidden = not fragment.startswith("_")
    found = sorted(word for word in words if word.startswith(fragment) and not (hidden and word.startswith("_")))
    if not found:
        return reply
    start = cursor - len(fragment)
    if (reply["cursor_start"], reply["cursor_end"]) == (start, cursor):
        found += [word for word in reply["matches"] if word not in found]
    kinds = [{"start": start, "end": cursor, "text": word, "type": "rank"} for word in found]
    metadata = {"_jupyter_types_experimental": kinds}
    return {**reply, "matches": found, "cursor_start": start, "cursor_end": cursor, "metadata": metadata}


def _inspect(own: Callable[..., Any], code: str, cursor: int, detail_level: int = 0, *more: Any) -> Any:
    """The kernel's reply to a front end that asks about a name: Shift-Tab."""
    from IPython.utils.tokenutil import token_at_cursor

    reply = own(code, cursor, detail_level, *more)
    if not reply["found"] and PX.match(code):
        bundle = _ask(entry.help_for, token_at_cursor(code, cursor), detail_level)
        reply = {**reply, "found": bool(bundle), "data": bundle or {}}
    return reply


def _explain(shell: Any, kind: type, error: NameError, traceback: Any, tb_offset: int | None = None) -> None:
    """Show a NameError, and what to do if the name is one of the ranks'."""
    shell.showtraceback((kind, error, traceback), tb_offset=tb_offset)
    name = getattr(error, "name", None)
    if name in ON_RANKS or (Cluster.current is not None and name in (_ask(entry.names_below, "") or [])):
        bring = "" if name in ON_RANKS else f', or bring it here with cluster.pull("{name}")'
        print(f"{name} is a variable of the ranks: begin the cell with %%px{bring}.", file=sys.stderr)


def _ask(function: Callable[..., Any], *arguments: Any) -> Any:
    """What the function returns on rank 0; None if there is no cluster, or it does not answer."""
    try:
        return Cluster.current and Cluster.current.call(function, *arguments, ranks=[0], timeout=SECONDS)[0]
    except DistlabError:
        return None
