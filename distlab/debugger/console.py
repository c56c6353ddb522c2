"""`breakpoint()` on a rank: Python's debugger, whose lines a person types elsewhere.

The person types into the notebook, or into pytest's terminal. Runs on every rank, on its main
thread, in the frames of the learner's code. What the debugger writes goes through the watchdog's
channel to debugger/turns.py, which asks the person; the watchdog's thread brings the answer.
"""

import code
import contextlib
import io
import os
import pdb
import queue
import re
import sys
import threading
from collections.abc import Callable
from traceback import walk_stack
from types import FrameType
from typing import Any

from distlab.rank.this_rank import THIS_RANK
from distlab.wire.messages import Answer
from distlab.wire.source import line_of, runs_learners_code

NOBODY = (
    "breakpoint() needs somebody who types: run the cell in JupyterLab, Colab or VS Code, "
    "a script in a terminal, pytest with -s"
)
# in what pdb says of a breakpoint: the file of a cell, whose name nobody knows
_CELL_FILE = re.compile(r"(?<= at )[^\n]*ipykernel_\d+/\d+\.py:(\d+)")


class RemoteConsole(io.StringIO):
    """The stdin and stdout of this rank's debugger, at whose other end a person may be.

    What the debugger writes is sent to the notebook when the debugger reads, and the line that the
    person types is what it reads. One object a process, `CONSOLE`.

    Attributes:
        send: sends the notebook a message.
        was_used: whether a line has come since the cell began.
        is_asking: whether the rank waits for one.
        is_open: whether the rank has come to a breakpoint in this cell.
        after_failure: whether a cell that raises opens the debugger.
    """

    def __init__(self) -> None:
        super().__init__()
        self.send: Callable[[Answer], None] = lambda _: None
        self.was_used = False
        self.is_asking = False
        self.is_open = False
        self.after_failure = False
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._is_abandoned = False  # nobody could type, or the person has left: nobody is asked

    def receive(self, line: str | None) -> None:
        """Take a line that the person has typed; None if nobody can type, or the person has left.

        Runs on: the watchdog's thread.
        """
        self.was_used = True
        self._lines.put(line)

    def ask(self, prompt: str = "") -> str | None:
        """Show the person all that was written, and this prompt; return the line that is typed.

        None without a person, or if the rank is interrupted while it waits for one.
        """
        written = self.getvalue() + prompt
        self._clear()
        line = None
        self.is_asking = True
        with contextlib.suppress(KeyboardInterrupt):
            if not self._is_abandoned:
                self.send(Answer(0, asks=written))
                line = self._lines.get()
        self.is_asking = False
        self._is_abandoned = line is None
        return line

    # typeshed has io.StringIO below the streams of bytes as well
    def readline(self, *_: Any) -> str:  # type: ignore[override]
        return self.ask() or ""  # at its end, which the debugger takes as `quit`

    def require_user(self) -> None:
        """Raise a RuntimeError if nobody is there who types."""
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError(
                "breakpoint() must be called on a rank's main thread, but this one serves a remote "
                "call"
            )
        if not self.is_open and self.ask() is None:
            raise RuntimeError(NOBODY)
        self.is_open = True

    def reset(self) -> None:
        """Forget the person: a cell or a call has ended, and no line of what follows is traced."""
        if self.is_open:
            sys.settrace(None)
        self.was_used = False
        self.is_open = False
        self._is_abandoned = False
        self._lines = queue.SimpleQueue()
        self._clear()

    def _clear(self) -> None:
        """Drop what was written."""
        self.seek(0)
        self.truncate()


CONSOLE = RemoteConsole()


