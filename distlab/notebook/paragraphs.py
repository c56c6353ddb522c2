"""Texts for a person, which break between words where the pane of the notebook ends.

Runs on the notebook's kernel, called by whatever says something beside the outputs of ranks.
JupyterLab breaks plain text in the middle of words; programs that execute notebooks get it alone.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from distlab.compat.ipython import notebook_shell, publish, somebody_watches
from distlab.notebook.display import WRAPPED_CSS
from distlab.words import columns_and_code

ROW_HANG = 4  # columns by which the rest of a row is indented that does not fit into a line


def hanging(lines: Sequence[str], columns: int) -> str:
    """Lines of HTML below another one.

    For a person, the rest of a line that does not fit is indented by some columns.
    """
    if not somebody_watches():
        return "".join(f"\n{line}" for line in lines)
    look = _hang(columns)
    blocks = []
    for line in lines:
        blocks.append(f'<div style="{look}">{line or "&nbsp;"}</div>')
    return "".join(blocks)


def _hang(columns: int) -> str:
    """How the rest of a line is indented that does not fit, as CSS."""
    return f"padding-left:{columns}ch;text-indent:-{columns}ch"


def as_paragraphs(text: str, name: str = "") -> str:
    """A text as HTML that breaks between words where the pane ends.

    The rest of a row of a table is indented there.

    Args:
        text: rows of a table begin with spaces; the last column, code, has a line of its own before
            it breaks.
        name: of the error whose message it is.
    """
    head = f"<b>{name}</b>: " if name else ""
    lines = []
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip())
        if indent:
            lines.append(_row_of_table(line, indent))
            continue
        words = html.escape(line) or "&nbsp;"
        lines.append(f"<div>{head}{words}</div>")
        head = ""  # only the first one has it
    font = "font-family:monospace;font-size:var(--jp-code-font-size,13px);line-height:1.35"
    shade = ""
    if name:
        shade = "background:var(--jp-rendermime-error-background,transparent);padding:2px 4px;"
    return f'<div style="{shade}{font};{WRAPPED_CSS}">{"".join(lines)}</div>'


def _row_of_table(line: str, indent: int) -> str:
    """A row of a table as HTML: where it does not fit, the rest is indented.

    Args:
        line: the row. The last column is code, if there are several.
        indent: with how many spaces it begins.
    """
    columns, code = columns_and_code(line)
    last = ""
    if code:
        last = f'<span style="display:inline-block;text-indent:0">{html.escape(code)}</span>'
    return f'<div style="{_hang(indent + ROW_HANG)}">{html.escape(columns)}{last}</div>'


def show_error(error: BaseException, lines: list[str]) -> list[str]:
    """Show a person an error of distlab's as wide as the pane is.

    JupyterLab breaks the text of an error in the middle of words. Programs that execute notebooks
    get the text alone.

    Args:
        error: the error.
        lines: its traceback, as IPython would show it.

    Returns:
        the lines to show as its traceback instead.
    """
    name = type(error).__name__
    publish({"text/plain": "\n".join(lines), "text/html": as_paragraphs(str(error), name)})
    return [f"{name} (see above)"]


def say(words: str, stream: Any) -> None:
    """Say something beside the outputs; in a person's notebook it breaks where the pane ends.

    Args:
        words: a text.
        stream: stdout or stderr, for all but a person's notebook.
    """
    if notebook_shell() is not None and somebody_watches():
        publish({"text/plain": words, "text/html": as_paragraphs(words)})
    else:
        print(words, file=stream)
