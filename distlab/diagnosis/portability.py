"""What a program did that works on gloo and may fail on NCCL: the portability report.

Pure functions over what the ranks have seen (wire/portability.py), called on the notebook's kernel
by checked.py, and in the launcher of a script. Each rule has its source, which was read for torch
2.13; only what the source says of every such program is called certain.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator

from distlab.diagnosis import nccl_orders
from distlab.diagnosis.nccl_orders import AllSeen, OnRank
from distlab.diagnosis.nccl_report import Finding, Place, Portability
from distlab.wire.portability import Seen, SeenCall
from distlab.wire.recorded import GroupKey
from distlab.wire.source import Line
from distlab.words import grouped

TORCH_DOCS = "https://docs.pytorch.org/docs/stable/distributed.html"
TORCH_SOURCE = "https://github.com/pytorch/pytorch/blob/v2.13.0/torch/csrc/distributed/c10d"
NCCL_DOCS = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/usage"

# Types of tensors that NCCL's backend knows: NCCLUtils.hpp. Complex ones become pairs of real ones
# before they come to a backend.
NCCL_TYPES = {
    *("int8", "uint8", "int32", "int64", "bool"),
    *("float16", "bfloat16", "float32", "float64"),
    *("float8_e5m2", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2fnuz"),
}
BITWISE = ("BAND", "BOR", "BXOR")
# how many calls of a group each of these makes
OF_OBJECTS = {
    "all_gather_object": 2,
    "gather_object": 2,
    "broadcast_object_list": 2,
    "scatter_object_list": 3,
    "send_object_list": 2,
    "recv_object_list": 2,
}
BATCH = "batch_isend_irecv"
LIBRARY = "a call of a library"  # in the place of a line of the program


def portability(seen: AllSeen) -> Portability:
    """What the ranks did that works on gloo and may fail on NCCL."""
    findings = [*_of_calls(seen), *_of_groups(seen), *_of_orders(seen)]
    findings.sort(key=lambda finding: not finding.is_certain)
    calls: Counter[str] = Counter()
    for one in seen.values():
        for call, count in one.calls.items():
            calls[call.op] += count
    return Portability(tuple(findings), calls.total(), len(calls))


# --- single calls ---


def _of_calls(seen: AllSeen) -> Iterator[Finding]:
    """Findings for which each call is looked at alone."""
    yield from _if_any(
        _places(seen, lambda call: call.method == "recv_anysource"),
        "recv from any source",
        "NCCL must know the sender, so give recv its src.",
        f"{TORCH_SOURCE}/ProcessGroupNCCL.hpp",
        is_certain=True,
    )
    yield from _if_any(
        _places(seen, lambda call: call.method == "allgather_coalesced"),
        "all_gather_coalesced",
        "NCCL's backend lacks it. Call all_gather for each tensor.",
        f"{TORCH_SOURCE}/ProcessGroupNCCL.cpp",
        is_certain=True,
    )
    yield from _if_any(
        _places(seen, lambda call: call.method == "monitored_barrier"),
        "monitored_barrier",
        "Only gloo has it. Call barrier instead, or make a gloo group for it.",
        f"{TORCH_DOCS}#torch.distributed.monitored_barrier",
        is_certain=True,
    )
    yield from _if_any(
        _places(seen, lambda call: call.reduce_op in BITWISE),
        "ReduceOp.BAND, BOR or BXOR",
        "NCCL reduces by SUM, AVG, PREMUL_SUM, PRODUCT, MIN and MAX only.",
        f"{TORCH_DOCS}#torch.distributed.ReduceOp",
        is_certain=True,
    )
    yield from _types(seen)
    yield from _if_any(
        _places(seen, lambda call: call.is_sparse),
        "a sparse tensor",
        "NCCL takes dense ones only.",
        f"{TORCH_SOURCE}/ProcessGroupNCCL.cpp",
        is_certain=True,
    )
    yield from _if_any(
        _places(seen, _is_blind_barrier),
        "barrier as the first call of its group, without a device",
        "NCCL then guesses which GPU to use, and may hang if the guess is wrong. "
        "Call barrier(device_ids=[local_rank]), or give init_process_group a device_id.",
        f"{TORCH_DOCS}#torch.distributed.barrier",
    )
    yield from _if_any(
        _places(seen, lambda call: call.is_direct and call.is_left),
        "a call whose Work nobody waited for",
        "On NCCL only wait() makes the GPU wait for the call, so code that uses the tensor "
        "without it may run too early.",
        f"{TORCH_DOCS}#synchronous-and-asynchronous-collective-operations",
    )
    yield from _if_any(
        _objects_in_loops(seen),
        "objects sent in a loop",
        "NCCL sends them through the current GPU, which torch.cuda.set_device must have chosen, "
        "and every call waits for the GPU. Send tensors instead.",
        f"{TORCH_DOCS}#torch.distributed.all_gather_object",
    )


def _types(seen: AllSeen) -> Iterator[Finding]:
    """Tensors of a type that NCCL's backend refuses."""
    unknown = set()
    for one in seen.values():
        for call in one.calls:
            unknown |= set(call.dtypes) - NCCL_TYPES
    if unknown:
        yield Finding(
            f"a tensor of type {', '.join(sorted(unknown))}",
            "NCCL does not know that type.",
            f"{TORCH_SOURCE}/NCCLUtils.hpp",
            _places(seen, lambda call: not NCCL_TYPES.issuperset(call.dtypes)),
            is_certain=True,
        )


