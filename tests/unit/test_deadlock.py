"""Who waits for whom: correct programs for which nothing may be proven, and deadlocks that must be."""

import dataclasses

import pytest

from distlab.deadlock import BETWEEN, IDLE, SILENT, Need, State, need, proof, unmoved
from distlab.errors import Line
from tests.unit.paper import Paper


def stuck(paper: Paper) -> list[int]:
    """The ranks of a proof; none where nothing is proven."""
    return sorted(proof(paper.states()) or {})


# --- what can always go on ---


@pytest.mark.parametrize("how", ["computes", "silent", "has_not_begun"])
def test_a_rank_that_may_do_anything_saves_all(how):
    """While one rank computes, does not answer or has yet to begin, no wait of the others is hopeless."""
    paper = Paper(3)
    paper.recv(0, src=1)
    paper.recv(1, src=0)
    assert stuck(paper) == [0, 1]
    getattr(paper, how)(2)
    assert stuck(paper) == []


def test_ranks_that_have_finished_are_no_deadlock():
    """Nobody waits, so nobody is stuck."""
    assert proof(Paper(3).states()) is None


def test_a_call_that_ends_by_itself_saves_all():
    """A wait with a limit of its own comes back, and its rank may then do what the others need."""
    paper = Paper(3)
    paper.recv(0, src=1, own_limit=True)
    paper.recv(1, src=0)
    assert stuck(paper) == []


def test_one_rank_that_can_go_on_saves_those_that_need_it():
    """A circle of two does not prove that a third is stuck, whose call is served."""
    paper = Paper(4)
    paper.recv(0, src=1)
    paper.recv(1, src=0)
    paper.send(3, dst=2, wait=False)
    paper.recv(2, src=3)
    assert stuck(paper) == []
    paper.goes_on(2)
    assert stuck(paper) == [0, 1]


def test_a_call_of_a_group_that_is_gone_proves_nothing():
    """Nothing is known of the members of a destroyed group."""
    paper = Paper(2)
    call = paper.recv(0, src=1)
    call["members"], call["peer"] = [], None
    assert stuck(paper) == []


# --- messages ---


def test_a_message_that_was_sent_can_be_received():
    """A recv whose send was begun, though its rank has finished since, is no deadlock."""
    paper = Paper(2)
    paper.send(0, dst=1, wait=False)
    paper.recv(1, src=0)
    assert stuck(paper) == []


def test_a_recv_that_was_posted_can_be_sent_to():
    """A send to a rank that has begun to receive is no deadlock, whatever that rank waits for."""
    paper = Paper(2)
    paper.recv(1, src=0, wait=False)
    paper.send(0, dst=1)
    paper.collective(1)
    assert stuck(paper) == []


def test_messages_are_counted_in_their_order():
    """The second recv needs the second send; a wait for the first one does not."""
    paper = Paper(2)
    paper.send(0, dst=1, wait=False)
    first = paper.recv(1, src=0, wait=False)
    paper.recv(1, src=0)
    assert proof(paper.states()) == {1: Need((0,))}
    paper.wait(1, first)
    assert stuck(paper) == []


def test_more_messages_than_are_received_are_no_deadlock():
    """Unequal numbers of sends and recvs matter only to who waits."""
    paper = Paper(3)
    for _ in range(5):
        paper.send(0, dst=1, wait=False)
    paper.recv(1, src=0)
    assert stuck(paper) == []


@pytest.mark.parametrize("other", [{"tag": 1}, {"group": "1"}])
def test_tag_and_group_tell_messages_apart(other):
    """A message with another tag, or in another group of the same ranks, serves nobody here."""
    paper = Paper(2)
    paper.group("1", [0, 1])
    paper.send(0, dst=1, wait=False, **other)
    paper.recv(1, src=0)
    assert stuck(paper) == [1]


def test_an_isend_in_a_batch_serves_the_recv_beside_it():
    """A ring of irecvs and isends, waited for in any order, is correct."""
    paper = Paper(3)
    for rank in range(3):
        received = paper.recv(rank, src=(rank - 1) % 3, wait=False)
        paper.send(rank, dst=(rank + 1) % 3, wait=False)
        paper.wait(rank, received)
    assert stuck(paper) == []


