"""What a person types: %px and %%px, completion and Shift-Tab in such cells, and errors without it.

The magics have ipyparallel's names and our output, errors and options. Completion keeps the
kernel's own answers, and adds those of rank 0. Runs on the notebook's kernel; put in place by
`%load_ext distlab`, or at the first use of %px after `import distlab`.
"""

from __future__ import annotations

import contextlib
import functools
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from IPython.core.magic import Magics, cell_magic, line_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring
from IPython.display import display as ipython_display

from distlab import arguments
from distlab.errors import ClusterError, DistlabError
from distlab.notebook import interrupts, one_process, paragraphs, questions
from distlab.notebook.cell import Cell, Options, may_pause
from distlab.notebook.cluster import PACKED, Cluster, current_cluster
from distlab.notebook.export import ScriptStep
from distlab.rank import entry
from distlab.wire import pickling

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

ON_RANKS = ("rank", "world_size", "dist")  # which every cluster defines
PX = re.compile(r"\s*%%?px\b")
PX_OPTION = re.compile(r"%%px [^\n]*?(--\w*)$")
EXERCISE = re.compile(r"""\b(?:check|hint)\(["'](\w*)$""")
PYTHON_BELOW = ("capture",)  # cell magics that run what is below them as a cell
KEY_OF_DICT = re.compile(r"""([\w.]+)\[["']([^"'\]]*)$""")  # of a dict, as far as it is typed
HELP = re.compile(r"%%?px\s+(-h|--help)\s*")
DOTTED_NAME = re.compile(r"(?:([\w.]+)\.)?(\w*)$")
ANSWER_SECONDS = 10.0  # for rank 0 to answer


@magics_class
class PxMagics(Magics):
    """Code on the ranks of this notebook's current cluster."""

    shell: InteractiveShell  # there is one, because it has registered the magics

    @line_magic
    @no_var_expand
    def px(self, line: str) -> None:
        """Run one line on every rank."""
        self.cell_px("", line, f"%px {line}")

    @cell_magic("px")
    @magic_arguments("px")
    @argument(
        "--targets",
        metavar="RANKS",
        help="only some ranks: 2, a list such as 0,2 or a slice such as ::2",
    )
    @argument("--local", action="store_true", help="also run the cell in the notebook")
    @argument(
        "--timeout",
        type=float,
        help="seconds before the cell is judged stuck and its ranks are freed",
    )
    @argument(
        "--check",
        action="store_true",
        help="compare the arguments of messages and collectives on the ranks, and say which calls "
        "NCCL lacks",
    )
    @argument("--pdb", action="store_true", help="a rank that raises opens the debugger")
    @argument(
        "--trace",
        action="store_true",
        help="record and show what the ranks do; it stays as cluster.last_trace",
    )
    @argument(
        "--compare",
        action="store_true",
        help="watch what the ranks train, and say whether they agree: replicas, rows, dropout",
    )
    @argument(
        "--export",
        metavar="NAME.py",
        help="then write this and the cells before it into a script for torchrun",
    )
    @argument("--force", action="store_true", help="with --export: replace an existing file")
    @interrupts.held()
    def cell_px(self, line: str, cell: str, source: str = "") -> None:
        """Run the cell on every rank, where `rank`, `world_size`, `torch` and `dist` are defined.

        Examples
        --------
        ::

            %%px
            tensor = torch.ones(1) * rank
            dist.all_reduce(tensor)
            print(tensor.item())
        """
        args = parse_argstring(self.cell_px, line)
        cluster = current_cluster()
        chosen = None
        if args.targets is not None:
            chosen = _ranks_of_targets(args.targets, cluster.n)
        targets = cluster.check_ranks(chosen)
        first = f"%%px {line}".rstrip()
        if source:  # %px: there is no other line
            code = cell
        else:
            source = f"{first}\n{cell}"
            code = with_first_line(first, cell)
        options = Options(
            timeout=args.timeout,
            check=args.check,
            source=source,
            pauses=args.pdb or may_pause(cell.encode()),
            debug=args.pdb,
        )

        def send(view: Any) -> Any:
            return view.execute(code, silent=False, block=False)

        with contextlib.ExitStack() as around:
            if args.compare:
                around.enter_context(_shown_comparison(cluster, targets))
            if args.trace:
                around.enter_context(_shown_trace(cluster, targets))
            sent = Cell.send(cluster.ranks, targets, send, options)
            if args.local:
                with interrupts.allowed():
                    self.shell.run_cell(code)
            sent.finish()
        cluster.steps.append(ScriptStep("cell", tuple(targets), cell))
        if args.export is not None:
            ipython_display(cluster.export(args.export, args.force))