def _is_blind_barrier(call: SeenCall) -> bool:
    is_barrier = call.is_direct and call.method == "barrier"
    return is_barrier and call.is_first and not call.names_device


def _objects_in_loops(seen: AllSeen) -> tuple[Place, ...]:
    """Places at which a rank has sent objects more than once."""
    places = _places(seen, lambda call: call.is_direct and call.op in OF_OBJECTS)
    found = []
    for place in places:
        count = place.count // OF_OBJECTS[place.op]
        if count > 1:
            found.append(Place(place.ranks, place.line, place.op, count))
    return tuple(found)


# --- groups ---


def _of_groups(seen: AllSeen) -> Iterator[Finding]:
    """Findings about the use of a group."""
    yield from _on_cpu(seen)
    yield from _if_any(
        _on_shared_devices(seen),
        "several ranks of a group on one GPU",
        "NCCL needs a GPU of its own for each rank.",
        f"{NCCL_DOCS}/communicators.html",
        is_certain=True,
    )
    yield from _if_any(
        _by_several_threads(seen),
        "a group that several threads use",
        "NCCL allows one thread at a time, and the order of the calls must be the same on all "
        "ranks. Let one thread make them, or have the threads take turns.",
        f"{NCCL_DOCS}/threadsafety.html",
    )
    yield from _if_any(
        _batches_of_some(seen),
        "batch_isend_irecv as the first call of a group, on some of its ranks",
        "On NCCL all ranks of the group must take part in that first call.",
        f"{TORCH_DOCS}#torch.distributed.batch_isend_irecv",
    )


def _on_cpu(seen: AllSeen) -> Iterator[Finding]:
    """Tensors on the CPU in groups that will be NCCL's, because the program names it."""
    on_gpus = {rank: one for rank, one in seen.items() if one.has_gpu}
    without = {rank: one for rank, one in seen.items() if not one.has_gpu}
    what = "tensors on the CPU in a group for which the program names NCCL"
    source = f"{TORCH_DOCS}#backends"
    yield from _if_any(
        _places_on_cpu(on_gpus), what, "NCCL takes tensors on GPUs only.", source, is_certain=True
    )
    yield from _if_any(
        _places_on_cpu(without),
        what,
        "NCCL takes tensors on GPUs only. There is no GPU here: where there is one, "
        "the program must put them on it.",
        source,
    )


def _places_on_cpu(seen: AllSeen) -> tuple[Place, ...]:
    groups = {group for one in seen.values() for group in one.nccl_groups}
    return _places(seen, lambda call: call.group in groups and "cpu" in call.devices)


def _on_shared_devices(seen: AllSeen) -> tuple[Place, ...]:
    """Places of calls with tensors on a GPU that another rank of the group uses as well."""
    users: defaultdict[tuple[GroupKey, str, str], set[int]] = defaultdict(set)
    for rank, one in seen.items():
        for call in one.calls:
            for device in call.devices:
                if device in one.gpus:
                    users[call.group, one.host, one.gpus[device]].add(rank)
    shared = {key for key, ranks in users.items() if len(ranks) > 1}

    def is_shared(one: Seen, call: SeenCall) -> bool:
        gpus = [one.gpus[device] for device in call.devices if device in one.gpus]
        return any((call.group, one.host, gpu) in shared for gpu in gpus)

    found = {}
    for rank, one in seen.items():
        calls = {call: count for call, count in one.calls.items() if is_shared(one, call)}
        found[rank] = Seen(calls=calls)
    return _places(found, lambda call: True)


