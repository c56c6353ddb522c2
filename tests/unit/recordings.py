"""What a rank records for a trace, written by hand, with times in milliseconds."""

from functools import partialmethod

from distlab.wire.messages import REMOTE, SERVED
from distlab.wire.recorded import Recorded, RecordedCall, TorchRow

BEGIN = 1_700_000_000_000_000_000  # ns of a machine's clock
MAIN, WORKER = 0, 2


class Rank:
    """What one rank recorded; rows and calls are added in any order.

    Args:
        groups: further groups as (name, generation, ranks); calls name one by its place.
    """

    def __init__(self, world_size, groups=()):
        self.recorded = Recorded([], [])
        self.groups = [("0", 0, tuple(range(world_size))), *groups]
        self.counts = {}

    def clock(self, time):
        return BEGIN + round(time * 1e6)

    def row(self, name, start, end, thread=MAIN, number=-1, annotated=False):
        """A row of the profiler's."""
        self.recorded.rows.append(
            TorchRow(name, annotated, thread, self.clock(start), self.clock(end), number)
        )
        return self

    def call(
        self, op, method, start, end=None, blocking=True, waited=None, group=0, num_bytes=4, **what
    ):
        """A call; posting takes 0.01 ms, and `waited` is when the wait for it begins."""
        waits = [] if waited is None else [(self.clock(waited), self.clock(end))]
        what |= {
            "start": self.clock(start),
            "posted": self.clock(start + 0.01),
            "waits": waits,
            "blocking": blocking,
        }
        if blocking or waits:
            what["end"] = self.clock(end)
        self.recorded.calls.append(RecordedCall(op, method, self.groups[group], num_bytes, **what))
        return self

    def cpp_all_reduce(self, start, num_bytes):
        """An all_reduce that C++ called, as the flight recorder has it."""
        return self.call("all_reduce", "all_reduce", start, blocking=False, num_bytes=num_bytes)

    def message(self, method, peer, start, end, blocking=True, tag=0, group=0, **what):
        key = (method, peer, tag, group)
        self.counts[key] = what.setdefault("sequence", self.counts.get(key, 0) + 1)
        return self.call(
            method, method, start, end, blocking, peer=peer, tag=tag, group=group, **what
        )

    def remote(self, function, number, start, end, waited=None, **what):
        """A remote call; blocking, unless it is waited for from `waited` on."""
        return self.call(
            f"rpc {function}", REMOTE, start, end, waited is None, waited, sequence=number, **what
        )

    def served(self, function, caller, number, start, end):
        self.call(
            function,
            SERVED,
            start,
            end,
            blocking=True,
            peer=caller,
            sequence=number,
            elsewhere=True,
        )
        self.recorded.calls[-1].blocking = False
        return self

    send, recv = partialmethod(message, "send"), partialmethod(message, "recv")

    def all_reduce(self, start, end, gloo=None, **what):
        """An all_reduce; `gloo` is when gloo's own thread worked on it."""
        if gloo is not None:
            self.row("gloo:all_reduce", *gloo, thread=WORKER)
        return self.call("all_reduce", "allreduce", start, end, **what)
