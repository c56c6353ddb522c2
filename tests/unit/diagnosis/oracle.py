"""Random small programs of three ranks, and two judges of which of their ranks never end.

The one judge is what a notebook says of ranks that have come to rest: `proof`, over the statuses
that they report. The other one is the simulator, which knows nothing of statuses: it runs the same
calls as events in virtual time. Before both, `run` brings a program to where no rank can go on, by
the few rules of gloo that are written here, and notes each call in the log that a real rank has.
test_oracle.py compares them, and tools/fuzz.py without an end.

The rules: a message ends at both ends when its send and its recv have found each other, because a
send waits for its receiver. A send is taken by the oldest recv from its sender, or else by the
oldest recv from any rank; a recv takes the oldest send that has arrived. Messages of one pair of
ranks arrive in order. A collective ends when all members have called it, gather and scatter on the
ranks that are not the root when the root has.

Where the judges are allowed to differ, and why, is in `differences`.
"""

import contextlib
import itertools
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from types import SimpleNamespace
from unittest.mock import patch

from distlab.diagnosis.proof import proof
from distlab.rank import records, status
from distlab.rank.log import Log, Note
from distlab.rank.records import record_of
from distlab.simulated.events import CollectiveCall, Compute, NotedEvent, PointToPoint, Wait
from distlab.simulated.network import Network
from distlab.simulated.simulation import simulate
from distlab.wire.messages import COLLECTIVE, COMMUNICATING, IDLE, MESSAGE, RankStatus

GROUPS = {"0": (0, 1, 2), "1": (0, 1), "2": (0, 2), "3": (1, 2)}
RANKS = GROUPS["0"]
METHODS = {
    "all_reduce": "allreduce",
    "barrier": "barrier",
    "gather": "gather",
    "scatter": "scatter",
}
ROOTED = ("gather", "scatter")
NETWORK = Network("1 us", "1 GB/s")


@dataclass(frozen=True)
class Step:
    """One line of one rank's program.

    Attributes:
        op: "send", "recv", a collective, or "wait".
        group: name of its group.
        peer: rank at the other end of a message; None for any.
        tag: of a message.
        root: rank of a gather or scatter.
        work: the variable that holds the Work of a call that returns at once; of "wait", which one
            is waited for; "" for a call that blocks.
    """

    op: str
    group: str = "0"
    peer: int | None = None
    tag: int = 0
    root: int | None = None
    work: str = ""

    def __str__(self) -> str:
        """The line, without `dist.`."""
        if self.op == "wait":
            return f"{self.work}.wait()"
        given = []
        if self.op in ("send", "recv"):
            given.append(f"{'dst' if self.op == 'send' else 'src'}={self.peer}")
            given.append(f"tag={self.tag}")
        if self.root is not None:
            given.append(f"root={self.root}")
        if self.group != "0":
            given.append(f"group={list(GROUPS[self.group])}")
        prefix = "i" if self.work and self.op in ("send", "recv") else ""
        call = f"{prefix}{self.op}({', '.join(given)})"
        return f"{self.work} = {call}" if self.work else call


Program = tuple[tuple[Step, ...], ...]  # the steps of each rank


def text(program: Program) -> str:
    """A program as a person reads it, a line for each rank."""
    return "\n".join(
        f"  rank {rank}: {'; '.join(map(str, steps))}" for rank, steps in enumerate(program)
    )


# --- programs at random ---


def random_program(rng: Random, most: int = 6) -> Program:
    """A program of at most so many steps on a rank: a right one, or one with a mistake or two."""
    steps: list[list[Step]] = [[] for _ in RANKS]
    names = itertools.count()
    for _ in range(rng.randint(1, 5)):
        for rank, step in _matching(rng):
            if rng.random() < 0.4:
                step = replace(step, work=f"w{next(names)}")
            steps[rank].insert(rng.randint(max(0, len(steps[rank]) - 1), len(steps[rank])), step)
    for of_rank in steps:
        _insert_waits(rng, of_rank)
    for _ in range(rng.choice((0, 1, 1, 2))):
        _spoil(rng, steps)
    return tuple(_whole(of_rank[:most]) for of_rank in steps)


