"""The exercises of lab 60: the ranks of a host, those that are left, torchrun, and clocks."""

import time

import torch
import torch.distributed as dist

from distlab.checking import (
    Seen,
    exercise,
    formula,
    gathered,
    on_rank,
    question,
    returned,
)
from distlab.checking.trial import join_as_many_groups
from distlab_course.exercises.commands import torchrun_options

# the host of each rank
PLACES = ("AABB", "ABAB", "BABA")
# the host of each rank, and the one that vanishes
LOST_HOSTS = (("BAAB", "B"), ("ABCA", "B"), ("ABAB", "A"))
# hosts, ranks on each, endpoint, number of the job, address of a host, script
JOBS = (
    (2, 2, "10.0.0.1:29400", "7", "10.0.0.2", "train.py"),
    (16, 8, "gpu01:29507", "job", "gpu12", "a.py"),
)
SINCE_1970 = 1.7e9  # seconds: float32 is too coarse for such times
TORCHRUN_OPTIONS = (
    "--nnodes",
    "--nproc-per-node",
    "--rdzv-backend",
    "--rdzv-endpoint",
    "--rdzv-id",
    "--local-addr",
)


def _host_of_rank(rank, n, places):
    """The name of the rank's host."""
    return (f"node{places[rank]}",)


@exercise("60", worlds=(2, 3, 4), cases=PLACES, given=_host_of_rank, trial=returned)
def home_of_rank(host):
    """Return (LOCAL_RANK, GROUP_RANK, list of the ranks on this host). `host` is the name of this
    rank's host.

    LOCAL_RANK counts the ranks of one host from 0, in their order. GROUP_RANK counts the hosts from
    0, in the order of their first ranks. The ranks of a host need not follow each other.

    Title: 1.1 Which GPU?
    Hint: `dist.all_gather_object(hosts, host)` fills the list `hosts`, which has a place for each
    rank.
    Hint: LOCAL_RANK is this rank's place in the list of the ranks on its host.
    Hint: `dict.fromkeys(hosts)` has each host once, in the order of their first ranks.
    """
    hosts = gathered(host)
    beside = [rank for rank, other in enumerate(hosts) if other == host]
    local_rank = beside.index(dist.get_rank())
    group_rank = list(dict.fromkeys(hosts)).index(host)
    return local_rank, group_rank, beside


def _hosts_and_lost(rank, n, case):
    """The host of each rank, and the one that is lost."""
    places, lost = case
    return [f"node{place}" for place in places[:n]], f"node{lost}"


def _try_without_host(fn, hosts, lost):
    """The new number, the members and the sum of a rank that is left.

    A rank of the lost host calls nothing.
    """
    join_as_many_groups()
    rank = dist.get_rank()
    if hosts[rank] == lost:
        return None
    group = fn(hosts, lost)
    if not isinstance(group, dist.ProcessGroup):
        why = "Return what `dist.new_group` returns: a group on each of its ranks, None elsewhere."
        return Seen("no group", why)
    if group.group_name.isdigit():  # of a group that all ranks make; otherwise it is a hash
        why = "Every rank of the old group has to make such a group, but some are gone."
        return Seen("a group that all ranks make", why)
    members = dist.get_process_group_ranks(group)
    total = torch.tensor(10**rank)
    dist.all_reduce(total, group=group)
    return f"new rank {dist.get_rank(group)} of old ranks {members}", total


@exercise("60", worlds=(2, 3, 4), cases=LOST_HOSTS, given=_hosts_and_lost, trial=_try_without_host)
def ranks_left(hosts, lost):
    """Return a new group of the ranks that are left when host `lost` has vanished, renumbered from
    0 in their old order.

    `hosts[r]` is the name of the host of rank r. Only the ranks that are left call this, because
    the others are gone.

    Title: 2.1 New numbers
    Hint: Which ranks are on another host than `lost`? `dist.new_group` numbers them from 0.
    Hint: Usually every rank of the old group has to call `new_group`. With
    `use_local_synchronization=True` only those of the new one do.

    Stuck: Which ranks call `new_group`, and do they give it the same ranks?
    """
    left = [rank for rank, host in enumerate(hosts) if host != lost]
    return dist.new_group(left, use_local_synchronization=True)


def _try_words(fn, *arguments):
    """What torchrun reads in the words, by its own parser."""
    program, *words = fn(*arguments)
    if not all(isinstance(word, str) for word in words):
        return Seen("words that are not strings", f"Every word is a string: {words}.")
    read = torchrun_options(words)
    settings = []
    for option in TORCHRUN_OPTIONS:
        attribute = option.removeprefix("--").replace("-", "_")
        settings.append(f"{option} {getattr(read, attribute)}")
    return [program, *settings, read.training_script]


