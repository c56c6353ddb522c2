"""What every function of torch.distributed does here, tried out instead of looked up, for lab 31.

`probe` runs in the notebook's kernel, `try_case` on every rank, each case in a `run` of its own:
what hangs is freed.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial, reduce
from itertools import product
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
DTYPES = [
    *("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "complex64"),
    *("int64", "int32", "int16", "int8", "uint8", "bool"),
]
# what all_reduce must give, by Python's own arithmetic
REDUCED: dict[str, Callable[[Iterable[Any]], Any]] = {
    "SUM": sum,
    "AVG": fmean,
    "PRODUCT": prod,
    "MIN": min,
    "MAX": max,
    "BAND": partial(reduce, and_),
    "BOR": partial(reduce, or_),
    "BXOR": partial(reduce, xor),
}


def same(_: object, got: Any, *expected: float) -> bool:
    """Whether tensors, or objects, have these values, a value each.

    The first argument is the call that gives them their values: it is evaluated before the others.
    """
    parts = got if isinstance(got, (list, tuple)) else [got]
    pairs = zip(parts, expected, strict=True)
    return all(bool(torch.as_tensor(part == value).all()) for part, value in pairs)


def pair(at: Any, send: Any, receive: Any) -> bool:
    """Rank 0 sends its number to rank 1; a call returns None, or a Work that is waited for."""
    work = None
    if at.rank == 0:
        work = send(at.mine, 1, group=at.group)
    elif at.rank == 1:
        work = receive(at.room, group=at.group)
    if isinstance(work, dist.Work):
        work.wait()
    return at.rank != 1 or same(None, at.room, 1)


def ring(at: Any) -> bool:
    """Each rank sends its number to the next rank."""
    next_rank = (at.rank + 1) % at.n
    prev_rank = (at.rank - 1) % at.n
    calls = [
        dist.P2POp(dist.isend, at.mine, next_rank, at.group),
        dist.P2POp(dist.irecv, at.room, prev_rank, at.group),
    ]
    for work in dist.batch_isend_irecv(calls):
        work.wait()
    return same(None, at.room, prev_rank + 1)


def uneven_gather(at: Any) -> bool:
    """all_gather of tensors whose sizes are the ranks' numbers plus one."""
    parts = [at.full((size,), 0) for size in at.values]
    mine = at.full((at.rank + 1,), at.rank + 1)
    return same(dist.all_gather(parts, mine, at.group), parts, *at.values)


def reduced(at: Any, op: str, name: str) -> bool:
    """Whether all_reduce with that op on that dtype gives what Python's arithmetic gives.

    The ranks have 1, 2, 3, 1, 2, 3 and so on; of bool, False, True, False and so on.
    """
    given: list[int] = [rank % 3 + 1 for rank in range(at.n)]
    if name == "bool":
        given = [rank % 2 == 1 for rank in range(at.n)]
    dtype = getattr(torch, name)
    mine = torch.full((4,), float(given[at.rank])).to(dtype).to(at.device)
    right = torch.full((4,), float(REDUCED[op](given))).to(dtype)
    dist.all_reduce(mine, getattr(dist.ReduceOp, op), at.group)
    return torch.allclose(mine.cpu().to(torch.complex64), right.to(torch.complex64), rtol=0.01)


