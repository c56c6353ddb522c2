"""How far a long measurement has come: a bar that a person sees, and that is gone when the work is done.

Called by sweep.py in the notebook's kernel. Nothing is shown where nobody watches.
"""

from __future__ import annotations

import sys

from tqdm import tqdm

from distlab.compat.ipython import notebook_shell, somebody_watches


def progress(total: int) -> tqdm:
    """A bar to be used in a `with` block: `bar.set_postfix_str` shows what comes next; at the end it is erased.

    Args:
        total: how many steps there are.
    """
    file = sys.stdout if notebook_shell() else sys.stderr  # JupyterLab shows stderr as an error
    look = {"bar_format": "{n_fmt} of {total_fmt} {bar:20} {elapsed}{postfix}", "dynamic_ncols": True, "leave": False}
    return tqdm(total=total, file=file, disable=not somebody_watches(), **look)