@formula("60", *JOBS, trial=_try_words)
def torchrun_words(nodes, ranks, endpoint, job, address, script):
    """Return the list of words that starts the agent of one host: "torchrun", its options, and the
    script.

    The job has `nodes` hosts with `ranks` ranks each. The agents meet through the rendezvous
    backend c10d at `endpoint`, and `job` tells this job from others. `address` is this host's own
    address, which the agent gives to the others.

    Title: 3.1 A command for each host
    Hint: `--nnodes`, `--nproc-per-node`, and three options that begin with `--rdzv-`: backend,
    endpoint and id.
    Hint: Each option and each value is a separate word, and all words are strings: `str(nodes)`.
    Hint: `--local-addr` is the host's own address.
    """
    words = ["torchrun"]
    words += ["--nnodes", str(nodes)]
    words += ["--nproc-per-node", str(ranks)]
    words += ["--local-addr", str(address)]
    words += ["--rdzv-backend", "c10d"]
    words += ["--rdzv-endpoint", str(endpoint)]
    words += ["--rdzv-id", str(job)]
    words.append(script)
    return words


@question("60", 16)
def ranks_of_16_agents(answer):
    """A batch script asks for 2 nodes with 8 GPUs each, and by mistake for `--ntasks-per-node=8`
    and `--cpus-per-task=8`. So srun starts 16 agents, each with `--nnodes 2 --nproc-per-node 8`.
    How many ranks does the job have?

    Title: 3.2 Eight tasks on each node
    Hint: How many agents does the rendezvous wait for, and what do the others do?

    Not 128: For that, all 16 agents would have to take part. How many does `--nnodes 2` let in?
    Not 64: Do all agents of a node start ranks?
    Not 2: Two agents take part, and each starts 8 ranks.

    Why: The rendezvous is complete with two agents, which start 8 ranks each; the other 14 agents
    wait. And both of the two may be on one node: 16 ranks on its 8 GPUs.
    """


def _try_asking(fn, ahead):
    """What is wrong with an exchange of clocks.

    Rank 1's clock is `ahead` seconds ahead, and rank 0 arrives late.
    """
    dist.barrier()
    if dist.get_rank() == 1:
        fn(lambda: SINCE_1970 + time.monotonic() + ahead)
        return None
    time.sleep(0.6)
    asked, seen, answered = fn(lambda: SINCE_1970 + time.monotonic())
    return _judged(asked, seen, answered, ahead)


def _judged(asked, seen, answered, ahead):
    """What is wrong with an exchange; `seen` is by a clock that is so many seconds ahead."""
    if asked > answered:
        return Seen("answered before asked", "The order is (asked, seen, answered).")
    if seen == torch.tensor(seen, dtype=torch.float32).item():
        why = "`seen` is a multiple of 128 s, like any float32 of that size. Which dtype?"
        return Seen("seen is coarse", why)
    seen_by_our_clock = seen - ahead
    if asked <= seen_by_our_clock <= answered:
        return Seen("seen in between")
    when = "after its answer had arrived"
    if seen_by_our_clock < asked:
        when = "before it was asked"
    why = f"`seen` is a time {when}: in which line does rank 1 read its clock?"
    return Seen("seen outside", why)


def _ahead(rank, n, seconds):
    """By how many seconds rank 1's clock is ahead."""
    return (seconds,)


@exercise("60", worlds=(2,), cases=(100.0, -3600.0), given=_ahead, trial=_try_asking)
def ask_the_time(clock):
    """Rank 0 asks rank 1 for the time, and returns (asked, seen, answered), three numbers; rank
    1 returns None.

    `clock()` returns the time by a rank's own clock, in seconds since 1970: `asked` and `answered`
    are by rank 0's clock, `seen` is by rank 1's, which rank 1 must read after it was asked. Rank 0
    arrives 0.6 s after rank 1.

    Title: 5.1 Ask for the time
    Hint: Rank 0: clock, send, recv, clock. Rank 1: recv, clock, send.
    Hint: `torch.zeros(1)` is float32 and has about seven digits, but the time has ten before the
    decimal point.
    """
    asked = clock()
    dist.barrier()
    seen = gathered(clock())[1]
    return on_rank(0, (asked, seen, clock()))


@formula(
    "60",
    ([(10.0, 15.5, 10.5)],),
    ([(10.0, 16.0, 12.0), (20.0, 25.25, 20.25), (30.0, 35.5, 31.5)],),
    ([(1.0, -6.75, 1.5), (2.0, -5.0, 4.0), (5.0, -2.875, 5.25)],),
)
def offset_and_error(exchanges):
    """Return (offset, error): how far a clock is ahead of ours, and by how much at most that may be
    wrong.

    Each of the `exchanges` is (asked, seen, answered): we asked when our clock showed `asked`, got
    the answer when it showed `answered`, and at some moment in between the other clock showed
    `seen`. Trust the shortest exchange.

    Title: 5.2 Offset and error
    Hint: If the other clock was read in the middle, what did our own clock show at that moment?
    Hint: It may have been read right after `asked`, or right before `answered`.
    """
    shortest = min(exchanges, key=lambda exchange: exchange[2] - exchange[0])
    asked, seen, answered = shortest
    middle = (asked + answered) / 2
    return seen - middle, (answered - asked) / 2
