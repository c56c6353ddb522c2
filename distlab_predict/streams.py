"""Streams and events of a device that is not there, which programs and torch's own FSDP2 get from
torch.cpu.

torch.cpu has a Stream and an Event, which do nothing; FSDP2 calls them on a CPU as on a GPU.
Runs in the recorder's process.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Set
from typing import Any

import torch

from distlab_predict.nodes import Call, Kernel, Node, Stream
from distlab_predict.torch_changed import replace_cpu_streams


class Timeline:
    """The nodes that a program has noted, and what each stream will wait for.

    Attributes:
        nodes: in the order in which they were called.
        current: returns the stream that the program is on.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.current: Callable[[], Stream] = lambda: 0
        self._ends: defaultdict[Stream, frozenset[int]] = defaultdict(frozenset)

    def ends(self, stream: Stream) -> frozenset[int]:
        """Places of the nodes for which what comes next on a stream waits: the last one on it, and
        awaited ones.
        """
        return self._ends[stream]

    def wait(self, stream: Stream, ends: Set[int]) -> None:
        """What comes next on a stream waits for these nodes, too."""
        self._ends[stream] |= ends

    def compute(self, *what: Any) -> None:
        """The device computes on the current stream."""
        self._add(self.current(), Kernel, *what)

    def call(self, stream: Stream, *what: Any) -> int:
        """Begin a collective or a message, once the current stream has come here; returns its
        place.
        """
        self.wait(stream, self.ends(self.current()))
        return self._add(stream, Call, stream, *what)

    def _add(self, stream: Stream, kind: type[Node], *what: Any) -> int:
        place = len(self.nodes)
        self.nodes.append(kind(tuple(self._ends[stream]), *what))
        self._ends[stream] = frozenset({place})
        return place


def install(timeline: Timeline) -> None:
    """Give torch.cpu streams and events that note for a timeline which stream waits for what."""

    class Event(torch.cpu.Event):
        def __init__(self, *_: Any, **__: Any):
            self.ends: Set[int] = frozenset()

        def record(self, stream: Any = None) -> Event:
            self.ends = timeline.ends(stream or torch.cpu.current_stream())
            return self

        def wait(self, stream: Any = None) -> None:
            (stream or torch.cpu.current_stream()).wait_event(self)

        def synchronize(self) -> None:
            self.wait()

    class Stream:
        def __init__(self, *_: Any, **__: Any):
            """Without the device and the priority that it may be given."""

        def record_event(self, event: Any = None) -> Event:
            return (event or Event()).record(self)

        def wait_event(self, event: Any) -> None:
            timeline.wait(self, event.ends)

        def wait_stream(self, stream: Any) -> None:
            timeline.wait(self, timeline.ends(stream))

    replace_cpu_streams(Stream, Event)
    timeline.current = torch.cpu.current_stream
