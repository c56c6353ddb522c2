"""The exercises of lab 60: ranks by host, torchrun on several hosts, and clocks."""

import time

import torch
import torch.distributed as dist

from distlab.checking import Seen, exercise, formula, gathered, on_rank, question
from distlab_course.exercises.launching import torchrun_options

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


@formula(
    "60",
    ({"nodeA": 2, "nodeB": 2}, 2),
    ({"nodeA": 4, "nodeB": 1, "nodeC": 3}, 6),
    ({"nodeA": 8}, 7),
)
def home_of_rank(hosts, rank):
    """Return (host, LOCAL_RANK, GROUP_RANK) of a rank; `hosts` maps the name of each host to its
    number of ranks.

    Ranks are numbered host by host, in the order of `hosts`, and hosts may have different numbers
    of ranks.

    Title: 1.1 Which GPU?
    Hint: Go through the hosts, and for each host before the rank's own subtract that host's number
    of ranks.
    """
    before = 0  # ranks on the hosts that were passed
    for number, (name, ranks) in enumerate(hosts.items()):
        if rank < before + ranks:
            return name, rank - before, number
        before += ranks
    raise ValueError(f"no host has rank {rank}")


@formula(
    "60",
    ({"nodeA": 2, "nodeB": 2}, "nodeB"),
    ({"nodeA": 2, "nodeB": 3, "nodeC": 2}, "nodeB"),
    ({"nodeA": 1}, "nodeA"),
)
def ranks_left(hosts, lost):
    """Return {old rank: new rank} of the ranks that are left when host `lost` has vanished,
    renumbered from 0.

    They keep their order. `hosts` maps the name of each host to its number of ranks; ranks are
    numbered host by host.

    Title: 2.1 New numbers
    Hint: Which old ranks are on each host?
    """
    left = []
    first = 0  # rank of a host
    for name, ranks in hosts.items():
        if name != lost:
            left += range(first, first + ranks)
        first += ranks
    return {old: new for new, old in enumerate(left)}


@question("60", 256)
def price_of_silence(answer):
    """A job of 64 hosts with 8 GPUs each uses NCCL over TCP, with its default timeout of 10
    minutes, and a GPU costs 3 dollars an hour. Somebody pulls the cable of one host, and nobody is
    watching. How many dollars has the waiting cost by the time the first error appears?

    Title: 2.2 The cost of silence
    Hint: The GPUs of the host without a cable are also paid for.

    Not 252: The host that was cut off is paid for like the others, although it computes nothing.
    Not 768: That is half an hour, which is gloo's default timeout.
    Not 1536: That is a whole hour. How long is the timeout?

    Why: 512 GPUs wait for a sixth of an hour each, at 3 dollars an hour: 256 dollars.
    """


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
    """A batch script asks for 2 nodes with 8 GPUs each, and by mistake for `--ntasks-per-node=8`.
    So srun starts 16 agents, each with `--nnodes 2 --nproc-per-node 8`. How many ranks does the job
    have?

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