def _matching(rng: Random) -> list[tuple[int, Step]]:
    """The steps of all ranks that belong to one message, or to one collective."""
    group = rng.choice([*GROUPS, "0", "0"])
    members = GROUPS[group]
    op = rng.choice(["message"] * 5 + [*METHODS])
    if op != "message":
        root = rng.choice(members) if op in ROOTED else None
        return [(rank, Step(op, group, root=root)) for rank in members]
    src, dst = rng.sample(members, 2)
    tag = rng.choice((0, 0, 1))
    source = None if rng.random() < 0.25 else src
    return [(src, Step("send", group, dst, tag)), (dst, Step("recv", group, source, tag))]


def _insert_waits(rng: Random, steps: list[Step]) -> None:
    """Wait for most of the Works, somewhere after their calls."""
    for step in [step for step in steps if step.work]:
        if rng.random() < 0.8:
            place = rng.randint(steps.index(step) + 1, len(steps))
            steps.insert(place, Step("wait", work=step.work))


def _spoil(rng: Random, steps: list[list[Step]]) -> None:
    """Make a mistake on one rank, where it has a step."""
    rank = rng.choice(RANKS)
    if not steps[rank]:
        return
    place = rng.randrange(len(steps[rank]))
    step = steps[rank][place]
    mistake = rng.choice(("forget", "earlier", "tag", "peer", "group", "root", "another", "block"))
    groups = [
        name
        for name, members in GROUPS.items()
        if {rank, step.peer, step.root} - {None} <= set(members)
    ]
    if mistake == "forget":
        del steps[rank][place]
    elif mistake == "earlier":
        steps[rank].insert(rng.randint(0, place), steps[rank].pop(place))
    elif step.op == "wait":
        return
    elif mistake == "block":
        steps[rank][place] = replace(step, work="")
    elif mistake == "group":
        steps[rank][place] = replace(step, group=rng.choice(groups))
    elif mistake == "another" and step.op in METHODS:
        op = rng.choice([*METHODS])
        steps[rank][place] = replace(
            step, op=op, root=GROUPS[step.group][0] if op in ROOTED else None
        )
    elif mistake == "root" and step.op in ROOTED:
        steps[rank][place] = replace(step, root=rng.choice(GROUPS[step.group]))
    elif mistake == "tag" and step.op not in METHODS:
        steps[rank][place] = replace(step, tag=1 - step.tag)
    elif mistake == "peer" and step.op not in METHODS:
        others = [other for other in GROUPS[step.group] if other != rank]
        steps[rank][place] = replace(step, peer=rng.choice(others))


def _whole(steps: Sequence[Step]) -> tuple[Step, ...]:
    """The steps without waits for what was not begun before them."""
    begun: set[str] = set()
    kept = []
    for step in steps:
        if step.op == "wait" and step.work not in begun:
            continue
        begun.add(step.work)
        kept.append(step)
    return tuple(kept)


def shorter(program: Program) -> Iterator[Program]:
    """The program without a collective, without a step, or with one that blocks."""
    collectives = set()
    for steps in program:
        collectives |= {(step.op, step.group) for step in steps if step.op in METHODS}
    for op, group in sorted(collectives):
        yield tuple(
            _whole([step for step in steps if (step.op, step.group) != (op, group)])
            for steps in program
        )
    for rank, steps in enumerate(program):
        for place, step in enumerate(steps):
            fewer = _whole(steps[:place] + steps[place + 1 :])
            yield (*program[:rank], fewer, *program[rank + 1 :])
            if step.work and step.op != "wait":
                blocks = _whole((*steps[:place], replace(step, work=""), *steps[place + 1 :]))
                yield (*program[:rank], blocks, *program[rank + 1 :])


# --- to where no rank can go on ---


@dataclass(eq=False)
class Op:
    """A call that a rank has begun."""

    number: int
    rank: int
    step: Step
    note: Note
    source: int | None = None  # of a recv: whose message it took
    met: bool = False  # of a message: whether both ends have found each other
    turn: int = 0  # of a collective: its number in its group on this rank


@dataclass
class Rank:
    """One rank: where it is in its program, and what a real one would remember."""

    number: int
    steps: Sequence[Step]
    log: Log
    place: int = 0
    waits_for: Op | None = None
    works: dict[str, Op] = field(default_factory=dict)
    events: list[NotedEvent] = field(default_factory=list)  # the same for the simulator

    @property
    def has_finished(self) -> bool:
        return self.place == len(self.steps)


