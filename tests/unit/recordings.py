"""Recordings as ranks tell them, written by hand: what distlab.tracing.stop returns, with times in milliseconds."""

from array import array

BEGIN = 1_700_000_000_000_000_000  # ns of a machine's clock
MAIN, WORKER = 1, 2
NS = 1_000_000


class Recorded:
    """What one rank recorded. Rows and calls are added in any order; `told` is the dict.

    Args:
        groups: (name, generation, ranks); calls name a group by its place. ahead: ms of this rank's clock.
    """

    def __init__(self, world_size, groups=(), ahead=0.0):
        self.calls, self.rows, self.names, self.flight = [], array("q"), [], []
        self.groups = [("0", 0, list(range(world_size))), *groups]
        self.begin = BEGIN + round(ahead * NS)
        self.counts = {}

    def told(self):
        return {
            "begin": self.begin,
            "main": MAIN,
            "calls": self.calls,
            "groups": self.groups,
            "rows": self.rows.tobytes(),
            "names": self.names,
            "flight": self.flight,
        }

    def row(self, name, start, end, thread=MAIN, number=-1, annotated=False):
        """A row of the profiler's."""
        if (name, annotated) not in self.names:
            self.names.append((name, annotated))
        place = self.names.index((name, annotated))
        self.rows.extend((place, thread, round(start * NS), round((end - start) * NS), number))
        return self

    def call(self, op, method, start, end, waits=(), **what):
        """A call that Python made; `waits` are (start, end, whether inside of the call)."""
        waits = [(round(a * NS), round(b * NS), inside) for a, b, inside in waits]
        usual = {
            "group": 0,
            "num_bytes": 4,
            "peer": -1,
            "tag": 0,
            "sequence": 0,
            "root": -1,
            "source": -1,
            "failed": False,
            "elsewhere": False,
        }
        times = {"start": round(start * NS), "end": round(end * NS), "waits": waits}
        self.calls.append({"op": op, "method": method, **usual, **times, **what})
        return self

    def message(self, method, peer, start, end, blocking=True, waited=None, **what):
        """A send or recv from `start` to `end`; posting takes 0.01 ms. `waited`: when wait() began."""
        key = (method, peer, what.get("tag", 0), what.get("group", 0))
        self.counts[key] = what.setdefault("sequence", self.counts.get(key, 0) + 1)
        began = start + 0.01 if blocking else waited
        waits = [] if began is None else [(began, end, blocking)]
        return self.call(method if blocking else f"i{method}", method, start, start + 0.01, waits, peer=peer, **what)

    def send(self, peer, start, end, **what):
        return self.message("send", peer, start, end, **what)

    def recv(self, peer, start, end, **what):
        return self.message("recv", peer, start, end, **what)

    def all_reduce(self, start, end, blocking=True, waited=None, gloo=None, **what):
        """An all_reduce; `gloo` is when gloo's own thread worked on it."""
        began = start + 0.01 if blocking else waited
        waits = [] if began is None else [(began, end, blocking)]
        if gloo is not None:
            self.row("gloo:all_reduce", *gloo, thread=WORKER)
        return self.call("all_reduce", "allreduce", start, start + 0.01, waits, **what)