def test_a_circle_of_three_is_a_deadlock():
    """Each receives from the one before, and nobody has sent."""
    paper = Paper(3)
    for rank in range(3):
        paper.recv(rank, src=(rank - 1) % 3)
    assert proof(paper.states()) == {0: Need((2,)), 1: Need((0,)), 2: Need((1,))}


def test_a_chain_ends_at_a_finished_rank():
    """Who needs a stuck rank is stuck."""
    paper = Paper(4)
    for rank in (1, 2, 3):
        paper.recv(rank, src=rank - 1)
    assert stuck(paper) == [1, 2, 3]


def test_two_ends_with_different_tags_clash():
    """The sentence names both tags, whichever of the ranks is looked at."""
    paper = Paper(2)
    paper.send(0, dst=1, tag=7)
    paper.recv(1, src=0, tag=9)
    words = "Rank 0 sends with tag 7, but rank 1 waits for tag 9."
    assert proof(paper.states()) == {0: Need((1,), clash=words), 1: Need((0,), clash=words)}


def test_two_receivers_with_different_tags_do_not_clash():
    """Two ranks that both receive lack a sender, not a tag."""
    paper = Paper(2)
    paper.recv(0, src=1, tag=7)
    paper.recv(1, src=0, tag=9)
    assert proof(paper.states()) == {0: Need((1,)), 1: Need((0,))}


def test_a_dropped_isend_is_told():
    """A message whose Work was dropped may be gone; if its recv is stuck, that is why."""
    paper = Paper(2)
    paper.send(0, dst=1, wait=False, dropped=True)
    paper.recv(1, src=0)
    words = (
        "Rank 0 did not keep what isend returned, and the message to rank 1 went with it: keep it, and call its wait()."
    )
    assert proof(paper.states()) == {1: Need((0,), clash=words)}


def test_a_dropped_isend_is_not_blamed_for_what_was_never_sent():
    """Where a message is missing anyway, that is told."""
    paper = Paper(2)
    paper.send(0, dst=1, wait=False, dropped=True)
    paper.recv(1, src=0, wait=False)
    paper.recv(1, src=0)
    assert proof(paper.states()) == {1: Need((0,))}


def test_a_dropped_isend_beside_one_that_was_kept_proves_nothing():
    """One message is enough for one recv."""
    paper = Paper(2)
    paper.send(0, dst=1, wait=False, dropped=True)
    paper.send(0, dst=1, wait=False)
    paper.recv(1, src=0)
    assert stuck(paper) == []


# --- from any source ---


def test_any_source_needs_one_of_all():
    """A recv from any source is hopeless when every other rank is lost, and not before."""
    paper = Paper(3)
    paper.recv(0)
    assert proof(paper.states()) == {0: Need((1, 2), one_suffices=True)}
    paper.recv(1, src=2)
    paper.send(2, dst=1)
    assert stuck(paper) == []


def test_any_source_is_served_by_any():
    """One message from anybody serves a recv from any source."""
    paper = Paper(3)
    paper.send(2, dst=0, wait=False)
    paper.recv(0)
    assert stuck(paper) == []


def test_one_recv_from_any_source_serves_one_of_two_senders():
    """Of two ranks that send to a rank that took one message, one has been served and one waits in vain."""
    paper = Paper(3)
    paper.recv(0)
    paper.send(1, dst=0)
    paper.send(2, dst=0)
    assert stuck(paper) == []
    paper.goes_on(0, 1)
    assert proof(paper.states()) == {2: Need((0,))}


def test_a_message_may_go_to_a_recv_from_any_source_before_a_directed_one():
    """A recv from rank 1 is stuck when an earlier one from any source has taken the only message."""
    paper = Paper(2)
    paper.recv(0)
    paper.send(1, dst=0)
    paper.goes_on(0, 1)
    paper.recv(0, src=1)
    assert stuck(paper) == [0]
    paper.send(1, dst=0, wait=False)
    assert stuck(paper) == []