class Run:
    """A program that runs until no rank can go on.

    Args:
        program: the steps of each rank.
        rng: decides which of the ranks that can go on does, or which message arrives.

    Attributes:
        claims: where each rank was when the statuses proved, on the way, that none can go on.
    """

    def __init__(self, program: Program, rng: Random):
        self.ranks = [Rank(number, steps, Log()) for number, steps in enumerate(program)]
        self._numbers = itertools.count()
        # sends, by group and ends
        self._flying: defaultdict[tuple[str, int, int], deque[Op]] = defaultdict(deque)
        # sends that no recv has taken, in the order in which they arrived
        self._arrived: list[Op] = []
        self._posted: list[Op] = []  # recvs that have no message, the oldest first
        self._took: list[Op] = []  # recvs that have a message
        # collectives, by group and rank
        self._called: defaultdict[tuple[str, int], list[Op]] = defaultdict(list)
        self.claims: list[list[int]] = []
        while choices := [
            *self._movable(),
            *(pair for pair, sends in self._flying.items() if sends),
        ]:
            chosen = rng.choice(choices)
            if isinstance(chosen, tuple):
                self._arrive(self._flying[chosen].popleft())
            else:
                self._go_on(chosen)
            if all(rank.has_finished or rank.waits_for for rank in self.ranks) and proof(
                self.states()
            ):
                self.claims.append(self.places)

    @property
    def places(self) -> list[int]:
        """Where each rank is in its program."""
        return [rank.place for rank in self.ranks]

    def _movable(self) -> list[int]:
        """The ranks that can go on."""
        return [number for number, rank in enumerate(self.ranks) if self._can_go_on(rank)]

    def _can_go_on(self, rank: Rank) -> bool:
        if rank.has_finished:
            return False
        return rank.waits_for is None or self._has_ended(rank.waits_for)

    def _go_on(self, number: int) -> None:
        """The rank's call has ended, or it begins the next one."""
        rank = self.ranks[number]
        if rank.waits_for is not None:
            self._end_wait(rank, rank.waits_for)
            return
        step = rank.steps[rank.place]
        if step.op == "wait":
            rank.waits_for = rank.works[step.work]
            return
        op = self._begin(number, step)
        if step.work:
            rank.works[step.work] = op
            rank.place += 1
        else:
            rank.waits_for = op

    def _end_wait(self, rank: Rank, op: Op) -> None:
        rank.events.append(Wait(op.number))
        if op.note.method == "recv_anysource" and not op.note.done:  # as hooks.py does
            source = GROUPS[op.step.group].index(op.source)
            rank.log.messages.received_from(op.note.message_kind, source)
        rank.log.mark_ended(op.note)
        rank.waits_for = None
        rank.place += 1

    def _begin(self, number: int, step: Step) -> Op:
        rank = self.ranks[number]
        op = Op(next(self._numbers), number, step, _note(step))
        rank.log.add(op.note)
        if step.op in METHODS:
            called = self._called[step.group, number]
            called.append(op)
            op.turn = len(called)
        if step.op != "recv" or step.peer is not None:
            rank.events.append(_event(op))
        if step.op == "send":
            self._flying[step.group, number, step.peer].append(op)
        elif step.op == "recv":
            self._post(op)
        return op

    # --- messages ---

    def _arrive(self, send: Op) -> None:
        """Deliver a send to a recv from its sender, or else to one from any rank."""
        fits = [recv for recv in self._posted if _fit(send, recv)]
        from_sender = [recv for recv in fits if recv.step.peer is not None]
        if fits:
            recv = (from_sender or fits)[0]
            self._posted.remove(recv)
            self._meet(send, recv)
        else:
            self._arrived.append(send)

    def _post(self, recv: Op) -> None:
        """A recv begins: it takes the first message that has arrived for it."""
        fits = [send for send in self._arrived if _fit(send, recv)]
        if fits:
            self._arrived.remove(fits[0])
            self._meet(fits[0], recv)
        else:
            self._posted.append(recv)

    def _meet(self, send: Op, recv: Op) -> None:
        send.met = recv.met = True
        recv.source = send.rank
        self._took.append(recv)
        if recv.step.peer is None:  # only now the simulator can be told whose message it is
            self.ranks[recv.rank].events.append(_event(recv))

    # --- what has ended ---

    def _has_ended(self, op: Op, in_turn: bool = True) -> bool:
        """Whether a call has ended; `in_turn`: after those of its group before it."""
        if op.step.op not in METHODS:
            return op.met
        needed = GROUPS[op.step.group]
        if op.step.op in ROOTED and op.rank != op.step.root:
            needed = (op.step.root,)
        return all(self._is_at(member, op, in_turn) for member in {op.rank, *needed})

    def _is_at(self, member: int, op: Op, in_turn: bool) -> bool:
        """Whether a member has called the same collective, and has come to it."""
        called = self._called[op.step.group, member]
        if len(called) < op.turn:
            return False
        theirs = called[op.turn - 1].step
        if (theirs.op, theirs.root) != (op.step.op, op.step.root):
            return False
        return op.turn == 1 or not in_turn or self._has_ended(called[op.turn - 2])

    # --- what the judges get ---

    @property
    def stuck(self) -> set[int]:
        """The ranks that never end."""
        return {number for number, rank in enumerate(self.ranks) if not rank.has_finished}

    @property
    def is_open(self) -> bool:
        """Whether it would end if it did not wait for its group's earlier collectives."""
        for op in itertools.chain.from_iterable(list(self._called.values())):
            if self._has_ended(op, in_turn=False) and not self._has_ended(op):
                return True
        return False

    @property
    def hides_a_source(self) -> bool:
        """Whether a recv from any rank, not waited for, took a message of unknown source."""
        return any(recv.step.peer is None and not recv.note.done for recv in self._took)

    def states(self) -> dict[int, RankStatus]:
        """What the watchdogs of the ranks would report now."""
        return {number: _status(rank) for number, rank in enumerate(self.ranks)}

    def events(self) -> Iterator[list[list[NotedEvent]]]:
        """The events of each rank, for every rank from which an open recv could get one.

        What a rank would do if it could go on is there, too. A rank that ends computes for a
        second.
        """
        open_recvs = [recv for recv in self._posted if recv.step.peer is None]
        sources = [
            [other for other in GROUPS[recv.step.group] if other != recv.rank]
            for recv in open_recvs
        ]
        for chosen in itertools.product(*sources):
            programs = [list(rank.events) for rank in self.ranks]
            for recv, source in zip(open_recvs, chosen, strict=True):
                programs[recv.rank].append(_event(replace(recv, source=source)))
            for number, rank in enumerate(self.ranks):
                programs[number] += self._rest(rank)
            yield [[*events, Compute(1.0)] for events in programs]

    def _rest(self, rank: Rank) -> list[NotedEvent]:
        """What a rank that is stuck waits for, and its steps after that."""
        if rank.waits_for is None:
            return []
        number = rank.number
        turns = {group: len(self._called[group, number]) for group in GROUPS}
        works = dict(rank.works)
        events: list[NotedEvent] = [Wait(rank.waits_for.number)]
        for step in rank.steps[rank.place + 1 :]:
            if step.op == "wait":
                events.append(Wait(works[step.work].number))
                continue
            anybody = next(other for other in GROUPS[step.group] if other != number)
            op = Op(next(self._numbers), number, step, rank.waits_for.note, source=anybody)
            if step.op in METHODS:
                turns[step.group] += 1
                op.turn = turns[step.group]
            works[step.work] = op
            events.append(_event(op))
            if not step.work:
                events.append(Wait(op.number))
        return events


