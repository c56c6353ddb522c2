"""%px and %%px on the ranks of the current cluster, with ipyparallel's names and our output, errors and options.

Runs on the notebook's kernel; registered by `%load_ext distlab`, or at the first use after `import distlab`.
"""

import contextlib
import re

from IPython.core.magic import Magics, cell_magic, line_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring
from IPython.display import display as ipython_display

from distlab import text
from distlab.client import waiting
from distlab.client.cell import Cell, Options
from distlab.client.cluster import current_cluster
from distlab.client.export import Step
from distlab.wire.messages import ONE_LINE


@magics_class
class PxMagics(Magics):
    """Code on the ranks of this notebook's current cluster."""

    @line_magic
    @no_var_expand
    def px(self, line: str) -> None:
        """Run one line on every rank."""
        self.cell_px("", f"{line}\n{ONE_LINE}", f"%px {line}")

    @cell_magic("px")
    @magic_arguments("px")
    @argument("--targets", metavar="RANKS", help="only some ranks: 2, a list such as 0,2 or a slice such as ::2")
    @argument("--local", action="store_true", help="also run the cell in the notebook")
    @argument("--timeout", type=float, help="seconds before the cell is judged stuck and its ranks are freed")
    @argument("--check", action="store_true", help="compare the arguments of messages and collectives on the ranks")
    @argument("--trace", action="store_true", help="record and show what the ranks do; it stays as cluster.last_trace")
    @argument("--export", metavar="NAME.py", help="then write this and the cells before it into a script for torchrun")
    @argument("--force", action="store_true", help="with --export: replace an existing file")
    @waiting.held()
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
        args, cluster = parse_argstring(self.cell_px, line), current_cluster()
        targets = cluster.check_ranks(None if args.targets is None else _chosen(args.targets, cluster.n))
        options = Options(args.timeout, args.check, source=source or f"%%px {line}".rstrip() + f"\n{cell}")
        with contextlib.ExitStack() as afterwards, contextlib.ExitStack() as meanwhile:
            if args.trace:  # the trace is shown even if the cell fails
                afterwards.callback(ipython_display, meanwhile.enter_context(cluster.trace(targets)))
            sent = Cell(cluster.ranks, targets, lambda view: view.execute(cell, silent=False, block=False), options)
            if args.local:
                with waiting.allowed():
                    self.shell.run_cell(cell)
            sent.finish()
        cluster.steps.append(Step("cell", tuple(targets), cell))
        if args.export is not None:
            ipython_display(cluster.export(args.export, args.force))


def options() -> list[str]:
    """The options of %%px: "--targets" and so on."""
    return sorted(set(re.findall(r"--\w+", PxMagics.cell_px.__doc__)))


def _chosen(words: str, n: int) -> list[int]:
    """The ranks that --targets means: a list of them, or a slice of all."""
    try:
        if ":" in words:
            return list(range(n))[slice(*[int(word) if word else None for word in words.split(":")])]
        return [int(word) for word in words.split(",")]
    except (ValueError, TypeError):
        advice = "For example: --targets 0,2 or --targets ::2."
        text.refuse("--targets", "a rank, a list of ranks or a slice", words, advice)
