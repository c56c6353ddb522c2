"""Why no rank can go on, in one to four sentences: the words for what proof.py has proven.

No process is asked. Runs on the notebook's kernel, called by failed_cell.py.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from distlab.diagnosis.ddp_passes import why_by_passes, why_no_gradients
from distlab.diagnosis.needs import Need, Waiting, waiter_in, waiting_ranks
from distlab.diagnosis.proof import need_of
from distlab.diagnosis.report import call_words, callee_words, own_wait_words
from distlab.wire import messages
from distlab.wire.messages import CallRecord, RankStatus, States
from distlab.words import grouped, rank_list

# sentences, or ranks in one, that are said; more would hide the first ones
MOST_CLASHES = 2
MOST_COMPLAINTS = 3
MOST_LINKS = 4
MOST_WAITS = 4
BACKWARD_OP = "backward"  # how the log names a backward pass
# what a rank does that begins no call any more, as far as anybody knows
GONE = (messages.IDLE, messages.OUTSIDE, messages.UNKNOWN)
# a verb for one rank, and for several
WAITS = ("waits", "wait")
SENDS = ("sends", "send")


class Clause(NamedTuple):
    """What a rank does, as the end of a sentence that begins with its name.

    Attributes:
        verb: its two forms, for one rank and for several.
        rest: all that follows the verb, with the full stop.
        within: what stands before the verb, such as ", in f(...) for rank 1,"; "" for nothing.
    """

    verb: tuple[str, str]
    rest: str
    within: str = ""


def why_stuck(
    needs: Mapping[int, Need],
    states: States,
    targets: Sequence[int] | None = None,
) -> str:
    """Why no rank can go on, in one to four sentences.

    Args:
        needs: by rank, what each waiting rank needs, as `proof` has found it.
        states: the statuses of every rank, by rank.
        targets: the ranks that run the cell; None for all.
    """
    waiters = waiting_ranks({rank: states[rank] for rank in sorted(needs)})
    sharing = []
    for rank, waiter in waiters.items():
        if _shares_a_group(waiter.state):
            sharing.append(rank)
    if sharing:
        return _of_threads_in_one_group(sharing)
    clashes = _clashes(needs)
    if clashes:
        return " ".join(clashes[:MOST_CLASHES])
    if any(waiter.call.kind == messages.REMOTE for waiter in waiters.values()):
        return _of_remote_calls(list(waiters.values()), states)
    gone_by_rank = _finished_ranks(needs, states)
    if not gone_by_rank:
        return _of_a_circle(needs, waiters, len(states))
    return _of_finished_ranks(gone_by_rank, waiters, states, targets)


def _clashes(needs: Mapping[int, Need]) -> list[str]:
    """Why ranks can never get what they need, each reason once, in the order of the ranks."""
    found: list[str] = []
    for rank in sorted(needs):
        clash = needs[rank].clash
        if clash and clash not in found:
            found.append(clash)
    return found


def _of_threads_in_one_group(ranks: Sequence[int]) -> str:
    """What to do where two threads of these ranks are in collectives of one group."""
    who = rank_list(ranks)
    if len(ranks) > 1:
        who = f"each of {who}"
    return f"Two threads of {who} use one group at once: give the second a group of its own."


def _shares_a_group(state: RankStatus) -> bool:
    """Whether two threads of a rank are in collectives of one group, whose order nobody knows then.

    A thread that waits for the Work of a call that was made elsewhere is not in that call.
    """
    groups = []
    for thread in (state, *state.other_threads):
        call = thread.call
        if call is None or call.kind != messages.COLLECTIVE:
            continue
        if call.lines == thread.lines:
            groups.append(call.group)
    return len(groups) > len(set(groups))


def _sentence(ranks: Sequence[int], clause: Clause) -> str:
    """What ranks do, in a sentence."""
    one, several = clause.verb
    verb = several if len(ranks) > 1 else one
    return f"{rank_list(ranks).capitalize()}{clause.within} {verb} {clause.rest}"


# --- some of the ranks that are needed have finished ---


def _finished_ranks(needs: Mapping[int, Need], states: States) -> dict[int, list[int]]:
    """By waiting rank, the ranks that it needs and that have finished, if there are any."""
    found = {}
    for rank in sorted(needs):
        gone = []
        for other in needs[rank].ranks:
            if states[other].doing in GONE:
                gone.append(other)
        if gone:
            found[rank] = gone
    return found


def _of_finished_ranks(
    gone_by_rank: Mapping[int, Sequence[int]],
    waiters: Mapping[int, Waiting],
    states: States,
    targets: Sequence[int] | None,
) -> str:
    """Why ranks wait for others that have finished."""
    complaints = []
    awaited: set[int] = set()
    for rank, gone in gone_by_rank.items():
        waiter = waiters[rank]
        for alike in grouped((states[other].doing, other) for other in gone).values():
            complaints.append((_complaint(waiter, alike, states), rank))
        # nobody knows for which ranks a backward pass waits
        if waiter.call.op != BACKWARD_OP:
            awaited.update(gone)
    sentences = []
    for clause, ranks in grouped(complaints).items():
        sentences.append(_sentence(ranks, clause))
    sentences = sentences[:MOST_COMPLAINTS]
    if targets is not None and awaited - set(targets):
        sentences.append(f"This cell runs on {rank_list(targets)} only.")
    return " ".join(sentences)


def _complaint(waiter: Waiting, gone: Sequence[int], states: States) -> Clause:
    """What a rank waits for that does not come, because these ranks have all ended alike."""
    call = waiter.call
    if call.kind == messages.MESSAGE and call.is_send:
        return Clause(SENDS, f"a message to {_without(gone, states, 'receiving', 'received')}.")
    if call.kind == messages.MESSAGE:
        return Clause(WAITS, f"for a message from {_without(gone, states, 'sending', 'sent')}.")
    finished = _gone_words(gone, states)
    if call.kind == messages.WAITING:
        return Clause(WAITS, f"{own_wait_words(call, finished)}.")
    if call.op == BACKWARD_OP:
        why = why_no_gradients(waiter.state, gone, states)
        return Clause(WAITS, f"in backward() for gradients of {finished}{why}")
    if call.op == messages.DDP_FORWARD:
        advice = ": to evaluate on some ranks only, call the model inside, with .module."
        why = why_by_passes(waiter.state, gone, states, advice)
        forward = "the forward pass of DDP, which broadcasts buffers and the order of buckets"
        return Clause(WAITS, f"in {forward}, for {finished}{why}")
    return _complaint_about_call(call, gone, states)


def _gone_words(gone: Sequence[int], states: States) -> str:
    """Ranks that do not come, which have all ended alike, and how: "rank 2, which has finished"."""
    who = rank_list(gone)
    doing = states[gone[0]].doing
    if doing == messages.UNKNOWN:
        return f"{who}, of which nothing is known"
    if doing == messages.OUTSIDE:
        return f"{who}, which {'are' if len(gone) > 1 else 'is'} not in a call"
    return f"{who}, which {'have' if len(gone) > 1 else 'has'} finished"


def _without(
    gone: Sequence[int], states: States, leaving_out: str, done: str, again: str = ""
) -> str:
    """`_gone_words`, and what these ranks have not done.

    Args:
        gone: the ranks.
        states: the statuses of every rank, by rank.
        leaving_out: what they have not done, as "without" has it: "calling".
        done: the same after "has not": "called".
        again: " again" if they have done it before.
    """
    words = _gone_words(gone, states)
    doing = states[gone[0]].doing
    if doing == messages.UNKNOWN:
        return words
    if doing == messages.OUTSIDE:
        return f"{words} and {'have' if len(gone) > 1 else 'has'} not {done} it{again}"
    return f"{words} without {leaving_out} it{again}"


def _complaint_about_call(call: CallRecord, gone: Sequence[int], states: States) -> Clause:
    """What a rank waits for in a call that others have not made, which have all ended alike."""
    where = f"in {call.op}"
    if call.kind == messages.NEW_GROUP and call.sequence:
        where += ", which every rank must call,"
    again = ""
    if any(_called_before(call, states[rank]) for rank in gone):
        again = " again"
    return Clause(WAITS, f"{where} for {_without(gone, states, 'calling', 'called', again)}.")


def _called_before(call: CallRecord, state: RankStatus) -> bool:
    """Whether a rank has made a call like this one before, as in a loop."""
    if call.kind == messages.NEW_GROUP:
        if not call.sequence:  # only its members make the group
            return False
        return any(group.name.isdigit() for group in state.made)
    if call.kind == messages.OWN_WORLD:
        return any(world.site == call.site for world in state.worlds)
    for old in state.history:
        if (old.group, old.op, old.site) == (call.group, call.op, call.site):
            return True
    return False


# --- all ranks wait for each other ---


def _of_a_circle(needs: Mapping[int, Need], waiters: Mapping[int, Waiting], n: int) -> str:
    """Why ranks wait that need each other, where none that they need has finished.

    Args:
        needs: by rank, what each waiting rank needs.
        waiters: the same ranks with their calls, in order.
        n: the number of all ranks.
    """
    calls = [waiter.call for waiter in waiters.values()]
    first = "The rank waits for itself"
    if len(needs) > 1:
        first = f"{len(needs)} of {n} ranks wait for each other"
    why = _why_a_circle(calls)
    if why:
        return f"{first}{why}"
    alike = grouped((_link_of_circle(one, needs[rank]), rank) for rank, one in waiters.items())
    links = [f"{rank_list(ranks)} {words}" for words, ranks in alike.items()]
    listed = ", ".join(links[:MOST_LINKS])
    if len(links) > MOST_LINKS:
        listed += ", and so on"
    words = f"{first}: {listed}."
    # groups that only their members make have no number
    if all(call.kind == messages.NEW_GROUP and not call.sequence for call in calls):
        words += " Every rank must make the groups that it shares with others in the same order."
    return words


def _why_a_circle(calls: Sequence[CallRecord]) -> str:
    """The end of a sentence about ranks whose calls explain why they wait for each other, or ""."""
    kinds = {call.kind for call in calls}
    if kinds == {messages.MESSAGE}:
        directions = {call.is_send for call in calls}
        if directions == {False}:
            return "; nobody will send."
        if directions == {True}:
            return "; nobody will receive, and a send waits for its receiver."
    if kinds == {messages.COLLECTIVE}:
        groups = {call.group for call in calls}
        ops = sorted({call.op for call in calls})
        if len(groups) > 1:
            return f": they call {' and '.join(ops)} in different groups."
    return ""


def _link_of_circle(waiter: Waiting, needed: Need) -> str:
    """How a rank of a circle waits, and for whom: "in barrier for rank 1"."""
    call = waiter.call
    whom = rank_list(needed.ranks)
    if call.kind == messages.WAITING:
        return own_wait_words(call, whom)
    return f"in {call.op} for {whom}"


# --- remote calls ---


def _of_remote_calls(waiters: Sequence[Waiting], states: States) -> str:
    """Why remote calls never end.

    The sentences say which rank each call waits for, and what that rank waits for while it serves
    the call.

    Args:
        waiters: the ranks that wait.
        states: the statuses of every rank, by rank.
    """
    serving: list[RankStatus] = []
    for rank in sorted(states):
        serving += states[rank].serving
    unclaimed = Counter((thread.rank, thread.caller, thread.function) for thread in serving)
    waits = []
    for waiter in waiters:
        waits.append((_wait_with_reason(waiter, states, unclaimed), waiter.rank))
    for thread in serving:
        served = waiter_in(thread)
        if served is not None:
            within = f", in {thread.function}(...) for rank {thread.caller},"
            clause = _wait_with_reason(served, states, unclaimed)
            waits.append((clause._replace(within=within), thread.rank))
    sentences = []
    for clause, ranks in grouped(waits).items():
        sentences.append(_sentence(sorted(set(ranks)), clause))
    return " ".join(sentences[:MOST_WAITS])


def _wait_with_reason(
    waiter: Waiting, states: States, unclaimed: Counter[tuple[int, int, str]]
) -> Clause:
    """What a rank, or a thread that serves a remote call, waits for, and why that does not come.

    Args:
        waiter: the rank or thread.
        states: the statuses of every rank, by rank.
        unclaimed: as for `_unserved`.
    """
    call = waiter.call
    if call.kind == messages.REMOTE:
        what = f"for {callee_words(call)}"
        for rank in call.members:
            if rank in states:
                what += _unserved(states[waiter.rank], call, states[rank], unclaimed)
        return Clause(WAITS, f"{what}.")
    what = f"in {call_words(call)}"
    needed = need_of(waiter.state, states)
    if needed is not None and needed.ranks:
        what += f" for {rank_list(needed.ranks)}"
    return Clause(WAITS, f"{what}.")


def _unserved(
    caller: RankStatus,
    call: CallRecord,
    callee: RankStatus,
    unclaimed: Counter[tuple[int, int, str]],
) -> str:
    """Why a callee does not answer a call that it does not serve; "" if it serves the call.

    Args:
        caller: the rank that waits for the answer.
        call: its remote call.
        callee: the rank that is to answer.
        unclaimed: how many calls of one callee, caller and function are being served and have not
            been counted for a caller yet; this call takes one of them.
    """
    key = (callee.rank, caller.rank, call.function)
    unclaimed[key] -= 1
    if unclaimed[key] >= 0:
        return ""
    if not callee.threads:
        return f", but rank {callee.rank} no longer has an RPC agent"
    for busy in (callee, caller):  # C++ needs one of the caller's threads to take the answer
        if 0 < busy.threads <= len(busy.serving):
            return f", but rank {busy.rank}'s {_all_threads(busy.threads)} waiting"
    if call.function:
        return ", which returned a Future that nobody completes"
    return ""


def _all_threads(number: int) -> str:
    """All threads of a rank for remote calls, with their verb."""
    if number == 1:
        return "only thread for calls is"
    return f"{number} threads for calls are all"