def _fit(send: Op, recv: Op) -> bool:
    """Whether a recv can take the message of a send."""
    if (send.step.group, send.step.tag, send.step.peer) != (
        recv.step.group,
        recv.step.tag,
        recv.rank,
    ):
        return False
    return recv.step.peer in (None, send.rank)


def _note(step: Step) -> Note:
    """The note that hooks.py makes of a call."""
    members = GROUPS[step.group]
    if step.op in METHODS:
        note = Note(step.op, COLLECTIVE)
        note.method = METHODS[step.op]
        note.options = SimpleNamespace(asyncOp=bool(step.work))
        if step.root is not None:
            note.options.rootRank = members.index(step.root)
    else:
        note = Note(("i" if step.work else "") + step.op, MESSAGE)
        note.method = "recv_anysource" if step.peer is None else step.op
        note.peer = -1 if step.peer is None else members.index(step.peer)
        note.tag = step.tag
    note.group = step.group
    note.lines = []
    note.tensors = [] if step.op == "barrier" else [("torch.float32", (2,))]
    return note


def _event(op: Op) -> NotedEvent:
    """A call as the simulator's."""
    step = op.step
    members = GROUPS[step.group]
    if step.op not in METHODS:
        peer = op.source if step.peer is None else step.peer
        return PointToPoint(op.number, step.op == "send", peer, 8, (step.group, step.tag))
    sizes = {"all_reduce": (24, 4), "barrier": (0,)}.get(step.op, (8,))
    root = None if step.root is None else members.index(step.root)
    return CollectiveCall(op.number, step.op, step.group, op.turn, members, root, sizes)