# their names before torch 2.13
gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
# by name, a call, and whether each rank then has what it must have; `at` is what try_case makes
FUNCTIONS: dict[str, Callable[[Any], bool]] = {
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
        dist.all_gather_object(at.got, at.own[0], at.group), at.got, *at.values
    ),
    "gather_object": lambda at: same(
        dist.gather_object(at.own[0], at.of_root(at.got), 1, at.group), *at.on_root(at.got)
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
        """The functions by backend, the dtypes that each op reduces, and the messages by case."""
        rows = [["", *self.outcomes]]
        for name in FUNCTIONS:
            rows.append([name, *(words[name] for words in self.outcomes.values())])
        lines = ["".join(f"{word:24}" for word in row).rstrip() for row in rows]
        for head, words in self.outcomes.items():
            lines += ["", f"all_reduce on {head} works with"]
            for op in REDUCED:
                dtypes = [dtype for dtype in DTYPES if words[f"{op} {dtype}"] == "yes"]
                lines.append(f"  {op:8} {' '.join(dtypes)}")
            cases: dict[str, list[str]] = {}  # by message
            for case, message in self.messages[head].items():
                cases.setdefault(message, []).append(case)
            for message, names in cases.items():
                lines.append(f"{head}: {', '.join(names)}\n    {message}")
        return "\n".join(lines)


def probe(cluster: distlab.Cluster, backends: Iterable[str] = ("gloo",)) -> Probe:
    """Try every function that communicates, and every ReduceOp with every dtype.

    They are tried on each backend and device. The ranks of the cluster keep their variables, unless
    a case ends one of them.

    Args:
        cluster: of 2 ranks or more.
        backends: their names; those that are not built are left out, as are devices that are not
            there.
    """
    outcomes: Outcomes = {}
    messages: Outcomes = {}
    devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    cases = [*FUNCTIONS, *(f"{op} {dtype}" for op in REDUCED for dtype in DTYPES)]
    there = [backend for backend in backends if all(cluster.run(is_built, backend))]
    for backend, device in product(there, devices):
        words: dict[str, str] = {}
        reasons: dict[str, str] = {}
        for case in cases:
            words[case], reason = attempt(cluster, try_case, case, backend, device)
            if reason:
                reasons[case] = reason
        outcomes[f"{backend} {device}"] = words
        messages[f"{backend} {device}"] = reasons
    return Probe(outcomes, messages)


def is_built(rank: int, world_size: int, backend: str) -> bool:
    """Whether the torch of a rank has this backend."""
    return dist.is_backend_available(backend)


def attempt(cluster: distlab.Cluster, *call: Any) -> tuple[str, str]:
    """What comes of a case, as a word, and why it was not done.

    The cluster is whole again afterwards.
    """
    try:
        right = all(cluster.run(*call, timeout=SECONDS))
        return ("yes" if right else "WRONG"), ""
    except distlab.RankError as error:
        return "no", error.failures[0].message.strip().partition("\n")[0]
    except (distlab.RankDied, distlab.RankTimeout, distlab.DeadlockError) as error:
        cluster.restart()
        word = "DIES" if isinstance(error, distlab.RankDied) else "HANGS"
        return word, str(error).partition("\n")[0]


def try_case(rank: int, world_size: int, case: str, backend: str, device: str) -> bool:
    """Call one case in a new group, and return whether this rank gets what it must.

    At first each rank has its number plus one.
    """
    full = partial(torch.full, dtype=torch.float32, device=device)
    values = range(1, world_size + 1)
    at = SimpleNamespace(
        rank=rank,
        n=world_size,
        group=dist.new_group(backend=backend),
        full=full,
        values=values,
        device=device,
        mine=full((4,), rank + 1),
        room=full((4,), 0),  # for what one rank sends
        parts=[full((4,), 0) for _ in values],  # for what all ranks send
        whole=full((4 * world_size,), 0),  # the same in one tensor
        all=[full((4,), value) for value in values],  # a tensor for each rank
        total=sum(values),
        share=world_size * (rank + 1),  # of this rank in the sum of what all ranks send
        own=[rank + 1],  # as an object
        got=[None] * world_size,  # for all ranks' objects
        # what rank 1, the root, gives, and what it must have got
        of_root=lambda value: value if rank == 1 else None,
        on_root=lambda parts: (parts, *values) if rank == 1 else ([],),
    )
    try:
        right = FUNCTIONS[case](at) if case in FUNCTIONS else reduced(at, *case.split())
        # a rank with nothing to do would close its connections while others still make theirs
        dist.barrier()
        return right
    finally:
        dist.destroy_process_group(at.group)
