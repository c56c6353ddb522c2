"""The exercises of lab 33: what stacks, dumps and profiles of a job's ranks have in common."""

import torch
import torch.distributed as dist

from distlab.checking import Seen, exercise, formula, gathered

# --- stacks ---

IN_ALL_REDUCE = """Current thread 0x{thread} (most recent call first):
  File "torch/distributed/distributed_c10d.py", line 3252 in all_reduce
  File "train.py", line {line} in average
  File "train.py", line 41 in <module>
"""
IN_READ = """Current thread 0x{thread} (most recent call first):
  File "data.py", line 17 in read
  File "train.py", line 38 in train
  File "train.py", line 41 in <module>
"""


def _stacks(*texts):
    """The texts of ranks, each with a number of its own for the thread."""
    return {
        rank: text.format(thread=f"7f{rank:06x}b80", line=21) for rank, text in enumerate(texts)
    }


def _elsewhere(rank):
    """Three stacks of which one is at another line."""
    stacks = _stacks(*[IN_ALL_REDUCE] * 3)
    stacks[rank] = stacks[rank].replace("line 21", "line 27")
    return stacks


def _try_alike(fn, stacks):
    """What the answer returns; a tuple counts as a list."""
    found = fn(stacks)
    if isinstance(found, (list, tuple)):
        return [list(ranks) if isinstance(ranks, (list, tuple)) else ranks for ranks in found]
    return found


@formula(
    "33",
    (_stacks(IN_ALL_REDUCE, IN_ALL_REDUCE, IN_READ, IN_ALL_REDUCE),),
    (_stacks(*[IN_ALL_REDUCE] * 3),),
    (_elsewhere(0),),
    (_stacks(IN_READ, IN_ALL_REDUCE, IN_READ, IN_ALL_REDUCE, IN_ALL_REDUCE),),
    trial=_try_alike,
)
def alike(stacks):
    """Return lists of ranks, one list for the ranks whose stacks are the same, the shortest first.

    `stacks` maps each rank, in order, to the text that faulthandler has written. Its first line has
    the number of the thread, which differs on every rank and does not count. The ranks in a list
    are in order.

    Title: 1.1 A thousand stacks
    Hint: A dict whose keys are stacks: `ranks_at.setdefault(stack, []).append(rank)`.
    Hint: `text.split("\\n", 1)[1]` is the text without its first line.
    Hint: `sorted(lists, key=len)` puts the shortest list first.
    """
    ranks_at = {}
    for rank, text in stacks.items():
        _, _, frames = text.partition("\n")
        ranks_at.setdefault(frames, []).append(rank)
    return sorted(ranks_at.values(), key=len)


# --- the flight recorder ---


def _entries(*calls, first=1):
    """What a recorder has kept of one group: entries with these calls, such as "all_reduce 4"."""
    found = []
    for number, call in enumerate(calls, first):
        op, size = call.split()
        found.append(
            {
                "collective_seq_id": number,
                "process_group": ["0", "default_pg"],
                "profiling_name": f"gloo:{op}",
                "input_sizes": [[int(size)]],
                "is_p2p": False,
            }
        )
    return found


def _dumps(*entries):
    """The dumps of ranks with these entries."""
    return {rank: {"entries": of_rank} for rank, of_rank in enumerate(entries)}


STEP = ("all_reduce 4", "all_reduce 1")
SKIPPED = _dumps(
    _entries(*STEP, *STEP, *STEP),
    _entries(*STEP, "all_reduce 4", *STEP),
)
OTHER_OP = _dumps(
    _entries(*STEP, "all_reduce 4"),
    _entries(*STEP, "all_reduce 4"),
    _entries(*STEP, "barrier 4"),
)
IN_A_RING = _dumps(
    _entries(*STEP[1:], *STEP, *STEP, first=98),
    _entries(*STEP, "broadcast 4", first=99),
)
BEHIND = _dumps(_entries(*STEP), _entries(*STEP[:1]))