def _status(rank: Rank) -> RankStatus:
    """What a rank's watchdog reports of it."""
    with patch.object(status, "LOG", rank.log):
        return RankStatus(
            rank.number,
            COMMUNICATING if rank.waits_for else IDLE,
            call=record_of(rank.waits_for.note) if rank.waits_for else None,
            groups=len(GROUPS),
            history=tuple(status._history()),
            traffic=tuple(status._traffic()),
        )


@contextlib.contextmanager
def three_ranks() -> Iterator[None]:
    """Inside this, the groups of these programs are the ones that notes are read by."""
    with (
        patch.object(records, "members_of", GROUPS.__getitem__),
        patch.object(records, "ends_soon_in", lambda name: False),
        patch.object(status, "members_of", GROUPS.__getitem__),
    ):
        yield


# --- the judges ---


def stuck_by_proof(run: Run) -> set[int]:
    """The ranks that never end, as the notebook finds by their statuses."""
    needs = proof(run.states())
    return set() if needs is None else set(needs)


def stuck_by_simulation(run: Run) -> list[set[int]]:
    """The ranks that never end, as the simulator finds by their events: all its answers."""
    answers = []
    for events in run.events():
        spans = simulate(events, NETWORK).spans
        answers.append({*RANKS} - {span.rank for span in spans if span.op is None})
    return answers


def differences(program: Program, seed: int) -> list[str]:
    """What the judges disagree about, in words; the seed decides who is first.

    They may differ, and each for a reason:
    - gloo runs two collectives of a group at a time, and the simulator one, as NCCL does: where it
      matters whether they take turns, nothing is compared;
    - the proof may say nothing where only the unknown source of a message decides, but never
      anything false;
    - on the way to the end, where `unmoved` keeps it from being asked, it may count what a recv
      from any rank could take as taken, and a gather or scatter as needing all members.
    """
    run = Run(program, Random(seed))
    if run.is_open:
        return []
    found = []
    simulated = stuck_by_simulation(run)
    if any(answer != run.stuck for answer in simulated):
        found.append(f"the simulator: {simulated} never end; the run: {run.stuck or 'all end'}")
    proven = stuck_by_proof(run)
    if proven != run.stuck and (proven or not run.hides_a_source):
        found.append(f"the proof: {proven or 'nothing'}; the run: {run.stuck or 'all end'}")
    if _is_simple(program) and any(claim != run.places for claim in run.claims):
        found.append(
            f"the proof spoke too early: ranks were at {run.claims}, and came to {run.places}"
        )
    return found


def _is_simple(program: Program) -> bool:
    """Whether it has neither a recv from any rank nor a collective with a root."""
    for step in itertools.chain.from_iterable(program):
        is_recv_from_any = step.op == "recv" and step.peer is None
        if step.op in ROOTED or is_recv_from_any:
            return False
    return True


def smallest(program: Program, seeds: Sequence[int] = range(30)) -> tuple[Program, int]:
    """A program without a shorter one on which the judges disagree, and its seed."""
    current = next((program, seed) for seed in seeds if differences(program, seed))
    while True:
        found = _shorter_disagreement(current[0], seeds)
        if found is None:
            return current
        current = found


def _shorter_disagreement(program: Program, seeds: Sequence[int]) -> tuple[Program, int] | None:
    """The first shorter program on which the judges disagree, and its seed; None without one."""
    for less in shorter(program):
        for seed in seeds:
            if differences(less, seed):
                return less, seed
    return None