def test_a_directed_recv_keeps_no_message_from_any_source():
    """Messages beyond those of directed recvs serve the ones from any source."""
    paper = Paper(3)
    paper.recv(0, src=2, wait=False)
    paper.send(1, dst=0, wait=False)
    paper.recv(0)
    assert stuck(paper) == []


def test_a_send_serves_a_directed_recv_beside_one_from_any_source():
    """A sender that has a directed recv is served, however many others compete for those from any source."""
    paper = Paper(4)
    paper.recv(0, wait=False)
    paper.recv(0, src=1, wait=False)
    for rank in (1, 2, 3):
        paper.send(rank, dst=0)
    paper.collective(0)
    assert need(paper.states()[1], paper.states()) is None
    assert need(paper.states()[2], paper.states()) == Need((0,))


def test_any_source_in_a_group_of_one_is_hopeless():
    """There is nobody who could send."""
    paper = Paper(1)
    paper.recv(0)
    words = "Rank 0 waits for a message from any other rank of a group that has no other."
    assert proof(paper.states()) == {0: Need(clash=words)}


def test_a_message_to_oneself_needs_the_other_half():
    """A rank that waits for its own message is stuck unless it has begun to send it."""
    paper = Paper(1)
    paper.recv(0, src=0)
    assert proof(paper.states()) == {0: Need((0,))}
    paper.send(0, dst=0, wait=False)
    assert stuck(paper) == []


# --- collectives ---


def test_a_collective_that_all_have_called_goes_on():
    """It is about to end, so nobody is stuck, though all wait."""
    paper = Paper(3)
    for rank in range(3):
        paper.collective(rank)
    assert stuck(paper) == []


def test_a_collective_needs_those_that_have_not_called_it():
    """The ranks that wait need the one that has finished without it."""
    paper = Paper(3)
    paper.collective(0)
    paper.collective(1)
    assert proof(paper.states()) == {0: Need((2,)), 1: Need((2,))}


def test_an_asynchronous_collective_counts_when_it_is_begun():
    """A rank that has begun it and does something else is not missing."""
    paper = Paper(2)
    paper.collective(0, wait=False)
    paper.recv(0, src=1)
    paper.collective(1)
    assert stuck(paper) == []


def test_two_asynchronous_collectives_in_another_order_clash():
    """Turn by turn, what the ranks called as the same collective is compared."""
    paper = Paper(2)
    first = paper.collective(0, wait=False)
    paper.collective(0, "broadcast", wait=False, root=0)
    paper.wait(0, first)
    second = paper.collective(1, "broadcast", wait=False, root=0)
    paper.collective(1, wait=False)
    paper.wait(1, second)
    words = "The ranks do not call the same collective: rank 0 calls all_reduce, rank 1 calls broadcast."
    assert {n.clash for n in proof(paper.states()).values()} == {words}


def test_a_rank_that_is_many_collectives_ahead_is_compared_at_the_same_turn():
    """Ten asynchronous calls later, the first is still what the others' first is compared with."""
    paper = Paper(2)
    works = [paper.collective(0, wait=False) for _ in range(10)]
    paper.wait(0, works[0])
    paper.collective(1, "broadcast", root=1)
    assert stuck(paper) == [0, 1]


def test_an_object_collective_is_several_collectives():
    """A rank in the second part of all_gather_object needs the rank that is in the first."""
    paper = Paper(2)
    for _ in range(2):
        paper.collective(0, "all_gather_object", collective="all_gather", tensors=[["int64", [1]]])
    paper.collective(1, "all_gather_object", collective="all_gather", tensors=[["int64", [1]]])
    assert stuck(paper) == []


def test_groups_have_turns_of_their_own():
    """A barrier of a subgroup needs its members only, and counts beside those of the world."""
    paper = Paper(4)
    group = paper.group("1", [1, 3])
    for rank in range(4):
        paper.collective(rank)
    paper.goes_on(0, 1, 2, 3)
    paper.collective(1, "barrier", group=group, tensors=[])
    assert proof(paper.states()) == {1: Need((3,))}
    paper.collective(3, "barrier", group=group, tensors=[])
    assert stuck(paper) == []


