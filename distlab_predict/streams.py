"""What a rank has its device do, in the order of its calls, and the streams that it does it on.

recorder.py, group.py and memory.py use the log, and rank_children.py installs the streams, in the
process of a rank that is recorded. torch.cpu has a Stream and an Event, which do nothing; programs,
and torch's own FSDP2, call them on a CPU as on a GPU. Here they get others, which note which stream
waits for what.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from distlab_predict.launches import CALL, OPERATOR, READ
from distlab_predict.no_data import NoData
from distlab_predict.nodes import Call, Kernel, Node, Stream, Wait
from distlab_predict.torch_changed import put, replace_streams

Parts = Callable[[int, tuple[int, ...]], list[Node]]


class Part(NamedTuple):
    """Where a part of a program begins.

    Attributes:
        node, wait, mark: how many nodes, waits, and marks there were before.
        host: of the log, before.
    """

    node: int
    wait: int
    mark: int
    host: float


class Stretch(NamedTuple):
    """What was noted in a part; what depends on nothing of it has marks.

    Attributes:
        nodes, waits: in their order.
        ends: what the next node of a stream depends on, if that has changed.
        host: of the log, at the end.
    """

    nodes: list[Node]
    waits: list[Wait]
    ends: dict[Stream, frozenset[int]]
    host: float


class NodeLog:
    """The nodes that a program has noted, and what each stream will wait for.

    Attributes:
        nodes: in the order in which they were called.
        current: returns the stream that the program is on.
        line: returns the line of the program that calls, as of `Kernel`.
        touch: is given what a collective or a message reads and writes, before its node is noted.
        is_functional: whether the collective that is called is one of DTensor's.
        waits: of the program for its device.
        host: what the processor has done since the launch of the last node, as launches.py counts.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.current: Callable[[], Stream] = lambda: 0
        self.line: Callable[[], str] = lambda: ""
        self.touch: Callable[[list[Tensor], list[Tensor]], None] = lambda *_: None
        self.is_functional = False
        self.waits: list[Wait] = []
        self.host = 0.0
        self._ends: defaultdict[Stream, frozenset[int]] = defaultdict(frozenset)
        # what stands behind each mark, which is the number -1 of the first one, -2 of the second
        self._marked: list[frozenset[int]] = []
        self._is_in_part = False

    def ends(self, stream: Stream) -> frozenset[int]:
        """Indices of the nodes that the next node of this stream depends on."""
        return self._ends[stream]

    def wait(self, stream: Stream, ends: Set[int]) -> None:
        """Have the next node of this stream depend on these nodes as well."""
        if self._marked and not self._is_in_part:
            ends = self._behind(ends)
        self._ends[stream] |= ends

    def compute(
        self,
        name: str,
        flops: int,
        num_bytes: int,
        again: bool = False,
        kind: str = "",
        shape: tuple[int, ...] = (),
        dtype: str = "",
        line: str | None = None,
    ) -> None:
        """Note a kernel on the current stream; the arguments are those of `Kernel`.

        Args:
            line: None to look for it.
        """
        if line is None:
            line = self.line()
        stream = self.current()
        after = self._after(stream)
        host = self.host + OPERATOR
        node = Kernel(after, name, flops, num_bytes, again, kind, shape, dtype, line, host)
        self._add(stream, node)

    def call(
        self,
        stream: Stream,
        name: str,
        members: tuple[int, ...],
        sent: tuple[int, ...],
        peer: int | None = None,
    ) -> int:
        """Note a collective or a message, which waits for what the current stream has done so far.

        Args:
            stream, name, members, sent, peer: as of `Call`.

        Returns:
            The index of its node.
        """
        done_so_far = self.ends(self.current())
        self.wait(stream, done_so_far)
        host = self.host + CALL
        node = Call(self._after(stream), stream, name, members, sent, peer, self.line(), host)
        return self._add(stream, node)

    def call_parts(self, make: Parts) -> None:
        """Note nodes that are one operator, of which the last one ends last.

        Args:
            make: is given the index of the first one, and what they wait for, and returns them.
        """
        stream = self.current()
        made = make(len(self.nodes), self._after(stream))
        made[0] = replace(made[0], host=self.host + made[0].host)
        for node in made:
            self._add(stream, node)

    def read(self, stream: Stream | None = None) -> None:
        """Note that the program waits until a stream, the current one, has done all so far."""
        if stream is None:
            stream = self.current()
        self.read_after(self.ends(stream))

    def read_all(self, *_: Any) -> None:
        """Note that the program waits until all streams have done all so far."""
        self.read_after(frozenset().union(*self._ends.values()))

    def read_after(self, ends: Set[int]) -> None:
        """Note that the program waits for the ends of these nodes."""
        if self._marked and not self._is_in_part:
            ends = self._behind(ends)
        self.waits.append(Wait(len(self.nodes), tuple(sorted(ends))))
        self.host += READ

    def _after(self, stream: Stream) -> tuple[int, ...]:
        return tuple(sorted(self._ends[stream]))

    def _add(self, stream: Stream, node: Node) -> int:
        """Note a node, which is now the one that the next node of its stream depends on."""
        index = len(self.nodes)
        self.nodes.append(node)
        self.host = 0.0
        self._ends[stream] = frozenset({index})
        return index

    # --- parts of a program that are like others ---

    def begin_part(self) -> Part:
        """Have nodes depend on marks from here on, instead of what streams have done so far.

        repeats.py compares parts, and repeats them: what is before a part is another thing each
        time.
        """
        part = Part(len(self.nodes), len(self.waits), len(self._marked), self.host)
        for stream, ends in self._ends.items():
            self._marked.append(ends)
            self._ends[stream] = frozenset({-len(self._marked)})
        self.host = 0.0
        self._is_in_part = True
        return part

    def noted_since(self, part: Part) -> Stretch:
        """What was noted in a part, with marks; before it ends."""
        ends = {}
        for place, (stream, own) in enumerate(self._ends.items(), part.mark + 1):
            if own != {-place}:
                ends[stream] = own
        return Stretch(self.nodes[part.node :], self.waits[part.wait :], ends, self.host)

    def end_part(self, part: Part) -> None:
        """Put what streams have done before a part in the places of its marks."""
        self._is_in_part = False
        nodes = self.nodes
        for index in range(part.node, len(nodes)):
            after = nodes[index].after
            if after and after[0] < 0:
                nodes[index] = replace(nodes[index], after=tuple(sorted(self._behind(after))))
        waits = self.waits
        for number in range(part.wait, len(waits)):
            ends = self._behind(waits[number].ends)
            waits[number] = waits[number]._replace(ends=tuple(sorted(ends)))
        for stream, own in self._ends.items():
            self._ends[stream] = self._behind(own)
        if len(nodes) == part.node:
            self.host += part.host
        else:
            first = nodes[part.node]
            nodes[part.node] = replace(first, host=part.host + first.host)

    def set_ends(self, ends: Mapping[Stream, frozenset[int]]) -> None:
        """Say what each stream has done at the end of a part that was repeated."""
        self._ends.update(ends)

    def _behind(self, ends: Iterable[int]) -> frozenset[int]:
        """The nodes that these are, or stand for."""
        found: set[int] = set()
        for end in ends:
            if end < 0:
                found |= self._marked[-1 - end]
            else:
                found.add(end)
        return frozenset(found)


