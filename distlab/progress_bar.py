"""`progress_bar`: how far something has got that takes long, while a person watches.

Runs on the notebook's kernel, called by sweep.py and compare.py.
"""

import sys

from tqdm import tqdm

from distlab.compat.ipython import notebook_shell, somebody_watches


def progress_bar(total: int) -> tqdm:
    """A progress bar for a `with` block, which says what comes next; it is erased at the end.

    Nothing is shown if nobody is watching.

    Args:
        total: how many steps there are.
    """
    shown_on = sys.stderr
    if notebook_shell():
        shown_on = sys.stdout  # JupyterLab shows stderr as an error
    return tqdm(
        total=total,
        file=shown_on,
        disable=not somebody_watches(),
        bar_format="{n_fmt} of {total_fmt} {bar:20} {elapsed}{postfix}",
        dynamic_ncols=True,
        leave=False,
    )