@contextlib.contextmanager
def _shown_trace(cluster: Cluster, targets: list[int]) -> Iterator[None]:
    """Trace what these ranks do, and show the trace at the end, even if the cell fails."""
    with contextlib.ExitStack() as afterwards, cluster.trace(targets) as trace:
        afterwards.callback(ipython_display, trace)
        yield


@contextlib.contextmanager
def _shown_comparison(cluster: Cluster, targets: list[int]) -> Iterator[None]:
    """Watch what these ranks train, and at the end of the cell show whether they agree."""
    # only now: a plain cell needs nothing of it
    from distlab.comparison.verdict import compared_ranks
    from distlab.comparison.watching import entry as comparison_entry
    from distlab.notebook.gathering import gather

    if len(targets) < 2:
        arguments.wrong(
            "--compare compares ranks with each other, so it needs two or more of them."
        )
    ranks = cluster.ranks
    ranks.ready(targets)
    try:
        _, missing = gather(ranks, targets, comparison_entry.begin_watching)
        _raise_unwatched(missing)
        yield
    finally:
        records, missing = gather(ranks, targets, comparison_entry.end_watching)
    _raise_unwatched(missing)
    ipython_display(compared_ranks([records[rank] for rank in targets]))


def _raise_unwatched(missing: Mapping[int, str]) -> None:
    """Raise ClusterError if some ranks cannot be watched; why, by rank."""
    for rank, why in missing.items():
        raise ClusterError(f"rank {rank} cannot be watched: {why}.")


def with_first_line(first: str, cell: str) -> str:
    """The text of a cell as it is compiled: a comment stands in the place of its first line.

    So line 3 of the cell is line 3 for Python, too, and whatever asks Python says what the notebook
    shows: reports, the debugger, warnings, a learner's own traceback. Another magic below %%px is
    called as IPython calls one that is on the first line.

    Args:
        first: the line with %%px.
        cell: what stands below it.
    """
    own = _first_line_of_code(cell)
    if not own.strip().startswith("%%"):
        indent = own[: len(own) - len(own.lstrip())]  # IPython takes off what all lines have
        return f"{indent}# {first}\n{cell}"
    name, _, options = own.strip().removeprefix("%%").partition(" ")
    if name.endswith("?"):  # a question about a magic
        return cell
    above, _, below = cell.partition(own)
    below = below.removeprefix("\n")
    if name in PYTHON_BELOW:
        below = f"# {first}\n{above}# {own}\n{below}"
    return f"# {first}\n{above}get_ipython().run_cell_magic({name!r}, {options!r}, {below!r})\n"


def _first_line_of_code(cell: str) -> str:
    """The first line of a cell that is not blank; "" without one."""
    for line in cell.split("\n"):
        if line.strip():
            return line
    return ""


def _ranks_of_targets(words: str, n: int) -> list[int]:
    """The ranks that --targets means: a list of them, or a slice of all."""
    try:
        if ":" in words:
            bounds = [int(word) if word else None for word in words.split(":")]
            return list(range(n))[slice(*bounds)]
        return [int(word) for word in words.split(",")]
    except (ValueError, TypeError):
        advice = "For example: --targets 0,2 or --targets ::2."
        arguments.refuse("--targets", "a rank, a list of ranks or a slice", words, advice)


# --- completion, Shift-Tab, and what an error means in a cell without %%px ---


def install_magics(shell: Any) -> None:
    """Register %px and %%px, and add the ranks' names to a shell's answers; once."""
    shell.register_magics(PxMagics)
    if _help_for_px not in shell.input_transformers_cleanup:
        shell.input_transformers_cleanup.append(_help_for_px)
    one_process.refuse_blocking_calls()
    kernel = getattr(shell, "kernel", None)
    if kernel is not None and not isinstance(kernel.do_complete, functools.partial):
        kernel.do_complete = functools.partial(_completion_reply, kernel.do_complete)
        kernel.do_inspect = functools.partial(_inspection_reply, kernel.do_inspect)


def _help_for_px(lines: list[str]) -> list[str]:
    """Turn `%%px --help` into `%%px?`.

    IPython refuses a cell magic without a cell before the magic is asked.
    """
    if not lines or not HELP.fullmatch(lines[0]):
        return lines
    has_cell = any(line.strip() for line in lines[1:])
    if has_cell:
        return lines
    return ["%%px?\n"]