class Debugger(pdb.Pdb):
    """Python's debugger, with the notebook's numbers of lines."""

    def __init__(self) -> None:
        super().__init__(
            stdin=CONSOLE,
            stdout=CONSOLE,
            skip=["distlab.*", "IPython.*"],
            nosigint=True,
            readrc=False,
        )
        self.prompt = f"(rank {THIS_RANK.rank}) "

    def get_stack(self, frame: Any, traceback: Any) -> tuple[list[Any], int]:
        """The learner's frames, and what they call; not what runs a cell or a test."""
        stack, current = super().get_stack(frame, traceback)
        first = 0
        for place, (outer, _) in enumerate(stack):
            if runs_learners_code(outer):
                first = place
                break
        return stack[first:], max(current - first, 0)

    def stop_here(self, frame: FrameType) -> bool:
        """Whether to stop in a frame: only while code of the learner's has led to it."""
        if not super().stop_here(frame):
            return False
        return any(runs_learners_code(caller) for caller, _ in walk_stack(frame))

    def user_call(self, frame: FrameType, argument_list: None) -> None:
        """Stop where a function is called.

        Every statement of a cell is a program of its own: that one begins or ends is nothing to
        stop at.
        """
        if frame.f_code.co_name != "<module>":
            super().user_call(frame, argument_list)

    def user_return(self, frame: FrameType, return_value: Any) -> None:
        """Stop where a function returns; for the end of a statement, see `user_call`."""
        if frame.f_code.co_name != "<module>":
            super().user_return(frame, return_value)
        elif not self.lastcmd:  # nobody has typed a command: breakpoint() is the statement
            self.interaction(frame, None)

    def format_stack_entry(self, frame_lineno: tuple[FrameType, int], lprefix: str = ": ") -> str:
        """A line of the stack: one of a cell has the notebook's number, and no name of a file."""
        frame, number = frame_lineno
        if not runs_learners_code(frame):
            return super().format_stack_entry(frame_lineno, lprefix)
        line = line_of(frame.f_code.co_filename, number, frame.f_code.co_name)
        where = f"line {line.number}"
        if not line.is_in_cell:
            where = f"{os.path.basename(line.file)}, {where}"
        if line.function:
            where = f"{where} in {line.function}"
        return f"{where}{lprefix}{line.text}"

    def message(self, msg: str) -> None:
        """Write what pdb says, without the file of a cell."""
        super().message(_CELL_FILE.sub(r"line \1", msg))

    def error(self, msg: str) -> None:
        """Write what is wrong with a command, without the file of a cell."""
        super().error(_CELL_FILE.sub(r"line \1", msg))

    def do_rank(self, arg: str) -> None:
        """rank number

        Go to the debugger of another rank that has also stopped.
        Without a number it is the variable rank, as in rank == 0.
        """
        self.default(f"rank {arg}".rstrip())  # debugger/turns.py takes the line with a number

    def do_interact(self, arg: str) -> None:
        """Type Python with the names of this frame; exit() comes back to the debugger."""
        frame = self.curframe
        if frame is None:  # pdb has one whenever it takes a command
            return
        names = {**frame.f_globals, **frame.f_locals}
        banner = "Python, with the names of this frame; exit() goes back."
        ipythons_hook = sys.displayhook
        sys.displayhook = sys.__displayhook__  # IPython's shows values as outputs of the cell
        with (
            contextlib.redirect_stdout(CONSOLE),
            contextlib.redirect_stderr(CONSOLE),
            contextlib.suppress(SystemExit),
        ):
            try:
                code.interact(banner, readfunc=_console_line, local=names, exitmsg="")
            finally:
                sys.displayhook = ipythons_hook


def _console_line(prompt: str) -> str:
    """A line of Python that the person types; EOFError if nobody is there any more."""
    # Python's own prompts, as a rank has IPython's
    line = CONSOLE.ask("... " if prompt == sys.ps2 else ">>> ")
    if line is None:
        raise EOFError
    return line.rstrip("\n")


def pause(*_: Any, **__: Any) -> None:
    """What breakpoint() does on a rank.

    Raises:
        RuntimeError: nobody can type, as where a program executes the notebook.
    """
    CONSOLE.require_user()
    Debugger().set_trace(sys._getframe(1))


def post_mortem(error: BaseException) -> None:
    """Look at where an exception was raised.

    Does nothing if another rank is at fault, or where nobody can type.
    """
    from distlab.rank.raised import is_at_fault

    if is_at_fault(error):
        with contextlib.suppress(RuntimeError):
            CONSOLE.require_user()
            debugger = Debugger()
            debugger.reset()
            debugger.interaction(None, error.__traceback__)