def install(log: NodeLog) -> None:
    """Give torch streams and events that note for a log which stream waits for what."""

    class EventOfLog(torch.cpu.Event):
        def __init__(self, *_: Any, **__: Any):
            self.ends: Set[int] = frozenset()

        def record(self, stream: Any = None) -> None:
            self.ends = log.ends(stream or torch.cpu.current_stream())

        def wait(self, stream: Any = None) -> None:
            (stream or torch.cpu.current_stream()).wait_event(self)

        def synchronize(self) -> None:
            self.wait()
            log.read_after(self.ends)

        def query(self) -> bool:
            return True

        def elapsed_time(self, _: Any) -> NoData:
            """Milliseconds, which nobody has measured."""
            return NoData()

    class StreamOfLog:
        def __init__(self, *_: Any, **__: Any):
            """Without the device and the priority that it may be given."""

        def record_event(self, event: Any = None) -> EventOfLog:
            event = event or EventOfLog()
            event.record(self)
            return event

        def wait_event(self, event: Any) -> None:
            log.wait(self, event.ends)

        def wait_stream(self, stream: Any) -> None:
            log.wait(self, log.ends(stream))

        def synchronize(self) -> None:
            log.wait(torch.cpu.current_stream(), log.ends(self))
            log.read(self)

        def query(self) -> bool:
            return True

        def is_capturing(self) -> bool:
            return False

    replace_streams(StreamOfLog, EventOfLog)
    for owner in (torch.cuda, torch.accelerator):
        put(owner, "synchronize", log.read_all)
    log.current = torch.cpu.current_stream
