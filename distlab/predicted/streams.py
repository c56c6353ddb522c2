"""Streams and events of a device that is not there, which programs and torch's own FSDP2 get from torch.cpu.

torch.cpu has a Stream and an Event, which do nothing; FSDP2 calls them on a CPU as on a GPU.
Runs in the recorder's process.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch

from distlab.compat.torch_changed import replace_cpu_streams
from distlab.predicted.nodes import Call, Kernel, Node, Stream


class Timeline:
    """The nodes that a program has noted, and what each stream will wait for.

    Attributes:
        nodes: in the order in which they were called.
        current: returns the stream that the program is on.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.current: Callable[[], Stream] = lambda: 0
        self._last: dict[Stream, int] = {}
        self._awaited: defaultdict[Stream, set[int]] = defaultdict(set)

    def ends(self, stream: Stream) -> set[int]:
        """Places of the nodes that end last on a stream, as of now."""
        return {self._last[stream]} | self._awaited[stream] if stream in self._last else set(self._awaited[stream])

    def wait(self, stream: Stream, ends: set[int]) -> None:
        """What comes next on a stream waits for these nodes."""
        self._awaited[stream] |= ends

    def compute(self, *what: Any) -> None:
        """The device computes on the current stream."""
        stream = self.current()
        self._add(Kernel(stream, tuple(self._awaited.pop(stream, ())), *what))

    def call(self, stream: Stream, *what: Any) -> int:
        """Begin a collective or a message, once the current stream has come here; returns its place."""
        self.wait(stream, self.ends(self.current()))
        return self._add(Call(stream, tuple(self._awaited.pop(stream)), *what))

    def _add(self, node: Node) -> int:
        self.nodes.append(node)
        self._last[node.stream] = len(self.nodes) - 1
        return len(self.nodes) - 1


def install(timeline: Timeline) -> None:
    """Give torch.cpu streams and events that note for a timeline which stream waits for what."""

    class Event(torch.cpu.Event):
        def __init__(self, *_: Any, **__: Any):
            self.ends: set[int] = set()

        def record(self, stream: Any = None) -> Event:
            self.ends = timeline.ends((stream or torch.cpu.current_stream()).number)
            return self

        def wait(self, stream: Any = None) -> None:
            (stream or torch.cpu.current_stream()).wait_event(self)

        def synchronize(self) -> None:
            self.wait()

    class Stream:
        made = 0

        def __init__(self, *_: Any, **__: Any):
            self.number, Stream.made = Stream.made, Stream.made + 1

        def record_event(self, event: Any = None) -> Event:
            return (event or Event()).record(self)

        def wait_event(self, event: Any) -> None:
            timeline.wait(self.number, event.ends)

        def wait_stream(self, stream: Any) -> None:
            timeline.wait(self.number, timeline.ends(stream.number))

    replace_cpu_streams(Stream, Event)
    timeline.current = lambda: torch.cpu.current_stream().number
