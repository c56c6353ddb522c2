"""Stacks of processes, read from the texts that other tools write of them.

Known are what `py-spy dump` prints, with its locals or without them, what Python's faulthandler
writes, the pages of torch's debug server, which have one of these for each rank, and a terminal
that torchrun has written into, with `[default0]:` before each line. Pure functions; run by
`distlab explain` in its own process, called by stacks_report.py.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

# before a line that torchrun shows of a rank: [default0]: with its local rank, [rank0]: by torch
PREFIX = re.compile(r"\[(?:default|trainer|worker|rank)(\d+)\]:\s?")
# of a page of the debug server: "=== Rank 0: http://...", <h2>Rank 0: http://...
RANK = re.compile(r"\s*(?:===|<h2>)\s*Rank (\d+): ")
PROCESS = re.compile(r"Process (\d+): ?(.*)")
SPY_THREAD = re.compile(r'Thread (?:0x[0-9A-Fa-f]+|\d+)? ?\(([^)]*)\)(?:: "(.*)")?')
FAULT_THREAD = re.compile(
    r"(?:(Current thread|Thread) 0x([0-9a-f]+)(?: \[(.*)\])?|Stack) \(most recent call first\):"
)
SPY_FRAME = re.compile(r" {4}(\S.*) \((.+?)(?::(\d+))?\)")
FAULT_FRAME = re.compile(r'\s*File "(.*)", line (\d+|\?+) in (.*)')
SPY_VALUE = re.compile(r" {12}(\w+): (.*)")
BOOTSTRAP = "_bootstrap"  # the outermost function of a thread that threading has started
TAG = re.compile(r"^\s*<(?:pre|p)>")  # before the first line of a stack on a page


@dataclass
class Frame:
    """One call of a stack.

    Attributes:
        function: its name, with its class if the tool knows it.
        file: as the tool names it; py-spy leaves out what is the same for all files of a package.
        number: of the line; 0 if it is not known.
        values: the arguments and local variables that py-spy has shown, in its words.
    """

    function: str
    file: str
    number: int = 0
    values: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The function without its class: "forward", "wrapper"."""
        return self.function.rpartition(".")[2]


@dataclass
class Thread:
    """One thread of a process.

    Attributes:
        identity: what names it in the text; "" if nothing does.
        frames: its calls, innermost first.
        state: py-spy's word for it, "idle" or "active+gil"; "" if the tool does not say.
        name: its name; "" if the tool does not say.
    """

    identity: str
    frames: list[Frame] = field(default_factory=list)
    state: str = ""
    name: str = ""


@dataclass
class Stack:
    """All threads of one process.

    Attributes:
        rank: of the process, if the text says which; None if not.
        pid: the number of the process; 0 if the text does not say it.
        threads: as the text has them.
    """

    rank: int | None = None
    pid: int = 0
    threads: list[Thread] = field(default_factory=list)

    @property
    def main(self) -> Thread | None:
        """The main thread, or the one that is most like it; None if there is no frame at all."""
        with_frames = [thread for thread in self.threads if thread.frames]
        for thread in with_frames:
            if thread.name == "MainThread":
                return thread
        for thread in reversed(with_frames):  # faulthandler writes the main thread last
            if thread.frames[-1].name != BOOTSTRAP:
                return thread
        return with_frames[-1] if with_frames else None


def read_stacks(text: str) -> list[Stack]:
    """The stacks in a text, one for each process.

    Of a process that was looked at several times, it is the last one.
    """
    readers: dict[str, _Reader] = {}
    for line in html.unescape(text).splitlines():
        prefix = PREFIX.match(line)
        label = ""
        if prefix:
            label = prefix[1]
            line = line[prefix.end() :]
        reader = readers.setdefault(label, _Reader(int(label) if label else None))
        reader.read(line.rstrip())
    found = []
    for reader in readers.values():
        found += [stack for stack in reader.stacks if stack.main is not None]
    return _last_of_each(found)


def _last_of_each(stacks: list[Stack]) -> list[Stack]:
    """The last stack of each process, in the order of their first ones."""
    last: dict[tuple[int | None, int], Stack] = {}
    for stack in stacks:
        last[stack.rank, stack.pid] = stack
    return list(last.values())


class _Reader:
    """Reads a text line by line, and keeps where it is in it.

    Attributes:
        stacks: what was read until now.
    """

    def __init__(self, rank: int | None) -> None:
        self.stacks: list[Stack] = []
        self._rank = rank  # of what follows
        self._stack: Stack | None = None
        self._thread: Thread | None = None

    def read(self, line: str) -> None:
        """Read the next line; one that means nothing ends the thread before it."""
        line = TAG.sub("", line)
        rank = RANK.match(line)
        process = PROCESS.match(line)
        if rank:
            self._rank = int(rank[1])
            self._stack = None
        elif process:
            self._begin_stack(int(process[1]))
        elif not self._reads_thread(line):
            self._read_in_thread(line)

    def _begin_stack(self, pid: int = 0) -> Stack:
        """Begin another process."""
        self._stack = Stack(self._rank, pid)
        self._thread = None
        self.stacks.append(self._stack)
        return self._stack

    def _reads_thread(self, line: str) -> bool:
        """Begin a thread if the line does so; whether it does."""
        spy = SPY_THREAD.fullmatch(line)
        if spy:
            self._begin_thread(Thread("", state=spy[1], name=spy[2] or ""))
            return True
        fault = FAULT_THREAD.search(line)
        if fault is None:
            return False
        thread = Thread(fault[2] or "", name=fault[3] or "")
        if self._stack is not None and self._is_next_dump(self._stack, thread):
            self._stack = None
        self._begin_thread(thread)
        return True

    def _is_next_dump(self, stack: Stack, thread: Thread) -> bool:
        """Whether faulthandler begins from the start: a thread comes a second time."""
        if not thread.identity:
            return bool(stack.threads)
        return any(one.identity == thread.identity for one in stack.threads)

    def _begin_thread(self, thread: Thread) -> None:
        stack = self._stack or self._begin_stack()
        stack.threads.append(thread)
        self._thread = thread

    def _read_in_thread(self, line: str) -> None:
        """Read a frame of the thread, or a value of its last frame."""
        thread = self._thread
        if thread is None:
            return
        value = SPY_VALUE.fullmatch(line)
        fault = FAULT_FRAME.fullmatch(line)
        spy = SPY_FRAME.fullmatch(line)
        if value and thread.frames:
            thread.frames[-1].values[value[1]] = value[2]
        elif fault:
            thread.frames.append(Frame(fault[3], fault[1], _number(fault[2])))
        elif spy:
            thread.frames.append(Frame(spy[1], spy[2], _number(spy[3])))


def _number(digits: str | None) -> int:
    """The number of a line; 0 if the tool did not know it."""
    if digits is None or not digits.isdigit():
        return 0
    return int(digits)


def by_rank(stacks: Sequence[Stack], ranks: Sequence[int | None]) -> dict[int, Stack]:
    """The stacks by rank; numbered in order if two have the same rank, or one has none."""
    if len(set(ranks)) < len(ranks):
        return dict(enumerate(stacks))
    numbered = {}
    for rank, stack in zip(ranks, stacks, strict=True):
        if rank is None:
            return dict(enumerate(stacks))
        numbered[rank] = stack
    return dict(sorted(numbered.items()))