def _by_several_threads(seen: AllSeen) -> tuple[Place, ...]:
    """Places of calls in groups that more than one thread of a rank uses."""
    found = {}
    for rank, one in seen.items():
        direct = {call: count for call, count in one.calls.items() if call.is_direct}
        threads = grouped((call.group, call.thread) for call in direct)
        several = {group for group, numbers in threads.items() if len(set(numbers)) > 1}
        calls = {call: count for call, count in direct.items() if call.group in several}
        found[rank] = Seen(calls=calls)
    return _places(found, lambda call: True)


def _batches_of_some(seen: AllSeen) -> tuple[Place, ...]:
    """Places of batches that were the first call of a group, if not every member has made one."""
    first: defaultdict[GroupKey, set[int]] = defaultdict(set)
    for rank, one in seen.items():
        for call in one.calls:
            if call.is_direct and call.is_first and call.op == BATCH:
                first[call.group].add(rank)
    groups = {group for group, ranks in first.items() if not ranks.issuperset(group[2])}
    return _places(seen, lambda call: call.group in groups and call.is_first and call.op == BATCH)


# --- orders ---


def _of_orders(seen: AllSeen) -> Iterator[Finding]:
    """Findings about the order of calls; none where something was left out."""
    if not all(one.is_whole for one in seen.values()):
        return
    yield from _if_any(
        _folded(nccl_orders.tags_in_other_order(seen)),
        "messages that are received in another order than they are sent",
        "NCCL ignores tags and takes messages in the order of the calls.",
        f"{TORCH_DOCS}#torch.distributed.isend",
        is_certain=True,
    )
    yield from _if_any(
        _folded(nccl_orders.messages_that_block_each_other(seen)),
        "two ranks that both send first, or both receive first",
        "NCCL carries out the messages of two ranks one after another, so both may wait forever. "
        "Begin them together with batch_isend_irecv.",
        f"{NCCL_DOCS}/p2p.html",
    )
    yield from _if_any(
        _in_order(nccl_orders.groups_in_a_circle(seen)),
        "collectives of several groups in different orders",
        "NCCL may hang unless all ranks begin them in the same order.",
        f"{TORCH_DOCS}#torch.distributed.new_group",
    )


# --- places ---


def _if_any(
    places: tuple[Place, ...], what: str, why: str, source: str, is_certain: bool = False
) -> Iterator[Finding]:
    """The finding, if there is a place for it."""
    if places:
        yield Finding(what, why, source, places, is_certain)


def _places(seen: AllSeen, is_meant: Callable[[SeenCall], bool]) -> tuple[Place, ...]:
    """The places of calls, with one row for ranks that made as many calls at the same line."""
    counts: Counter[tuple[int, str, Line | None, str]] = Counter()
    for rank, one in seen.items():
        for call, count in one.calls.items():
            if is_meant(call):
                counts[rank, call.file, call.line, call.op] += count
    rows = []
    for (rank, file, line, op), count in counts.items():
        rows.append(((file, line, op, count), rank))
    places = []
    for (_, line, op, count), ranks in grouped(rows).items():
        places.append(Place(tuple(sorted(ranks)), line, op, count))
    return tuple(places)


def _folded(found: Iterable[OnRank]) -> tuple[Place, ...]:
    """The places of lines, with one row for the ranks of each."""
    ranks_of_lines = grouped((line, rank) for rank, line in found)
    places = []
    for line, ranks in ranks_of_lines.items():
        places.append(Place(tuple(sorted(set(ranks))), line, LIBRARY))
    return tuple(places)


def _in_order(found: Iterable[OnRank]) -> tuple[Place, ...]:
    """The places of lines, rank by rank, in the order in which the rank comes to them."""
    by_rank = sorted(found, key=lambda place: place.rank)
    return tuple(Place((rank,), line, LIBRARY) for rank, line in by_rank)
