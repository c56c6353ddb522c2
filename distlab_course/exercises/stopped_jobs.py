"""The exercises of lab 33: what stacks, dumps and profiles of a job's ranks have in common."""

import statistics
from datetime import timedelta

import torch
import torch.distributed as dist

from distlab.checking import Limits, Seen, exercise, formula, gathered, recorded

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

STEP = ("all_reduce 4", "all_reduce 1")
# (calls of most ranks, calls of rank 1, how many of its oldest calls each recorder has forgotten)
SAME = (STEP, STEP, (0, 0))
SKIPPED = (3 * STEP, (*STEP, "all_reduce 4", *STEP), (0, 0))
OTHER_OP = ((*STEP, "all_reduce 4"), (*STEP, "broadcast 4"), (0, 0))
FORGOTTEN = (4 * STEP, (*STEP, *STEP, *STEP, "broadcast 4"), (4, 3))
BEHIND = (STEP, STEP[:1], (0, 0))


def _calls_of_rank(rank, n, case):
    """The calls of this rank, and how many of them its recorder has forgotten."""
    most, of_rank_1, forgotten = case
    calls = of_rank_1 if rank == 1 else most
    return list(calls), forgotten[rank % 2]


def _recorded(calls):
    """What torch's recorder on this rank notes when gloo makes these calls.

    The group has this rank alone, so that no call waits for a call that does not match it.
    """
    alone = dist.ProcessGroupGloo(dist.HashStore(), 0, 1, timedelta(seconds=10))
    for call in calls:
        op, size = call.split()
        tensors = [torch.zeros(int(size))]
        if op == "broadcast":
            alone.broadcast(tensors, dist.BroadcastOptions()).wait()
        else:
            alone.allreduce(tensors, dist.AllreduceOptions()).wait()
    return recorded(len(calls))


def _try_dump(fn, calls, forgotten):
    """What the answer returns for the dump of this rank."""
    return fn({"entries": _recorded(calls)[forgotten:]})


@exercise(
    "33",
    cases=(SAME, SKIPPED, OTHER_OP, FORGOTTEN, BEHIND),
    worlds=(1, 2, 4),
    given=_calls_of_rank,
    trial=_try_dump,
)
def first_difference(dump):
    """Return, on every rank, the number of the first collective in which the ranks' recorders
    differ, and 0 if they do not.

    `dump` is the dump of this rank, as `json.loads` gives it; all entries are of one group. An
    entry is the same on two ranks if its "profiling_name" and its "input_sizes" are. A recorder
    keeps the newest entries only, so compare only the numbers that every rank still has.

    Title: 2.1 Where did it begin?
    Hint: Make a dict, from "collective_seq_id" to the entry's name and sizes, and let the ranks
    exchange these dicts with `dist.all_gather_object`.
    Hint: The numbers that every rank has are those in all of these dicts.
    Stuck: Does every rank reach the exchange?
    """
    mine = {
        entry["collective_seq_id"]: (entry["profiling_name"], entry["input_sizes"])
        for entry in dump["entries"]
    }
    by_rank = gathered(mine)
    known_to_all = set.intersection(*[set(calls) for calls in by_rank])
    for number in sorted(known_to_all):
        if any(calls[number] != mine[number] for calls in by_rank):
            return number
    return 0


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

# for each rank in turn: the durations of its all-reduces in microseconds
DURATIONS = (
    ((159e3, 3e3), (9e3, 3e3), (150e3, 3e3), (155e3, 2e3)),
    ((5e3, 3e3), (40e3, 2e3), (4e3, 60e3), (30e3, 31e3)),
)
STEPS_IN_PROFILE = 50


def _durations_of_rank(rank, n, case):
    """How long the all-reduces of this rank take."""
    return (list(case[rank]),)


def _try_profile(fn, durations):
    """What the answer returns for a profile of many steps with all-reduces of these durations."""
    rank = dist.get_rank()
    begin = 1e9 * (rank + 1)  # the clocks of two hosts do not agree
    events = [{"name": "thread_name", "ph": "M", "pid": rank}]
    for duration in durations * STEPS_IN_PROFILE:
        events.append({"name": "aten::mm", "ph": "X", "ts": begin, "dur": 5000.0})
        events.append({"name": "gloo:all_reduce", "ph": "X", "ts": begin, "dur": duration})
        begin += 5000.0 + duration
    return fn(events)


@exercise(
    "33",
    cases=DURATIONS,
    worlds=(2, 4),
    given=_durations_of_rank,
    trial=_try_profile,
    limits=Limits(num_bytes=2000),
)
def late_rank(events):
    """Return, on every rank, the rank for which the others have waited longest in their
    all-reduces.

    `events` is the list of "traceEvents" in the profile of this rank. The all-reduces are the
    events named "gloo:all_reduce"; "dur" is how long an event took, in microseconds. Not every
    event has a duration, and the clocks of the ranks need not agree.

    Title: 7.1 Who was late?
    Hint: An all-reduce ends on all ranks at almost the same moment. On which rank does it begin
    last?
    Hint: That rank has the shortest all-reduces: sum the durations on each rank, and gather the
    sums.
    Limit: Does the whole profile have to travel, or is one number of each rank enough?
    """
    total = 0.0
    for event in events:
        if event["name"] == "gloo:all_reduce":
            total += event["dur"]
    totals = gathered(total)
    return totals.index(min(totals))


# for each rank in turn: the seconds of its last steps, without those in which it waited
STEP_SECONDS = (
    ([1.0, 1.1, 1.0], [1.0, 1.0, 1.1], [1.5, 1.6, 1.5], [1.1, 1.0, 1.0]),
    ([1.0, 1.1, 1.0], [1.0, 1.0, 9.0], [1.1, 1.0, 1.0], [1.0, 1.0, 1.1]),
    ([9.0, 9.0, 9.1], [0.9, 1.0, 1.0], [1.0, 1.1, 1.0], [1.7, 1.6, 1.6]),
    ([1.0, 1.1, 1.0], [1.1, 1.1, 1.1], [1.1, 1.1, 1.0], [1.0, 1.0, 1.1]),
)


def _seconds_of_rank(rank, n, case):
    """How long this rank has computed in each of its last steps."""
    return (case[rank],)


@exercise(
    "33",
    cases=STEP_SECONDS,
    worlds=(1, 3, 4),
    given=_seconds_of_rank,
    limits=Limits(calls=2),
)
def stragglers(seconds):
    """Return, on every rank, the sorted list of the stragglers.

    `seconds` is a list with the times for which this rank has computed in its last steps. A
    straggler is a rank whose median is more than 1.2 times the median of all ranks' medians.

    Title: 7.2 A job that watches itself
    Hint: `statistics.median(seconds)` is one number of this rank. Every rank needs those of all.
    Hint: `dist.all_gather_object(medians, median)` fills the list `medians`, which has a place for
    each rank.
    Limit: Can one exchange give every rank the numbers of all?
    """
    medians = gathered(statistics.median(seconds))
    most = 1.2 * statistics.median(medians)
    return [rank for rank, median in enumerate(medians) if median > most]
