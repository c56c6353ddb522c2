"""Which line of the program calls an operator. In the process of a rank that is recorded.

recorder.py asks for it at each operator, so it must be quick. In a backward pass the program's
only line on the stack is `loss.backward()`, so there it is the line of the operator in the forward
pass whose gradient is computed. Tried with torch 2.13.
"""

import os
import sys
from types import FrameType

import torch

from distlab.wire.source import AT_A_PROMPT, LIBRARY, PACKAGE, Line

PREDICTIONS = PACKAGE + "_predict" + os.sep
TORCH = os.path.dirname(os.path.realpath(torch.__file__)) + os.sep


def number_in_forward() -> int:
    """The number of the operator of the forward pass that is called now."""
    # torch counts before it calls the operator
    return torch._C._autograd._get_sequence_nr() - 1


def number_in_backward() -> int:
    """The number of the operator of the forward pass whose gradient is computed; -1 for none."""
    node = torch._C._current_autograd_node()
    if node is None:
        return -1
    return node._sequence_nr()


class Lines:
    """Lines of the program that runs.

    torch gives each operator of the forward pass with a gradient a number, which the operators of
    the backward pass have again.
    """

    def __init__(self) -> None:
        self._is_programs: dict[str, bool] = {}  # by the file's name
        self._words: dict[tuple[str, int], str] = {}  # by the file's name and the line's number
        self._of_forward: dict[int, str] = {}  # by the operator's number

    def here(self) -> str:
        """The line that calls now, as "train.py:12"; "" if none does."""
        in_backward = torch._C._current_graph_task_id() != -1
        if in_backward and not torch.is_grad_enabled():
            line = self._of_forward.get(number_in_backward())
            return line or self._on_stack(sys._getframe(1))
        line = self._on_stack(sys._getframe(1))
        self._of_forward.setdefault(number_in_forward(), line)
        return line

    def _on_stack(self, frame: FrameType | None) -> str:
        """The innermost line of the program."""
        while frame is not None:
            name = frame.f_code.co_filename
            is_programs = self._is_programs.get(name)
            if is_programs is None:
                is_programs = self._is_programs[name] = self._belongs_to_program(name)
            if is_programs:
                return self._in_words(name, frame.f_lineno)
            frame = frame.f_back
        return ""

    def _in_words(self, name: str, number: int) -> str:
        words = self._words.get((name, number))
        if words is None:
            words = Line(number, "", file=name).position
            self._words[name, number] = words
        return words

    def _belongs_to_program(self, name: str) -> bool:
        """Whether a file is the program's: not Python's, torch's or distlab's."""
        if name.startswith("<"):
            return name.startswith(AT_A_PROMPT)
        path = os.path.realpath(name)
        if path.startswith((TORCH, PREDICTIONS, PACKAGE + os.sep)):
            return False
        folders = path.split(os.sep)
        is_installed = "site-packages" in folders or "dist-packages" in folders
        return is_installed or not path.startswith(LIBRARY)