def _completion_reply(own: Callable[..., Any], code: str, cursor: int) -> Any:
    """The kernel's reply to a front end that asks how a word may go on."""
    reply = own(code, cursor)
    before = code[:cursor]
    asked = _words_for(code, before)
    if asked is None:
        return reply
    fragment, words = asked
    found = sorted(word for word in words if _may_complete(word, fragment))
    if not found:
        return reply
    start = cursor - len(fragment)
    is_same_word = (reply["cursor_start"], reply["cursor_end"]) == (start, cursor)
    if is_same_word and not KEY_OF_DICT.search(before):
        found += [word for word in reply["matches"] if word not in found]
    return {**reply, "matches": found, "cursor_start": start, "cursor_end": cursor, "metadata": {}}


def _words_for(code: str, before: str) -> tuple[str, Sequence[str]] | None:
    """What distlab knows of the word that a person types.

    Args:
        code: the whole cell.
        before: what stands before the cursor.

    Returns:
        the beginning of the word, and words that may be meant; None where distlab knows none.
    """
    if match := PX_OPTION.fullmatch(before):
        options = re.findall(r"--\w+", PxMagics.cell_px.__doc__ or "")
        return match[1], sorted(set(options))
    if match := EXERCISE.search(before):
        from distlab.checking.exercises import all_exercises  # which imports torch

        return match[1], list(all_exercises())
    if PX.match(code):
        return _words_on_rank_0(before)
    return None


def _words_on_rank_0(before: str) -> tuple[str, Sequence[str]] | None:
    """What rank 0 knows of the word that a person types in a cell for ranks; see `_words_for`."""
    if match := KEY_OF_DICT.search(before):
        path, fragment = match.groups()
        return fragment, _ask(entry.keys_of, path) or []
    if match := DOTTED_NAME.search(before):
        below, fragment = match.groups()
        if not below:
            return fragment, _names_on_rank_0()
        return fragment, _ask(entry.names_below, below) or []
    return None


def _may_complete(word: str, fragment: str) -> bool:
    """Whether a word begins so; private ones only where a person has typed their underscore."""
    if word.startswith("_") and not fragment.startswith("_"):
        return False
    return word.startswith(fragment)


def _inspection_reply(
    own: Callable[..., Any], code: str, cursor: int, detail_level: int = 0, *more: Any
) -> Any:
    """The kernel's reply to a front end that asks about a name: Shift-Tab."""
    from IPython.utils.tokenutil import token_at_cursor

    reply = own(code, cursor, detail_level, *more)
    if not reply["found"] and PX.match(code):
        bundle = _ask(entry.help_for, token_at_cursor(code, cursor), detail_level)
        reply = {**reply, "found": bool(bundle), "data": bundle or {}}
    return reply


def explain(
    shell: Any, kind: type, error: Exception, traceback: Any, tb_offset: int | None = None
) -> None:
    """Show an error of a cell in the notebook, and what to do if the cell was meant for the ranks.

    Called by IPython for names that are not known, and for the kinds of errors that torch raises
    without a group.
    """
    if isinstance(error, NameError):
        shell.showtraceback((kind, error, traceback), tb_offset=tb_offset)
        _explain_name(getattr(error, "name", None))
        return
    if not one_process.needs_ranks(error):
        shell.showtraceback((kind, error, traceback), tb_offset=tb_offset)
        return
    traceback = one_process.without_torch(traceback)
    shell.showtraceback((kind, error, traceback), tb_offset=tb_offset)
    words = (
        "torch.distributed works on the ranks, but this cell ran in the notebook. "
        "Begin the cell with %%px."
    )
    if Cluster.current is None:
        words += " Start the ranks first: cluster = distlab.Cluster(4)."
    paragraphs.say(words, sys.stderr)


def _explain_name(name: str | None) -> None:
    """Say where a name is that the notebook does not have, if the ranks have it."""
    if name in ON_RANKS:
        bring = ""
    elif name in _names_on_rank_0():
        bring = f', or bring it here with cluster.pull("{name}")'
    else:
        return
    words = f"{name} is a variable on the ranks, so begin the cell with %%px{bring}."
    paragraphs.say(words, sys.stderr)


def _names_on_rank_0() -> Sequence[str]:
    """The names that cells can use on rank 0, also while it is busy; none without a cluster."""
    with contextlib.suppress(DistlabError, KeyboardInterrupt):
        if Cluster.current is not None:
            return questions.names(Cluster.current.ranks, 0)
    return ()


def _ask(function: Callable[..., Any], *args: Any) -> Any:
    """What the function returns on rank 0.

    None if there is no cluster, or if the rank is busy or does not answer.
    """
    with contextlib.suppress(DistlabError, KeyboardInterrupt):
        if Cluster.current is not None:
            packed = pickling.pack((function, args, {}), PACKED)
            return questions.peek(Cluster.current.ranks, 0, packed, ANSWER_SECONDS)
    return None