def test_a_rank_outside_of_the_group_is_not_needed():
    """A collective of a subgroup does not wait for a rank that is not in it and computes; the others may."""
    paper = Paper(3)
    group = paper.group("1", [0, 1])
    paper.collective(0, group=group)
    paper.recv(2, src=0)
    assert proof(paper.states()) == {0: Need((1,)), 2: Need((0,))}


def test_crossed_groups_are_a_circle():
    """Two ranks, each in the collective of another group of both."""
    paper = Paper(2)
    first, second = paper.group("1", [0, 1]), paper.group("2", [0, 1])
    paper.collective(0, group=first)
    paper.collective(1, group=second)
    assert proof(paper.states()) == {0: Need((1,)), 1: Need((0,))}


def test_a_collective_against_a_message():
    """One is in a barrier that the other has not come to, which waits for a message first."""
    paper = Paper(2)
    paper.collective(0, "barrier", tensors=[])
    paper.recv(1, src=0)
    assert stuck(paper) == [0, 1]


def test_a_finished_rank_that_had_called_it_is_not_missing():
    """A rank may leave a collective, and its cell, before the others have."""
    paper = Paper(2)
    paper.collective(0)
    paper.goes_on(0)
    paper.collective(1)
    assert stuck(paper) == []


# --- new_group ---


def test_new_group_needs_every_member():
    """A rank waits in new_group for the members that have not called it."""
    paper = Paper(3)
    paper.new_group(0, [0, 2])
    assert proof(paper.states()) == {0: Need((2,))}
    paper.new_group(2, [0, 2])
    assert stuck(paper) == []


def test_new_group_on_all_ranks_goes_on():
    """It is about to end."""
    paper = Paper(2)
    paper.new_group(0)
    paper.new_group(1)
    assert stuck(paper) == []


def test_a_new_group_that_only_some_have_made_before_is_told():
    """Ranks that are at different numbers of new_group wait for groups of different names."""
    paper = Paper(3)
    for rank in (0, 1):
        paper.new_group(rank, [0, 1])
    paper.goes_on(0, 1)
    for rank in range(3):
        paper.new_group(rank)
    words = (
        "Rank 2 waits in its new_group number 1, and ranks 0-1 have made more of them: "
        "every rank must call new_group, also for a group that it is not in."
    )
    assert proof(paper.states()) == {0: Need((2,)), 1: Need((2,)), 2: Need(clash=words)}


def test_a_group_that_its_members_make_alone_needs_them_only():
    """With local synchronisation nobody counts groups: a member that is elsewhere is missing."""
    paper = Paper(3)
    paper.new_group(0, [0, 1], local=True)
    assert proof(paper.states()) == {0: Need((1,))}
    paper.new_group(1, [0, 1], local=True)
    assert stuck(paper) == []


def test_a_new_group_with_a_limit_ends_by_itself():
    """new_group(timeout=...) raises on its own."""
    paper = Paper(2)
    paper.new_group(0, own_limit=True)
    assert stuck(paper) == []


# --- what C++ sends ---


@pytest.mark.parametrize("op", ["backward", "DistributedDataParallel"])
def test_training_needs_all_ranks_in_the_same_place(op):
    """A rank that waits there needs those that are elsewhere, one that waits in something else too."""
    paper = Paper(3)
    paper.other(0, op)
    paper.collective(1)
    assert proof(paper.states()) == {0: Need((1, 2)), 1: Need((0, 2))}


@pytest.mark.parametrize(
    ("op", "words"),
    [
        ("backward", "Every rank waits in backward() for the others' gradients."),
        ("DistributedDataParallel", "Every rank waits in DistributedDataParallel for the others."),
    ],
)
def test_all_ranks_in_the_same_place_without_an_end(op, words):
    """If nothing moves, all are stuck there."""
    paper = Paper(2)
    paper.other(0, op)
    paper.other(1, op)
    assert proof(paper.states()) == {0: Need(clash=words), 1: Need(clash=words)}


