"""What every function of torch.distributed does here, tried out instead of looked up. Lab 31 shows
the result.

`probe` runs in the notebook's kernel, `try_case` on every rank, each case in a `run` of its own:
what hangs is freed.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial, reduce
from math import prod
from operator import and_, or_, xor
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

import distlab

# by backend and device, by case: "yes", "no", "WRONG", "HANGS" or "DIES"
Outcomes = dict[str, dict[str, str]]
SECONDS = 30.0  # that a case has: long, because a busy machine can stop a process for a while
DTYPES = ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "complex64"]
DTYPES += ["int64", "int32", "int16", "int8", "uint8", "bool"]
# what all_reduce must give, by Python's own arithmetic
REDUCED = {"SUM": sum, "AVG": fmean, "PRODUCT": prod, "MIN": min, "MAX": max}
REDUCED |= {
    name: partial(reduce, bits) for name, bits in (("BAND", and_), ("BOR", or_), ("BXOR", xor))
}


def same(_: object, got: Any, *expected: float) -> bool:
    """Whether tensors, or objects, have these values, a value each, after the call that is
    evaluated before them.
    """
    parts = got if isinstance(got, (list, tuple)) else [got]
    return all(
        bool(torch.as_tensor(part == value).all())
        for part, value in zip(parts, expected, strict=True)
    )


def pair(at: Any, send: Any, receive: Any) -> bool:
    """Rank 0 sends its number to rank 1, with calls that return None or what is to be waited for."""
    work = send(at.mine, 1, group=at.group) if at.rank == 0 else None
    work = receive(at.room, group=at.group) if at.rank == 1 else work
    if isinstance(work, dist.Work):
        work.wait()
    return at.rank != 1 or same(None, at.room, 1)


def ring(at: Any) -> bool:
    before, after = (at.rank - 1) % at.n, (at.rank + 1) % at.n
    calls = [
        dist.P2POp(dist.isend, at.mine, after, at.group),
        dist.P2POp(dist.irecv, at.room, before, at.group),
    ]
    return same([work.wait() for work in dist.batch_isend_irecv(calls)], at.room, before + 1)


def uneven_gather(at: Any) -> bool:
    parts = [at.full((size,), 0) for size in at.values]
    return same(
        dist.all_gather(parts, at.full((at.rank + 1,), at.rank + 1), at.group), parts, *at.values
    )


def reduced(at: Any, op: str, name: str) -> bool:
    """all_reduce with that op on that dtype, of 1, 2, 3, 1, 2, 3 and so on; of bool, False, True,
    False and so on.
    """
    given = [rank % 2 == 1 if name == "bool" else rank % 3 + 1 for rank in range(at.n)]
    values, dtype = (given[at.rank], REDUCED[op](given)), getattr(torch, name)
    mine, right = (torch.full((4,), float(value)).to(dtype) for value in values)
    dist.all_reduce(mine := mine.to(at.device), getattr(dist.ReduceOp, op), at.group)
    return torch.allclose(mine.cpu().to(torch.complex64), right.to(torch.complex64), rtol=0.01)


# their names before torch 2.13
gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
FUNCTIONS = {
    "send, recv": lambda at: pair(at, dist.send, partial(dist.recv, src=0)),
    "isend, irecv": lambda at: pair(at, dist.isend, partial(dist.irecv, src=0)),
    "recv from any source": lambda at: pair(at, dist.send, dist.recv),
    "batch_isend_irecv": ring,
    "broadcast": lambda at: same(dist.broadcast(at.mine, 1, at.group), at.mine, 2),
    "reduce": lambda at: (
        same(dist.reduce(at.mine, 1, group=at.group), at.mine, at.total) or at.rank != 1
    ),
    "all_reduce": lambda at: same(dist.all_reduce(at.mine, group=at.group), at.mine, at.total),
    "gather": lambda at: same(
        dist.gather(at.mine, at.of_root(at.parts), 1, at.group), *at.on_root(at.parts)
    ),
    "all_gather": lambda at: same(
        dist.all_gather(at.parts, at.mine, at.group), at.parts, *at.values
    ),
    "all_gather uneven": uneven_gather,
    "all_gather_single": lambda at: same(
        gather_single(at.whole, at.mine, at.group), at.whole.chunk(at.n), *at.values
    ),
    "scatter": lambda at: same(
        dist.scatter(at.room, at.of_root(at.all), 1, at.group), at.room, at.rank + 1
    ),
    "reduce_scatter": lambda at: same(
        dist.reduce_scatter(at.room, at.all, group=at.group), at.room, at.share
    ),
    "reduce_scatter_single": lambda at: same(
        scatter(at.room, torch.cat(at.all), group=at.group), at.room, at.share
    ),
    "all_to_all": lambda at: same(
        dist.all_to_all(at.parts, [at.mine] * at.n, at.group), at.parts, *at.values
    ),
    "all_to_all_single": lambda at: same(
        dist.all_to_all_single(at.whole, at.mine.repeat(at.n), group=at.group),
        at.whole.chunk(at.n),
        *at.values,
    ),
    "barrier": lambda at: dist.barrier(at.group) is None,
    "monitored_barrier": lambda at: dist.monitored_barrier(at.group) is None,
    "broadcast_object_list": lambda at: same(
        dist.broadcast_object_list(at.own, 1, at.group), at.own, 2
    ),
    "all_gather_object": lambda at: same(
        dist.all_gather_object(at.got, *at.own, at.group), at.got, *at.values
    ),
    "gather_object": lambda at: same(
        dist.gather_object(*at.own, at.of_root(at.got), 1, at.group), *at.on_root(at.got)
    ),
    "scatter_object_list": lambda at: same(
        dist.scatter_object_list(at.own, at.of_root([*at.values]), 1, at.group), at.own, at.rank + 1
    ),
}


@dataclass(frozen=True, repr=False)
class Probe:
    """What came of every case; it shows itself as tables.

    Attributes:
        outcomes: a word for each case, by backend and device.
        messages: what torch, or distlab, said where it was not done, by case, by backend and
            device.
    """

    outcomes: Outcomes
    messages: Outcomes

    def __repr__(self) -> str:
        """The functions by backend; the dtypes that each op reduces; the messages, each with its
        cases.
        """
        rows = [["", *self.outcomes]]
        rows += [[name, *(words[name] for words in self.outcomes.values())] for name in FUNCTIONS]
        lines = ["".join(f"{word:24}" for word in row).rstrip() for row in rows]
        for head, words in self.outcomes.items():
            lines += ["", f"all_reduce on {head} works with"]
            lines += [
                f"  {op:8} {' '.join(d for d in DTYPES if words[f'{op} {d}'] == 'yes')}"
                for op in REDUCED
            ]
            for message in dict.fromkeys(self.messages[head].values()):
                cases = ", ".join(
                    case for case, other in self.messages[head].items() if other == message
                )
                lines.append(f"{head}: {cases}\n    {message}")
        return "\n".join(lines)


def probe(cluster: distlab.Cluster, backends: Iterable[str] = ("gloo",)) -> Probe:
    """Try every function that communicates, and every ReduceOp with every dtype, on each backend
    and device.

    The ranks of the cluster keep their variables, unless a case ends one of them.

    Args:
        cluster: of 2 ranks or more.
        backends: their names; those that are not built are left out, as are devices that are not
            there.
    """
    outcomes, messages = {}, {}
    devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    there = [
        name
        for name in backends
        if all(cluster.run(lambda *_, name=name: dist.is_backend_available(name)))
    ]
    for backend, device in [(backend, device) for backend in there for device in devices]:
        words, reasons = outcomes[f"{backend} {device}"], messages[f"{backend} {device}"] = {}, {}
        for case in (*FUNCTIONS, *(f"{op} {dtype}" for op in REDUCED for dtype in DTYPES)):
            words[case], message = attempt(cluster, try_case, case, backend, device)
            reasons |= {case: message} if message else {}
    return Probe(outcomes, messages)


def attempt(cluster: distlab.Cluster, *call: Any) -> tuple[str, str]:
    """What comes of a case, as a word, and why it was not done; the cluster is whole again
    afterwards.
    """
    try:
        return ("yes" if all(cluster.run(*call, timeout=SECONDS)) else "WRONG"), ""
    except distlab.RankError as error:
        return "no", error.failures[0].message.strip().partition("\n")[0]
    except (distlab.RankDied, distlab.RankTimeout, distlab.DeadlockError) as error:
        cluster.restart()
        return ("DIES" if isinstance(error, distlab.RankDied) else "HANGS"), str(error).partition(
            "\n"
        )[0]


def try_case(rank: int, world_size: int, case: str, backend: str, device: str) -> bool:
    """Call one case in a new group, in which a rank has its number plus one at first; whether it
    gets what it must.
    """
    full = partial(torch.full, dtype=torch.float32, device=device)
    n, values = world_size, range(1, world_size + 1)
    at = SimpleNamespace(
        rank=rank,
        n=n,
        group=dist.new_group(backend=backend),
        full=full,
        values=values,
        device=device,
    )
    at.mine, at.room, at.whole = full((4,), rank + 1), full((4,), 0), full((4 * n,), 0)
    at.all, at.parts = [full((4,), value) for value in values], [full((4,), 0) for _ in values]
    at.total, at.share, at.own, at.got = sum(values), n * (rank + 1), [rank + 1], [None] * n
    at.of_root = lambda value: value if rank == 1 else None
    at.on_root = lambda parts: (parts, *values) if rank == 1 else ([],)
    try:
        right = FUNCTIONS[case](at) if case in FUNCTIONS else reduced(at, *case.split())
        # a rank with nothing to do would close its connections while others still make theirs
        dist.barrier()
        return right
    finally:
        dist.destroy_process_group(at.group)