@formula("33", (SKIPPED,), (OTHER_OP,), (IN_A_RING,), (BEHIND,), (_dumps(_entries(*STEP)),))
def first_difference(dumps):
    """Return the number of the first collective in which the ranks' recorders differ, or None.

    `dumps` maps each rank to its dump, as `json.loads` gives it; all entries are of one group. An
    entry is the same on two ranks if its "profiling_name" and its "input_sizes" are. A recorder
    keeps the newest entries only, so compare from the first number that every rank still has, up to
    the last number that every rank has.

    Title: 2.1 Where did it begin?
    Hint: Make a dict for each rank, from "collective_seq_id" to the entry's name and sizes.
    Hint: The numbers that every rank has are those in all of these dicts.
    """
    calls = {}
    for rank, dump in dumps.items():
        calls[rank] = {
            entry["collective_seq_id"]: (entry["profiling_name"], entry["input_sizes"])
            for entry in dump["entries"]
        }
    known_to_all = set.intersection(*[set(of_rank) for of_rank in calls.values()])
    for number in sorted(known_to_all):
        first, *others = [of_rank[number] for of_rank in calls.values()]
        if any(other != first for other in others):
            return number
    return None


# --- checks before a call ---


def _tensor_of_rank(rank, n, case):
    """The tensor of a rank; on the ranks of the case it is another one."""
    what, ranks = case
    odd = rank in ranks and n > 1
    tensor = torch.arange(6.0) + rank
    if odd and what == "longer":
        tensor = torch.arange(7.0)
    elif odd and what == "whole numbers":
        tensor = torch.arange(6)
    elif odd and what == "another shape":
        tensor = torch.arange(6.0).view(2, 3)
    return (tensor,)


def _try_checked(fn, tensor):
    """Whether the answer raises a ValueError on this rank, and what the tensor holds afterwards."""
    try:
        fn(tensor)
    except ValueError:
        return Seen("a ValueError"), tensor
    return Seen("no error"), tensor


@exercise(
    "33",
    cases=(
        ("the same", ()),
        ("longer", (1,)),
        ("another shape", (0, 2)),
        ("whole numbers", (1, 3)),
    ),
    worlds=(1, 2, 4),
    given=_tensor_of_rank,
    trial=_try_checked,
)
def checked_all_reduce(tensor):
    """Sum `tensor` over all ranks in place; raise a ValueError on every rank, before any number is
    sent, if the shapes or the dtypes of the ranks differ.

    Title: 4.1 Your own DETAIL
    Hint: Every rank has to know what all ranks have, so that all of them raise or none does.
    Hint: `dist.all_gather_object(found, (tensor.shape, tensor.dtype))` fills the list `found`,
    which has a place for each rank.
    Stuck: Does every rank reach the same calls, also the ranks whose tensors are as they should be?
    """
    shapes = gathered((tensor.shape, tensor.dtype))
    if any(shape != shapes[0] for shape in shapes):
        raise ValueError(f"the ranks have different tensors: {shapes}")
    dist.all_reduce(tensor)


# --- profiles ---


def _events(rank, calls, compute=5000.0):
    """Events as torch.profiler writes them: computing, and collectives of these durations in us."""
    begin = 1e9 * (rank + 1)  # the clocks of two machines do not agree
    events = [{"name": "thread_name", "ph": "M", "pid": rank}]
    for duration in calls:
        events.append({"name": "aten::mm", "ph": "X", "ts": begin, "dur": compute})
        events.append({"name": "gloo:all_reduce", "ph": "X", "ts": begin, "dur": duration})
        begin += compute + duration
    return events


@formula(
    "33",
    ({0: _events(0, [159000.0, 3000.0]), 1: _events(1, [9000.0, 3000.0])},),
    (
        {
            0: _events(0, [5000.0, 3000.0], compute=9000.0),
            1: _events(1, [40000.0, 2000.0]),
            2: _events(2, [4000.0, 60000.0]),
        },
    ),
    ({3: _events(3, [1000.0], compute=90.0), 7: _events(7, [400.0])},),
)
def late_rank(traces):
    """Return the rank for which the others have waited longest in their all-reduces.

    `traces` maps each rank to the "traceEvents" of its profile. The all-reduces are the events
    named "gloo:all_reduce"; "dur" is how long an event took, in microseconds. Not every event has a
    duration, and the clocks of the ranks need not agree.

    Title: 7.1 Who was late?
    Hint: An all-reduce ends on all ranks at almost the same moment. On which rank does it begin
    last?
    Hint: That rank has the shortest all-reduces: add up the durations for each rank.
    """

    def in_collectives(rank):
        total = 0.0
        for event in traces[rank]:
            if event["name"] == "gloo:all_reduce":
                total += event["dur"]
        return total

    return min(traces, key=in_collectives)