@pytest.mark.parametrize(("post", "peer"), [("send", None), ("send", 7), ("recv", 7)])
def test_a_peer_that_is_no_rank_proves_nothing(post, peer):
    """Whatever a rank says of its call, the judgement comes without an error."""
    paper = Paper(3)
    call = getattr(paper, post)(0, 1)
    paper.recv(1, src=0)
    call["peer"] = peer
    assert need(paper.states()[0], paper.states()) is None
    assert stuck(paper) == []


def test_what_is_not_known_may_end():
    """A wait in a function of torch.distributed that leaves no note proves nothing."""
    paper = Paper(2)
    paper.other(0, "init_process_group", own_limit=True)
    paper.recv(1, src=0)
    assert stuck(paper) == []


# --- whether anything moves ---

STILL = {"mark": (1, 2, 3, 4), "quiet": True}


def looks(**second):
    """Two looks at a stuck pair, the second one changed."""
    paper = Paper(2)
    paper.recv(0, src=1)
    before = paper.states(**STILL, rounds=(5, 7))
    return before, paper.states(**{**STILL, "rounds": (6, 8), **second})


def test_nothing_moved():
    """The same marks, quiet twice, and gloo's threads have run in between."""
    assert unmoved(*looks())


@pytest.mark.parametrize(
    "second",
    [
        {"mark": (1, 2, 3, 5)},
        {"quiet": False},
        {"rounds": (5, 8)},
        {"rounds": (6,)},
        {"rounds": (6, 8, 1)},
    ],
    ids=["another mark", "not quiet", "a loop has not run", "a loop has gone", "a loop is new"],
)
def test_something_moved(second):
    """Each sign of movement on one look is enough."""
    assert not unmoved(*looks(**second))


def test_a_rank_that_was_not_quiet_before_has_moved():
    """What it had in hand at the first look may have been delivered."""
    before, now = looks()
    assert not unmoved({**before, 1: dataclasses.replace(before[1], quiet=False)}, now)


def test_silent_or_missing_ranks_are_not_known_to_be_still():
    """A rank that does not answer, and the first look of all, prove no stillness."""
    before, now = looks()
    assert not unmoved(before, {**now, 1: State(1, SILENT)})
    assert not unmoved({}, now)
    assert not unmoved({0: before[0]}, now)


# --- answers ---

ANSWER = {
    "doing": "communicating",
    "lines": [("module.py", 3, "main()", "", False), ("/tmp/ipykernel_9/1.py", 4, "dist.barrier()", "f", True)],
    "call": {"op": "barrier"},
    "seconds": 0.5,
    "counts": {"0": 1},
    "groups": 1,
    "history": [{"op": "barrier"}],
    "traffic": [[True, "0", 1, 0, 2, 0]],
    "mark": [1, 2, 3, 4],
    "quiet": True,
    "rounds": [9],
}


def test_an_answer_becomes_a_state():
    """Lists become tuples, and lines of a cell count as the notebook does; the cell has no file."""
    assert State.of(1, ANSWER) == State(
        rank=1,
        doing="communicating",
        call={"op": "barrier"},
        lines=(Line(3, "main()", ""), Line(5, "dist.barrier()", "f")),
        file="",
        seconds=0.5,
        counts={"0": 1},
        groups=1,
        history=({"op": "barrier"},),
        traffic=((True, "0", 1, 0, 2, 0),),
        mark=(1, 2, 3, 4),
        quiet=True,
        rounds=(9,),
    )
    assert State.of(1, {**ANSWER, "lines": ANSWER["lines"][:1]}).file == "module.py"


@pytest.mark.parametrize("answer", [None, {"doing": "unknown", "why": "KeyError()"}], ids=["no answer", "a fault"])
def test_no_answer_is_silence(answer):
    """A rank that does not answer, or cannot say what it does, is silent."""
    assert State.of(2, answer) == State(2, SILENT)


def test_an_idle_rank_with_work_is_between():
    """An idle rank that has not answered what it was sent has not finished; a busy one is what it says."""
    idle = {**ANSWER, "doing": "idle", "call": None}
    assert State.of(0, idle, with_work=True).doing == BETWEEN
    assert State.of(0, idle).doing == IDLE
    assert State.of(0, ANSWER, with_work=True).doing == "communicating"
