"""Who waits for whom: correct programs, and deadlocks with what a learner reads."""

from dataclasses import replace

import pytest

from distlab.diagnosis import stuck
from distlab.diagnosis.proof import proof, status_of, unmoved
from distlab.wire import messages
from distlab.wire.messages import Answer, RankStatus
from distlab.wire.source import Line
from tests.unit.paper import Paper

# --- what can go on ---

CAN_GO_ON = {
    "all have finished": "3 ranks",
    "a rank that computes may do anything": "3 ranks; 0 recv 1; 1 recv 0; 2 computes",
    "a rank that does not answer may do anything": "3 ranks; 0 recv 1; 1 recv 0; 2 is_silent",
    "a rank that has yet to begin may do anything": "3 ranks; 0 recv 1; 1 recv 0; 2 has_not_begun",
    "a call that ends by itself": "2 ranks; 0 recv 1 own_limit; 1 recv 0",
    "a circle beside a rank whose call is served": (
        "4 ranks; 0 recv 1; 1 recv 0; 3 isend 2; 2 recv 3"
    ),
    "a call of a group that is gone": "2 ranks; 0 recv 1 gone",
    "a send to a rank that is none": "3 ranks; 0 send 7; 1 recv 0",
    # messages
    "a message from a rank that has finished since": "2 ranks; 0 isend 1; 1 recv 0",
    "a message to a rank that has begun to receive": "2 ranks; 1 irecv 0; 0 send 1; 1 all_reduce",
    "a dropped isend after one that was kept": "2 ranks; 0 isend 1; 0 isend 1 dropped; 1 recv 0",
    "a dropped isend that nobody receives": (
        "2 ranks; 0 isend 1 dropped; 0 send 1 tag=1; 1 recv 0 tag=1"
    ),
    "a dropped isend to another rank": "3 ranks; 0 isend 1 dropped; 1 irecv 0; 0 send 2; 2 recv 0",
    "a dropped isend in another group": (
        "3 ranks; 0 isend 1 dropped group=b:0,1; 1 irecv 0 group=b:0,1; 0-2 all_reduce"
    ),
    "a dropped irecv whose message has come": (
        "2 ranks; 0 irecv 1 dropped; 1 isend 0; 1 isend 0; 0 recv 1"
    ),
    "a dropped irecv of what nobody sends": (
        "2 ranks; 0 irecv 1 dropped unread; 1 isend 0 tag=1; 0 recv 1 tag=1"
    ),
    "a dropped irecv from another rank": (
        "3 ranks; 0 irecv 1 dropped unread; 1 isend 0; 2 isend 0; 0 recv 2"
    ),
    "a dropped irecv in another group": (
        "3 ranks; 0 irecv 1 dropped unread group=b:0,1; 1 isend 0 group=b:0,1; 0-2 all_reduce"
    ),
    "a dropped irecv beside one from any source": (
        "2 ranks; 0 irecv any; 0 irecv 1 dropped unread; 1 isend 0; 1 isend 0 tag=1; 0 recv 1 tag=1"
    ),
    # from any source
    "from any source, while others exchange": "3 ranks; 0 recv any; 1 recv 2; 2 send 1",
    "from any source, and one has sent": "3 ranks; 2 isend 0; 0 recv any",
    "a send to a recv from any source": "2 ranks; 0 irecv any; 1 send 0",
    "a message beside the one that any source took": (
        "2 ranks; 0 irecv any; 1 isend 0; 1 isend 0; 0 recv 1"
    ),
    "a sender with a recv of its own": "4 ranks; 0 irecv any; 0 irecv 1; 1-3 send 0; 0 all_reduce",
    # collectives
    "a collective that all have called": "3 ranks; 0-2 all_reduce",
    "a collective that a rank has left, and its cell": (
        "2 ranks; 0 all_reduce; 0 finishes; 1 all_reduce"
    ),
    "a collective of a group that a rank has destroyed since": (
        "2 ranks; 0 all_reduce gone; 0 finishes; 1 all_reduce"
    ),
    "new_group on all ranks": "2 ranks; 0-1 new_group",
    "new_group on its members alone": "3 ranks; 0-1 new_group members=0,1 local",
    "a group that a member has made, and its cell": "2 ranks; 0-1 new_group; 1 finishes",
    "a group that a member has made, and more": "3 ranks; 0-2 new_group; 1 new_group members=1,2",
    "a group of which a rank outside knows nothing": "3 ranks; 0-1 new_group members=0,1",
    "groups of one rank each under one number": (
        "2 ranks; 0 new_group members=0; 1 new_group members=1; 1 finishes"
    ),
    "new_group as a line that members share": (
        "3 ranks; 0-1 new_group members=0,1 local; 1 new_group members=1,2 local"
    ),
    # remote calls
    "a function that computes for another rank": "2 ranks; 0 calls 1 add; 1 for 0 add",
    "a function that may send": "3 ranks; 0 recv 2; 1 for 2 add",
    "a function that waits for a rank that computes": (
        "3 ranks; 0 calls 1 add; 1 for 0 add recv 2; 2 computes"
    ),
    "a start of RPC on all ranks": "2 ranks; 0-1 init_rpc",
}


@pytest.mark.parametrize("steps", CAN_GO_ON.values(), ids=CAN_GO_ON)
def test_what_can_go_on_is_no_deadlock(steps):
    """No false alarm: one rank that may go on saves all that need it."""
    assert proof(Paper(steps).states()) is None


# --- deadlocks ---

# what ranks do, and which ranks each of them needs, ! where that cannot be; the words are in the
# zoo
DEADLOCKS = {
    "2 ranks; 0 isend 1 tag=1; 1 recv 0 tag=2": "1<0",  # another tag was sent
    "2 ranks; 0 isend 1 group=b:0,1; 1 recv 0": "1<0",  # the same tag, in another group
    # a dropped isend is not blamed for another
    "2 ranks; 0 isend 1 dropped; 1 irecv 0; 1 recv 0": "1<0",
    # a dropped isend that a recv waits for blocks what comes after it: of its kind, with another
    # tag, the other way
    "2 ranks; 0 isend 1 dropped; 0 isend 1; 1 recv 0": "1<!",
    "2 ranks; 0 isend 1 dropped; 0 send 1 tag=1; 1 irecv 0; 1 recv 0 tag=1": "0<! 1<!",
    "2 ranks; 0 isend 1 dropped; 1 irecv 0; 1 send 0; 0 recv 1": "0<! 1<!",
    "3 ranks; 0 isend 1 dropped; 1 irecv 0; 0-2 all_reduce": "0<! 1<! 2<!",
    # so does a dropped irecv of which the message has come since, whether its isend was dropped,
    # too
    "2 ranks; 0 irecv 1 dropped unread; 1 isend 0; 1 isend 0; 0 recv 1": "0<!",
    (
        "2 ranks; 0 irecv 1 dropped unread; 1 isend 0 dropped; 1 send 0 tag=1; 0 recv 1 tag=1"
    ): "0<! 1<!",
    "2 ranks; 0 irecv 1 dropped unread; 1 isend 0; 0 send 1; 1 recv 0": "0<! 1<!",
    "3 ranks; 0 irecv 1 dropped unread; 1 isend 0; 0-2 all_reduce": "0<! 1<! 2<!",
    "3 ranks; 0 irecv any; 2 isend 0; 1 send 0": "1<0",  # any source took one of two
    "2 ranks; 1 irecv any; 0 isend 1; 1 recv 0": "1<0",  # any source took the message
    # others than a sender with a recv of its own
    "4 ranks; 0 irecv any; 0 irecv 1; 1-3 send 0; 0 all_reduce; 1 finishes": "0<1,2,3 2<0 3<0",
    "1 rank; 0 recv any": "0<!",  # any source in a group of one
    "1 rank; 0 recv 0": "0<0",  # a message of oneself
    # another collective, and another group, before
    "2 ranks; 0-1 barrier; 0-1 all_reduce group=b:0,1; 1 finishes; 0 all_reduce": "0<1",
    # asynchronous collectives in another order
    (
        "2 ranks; 0 all_reduce async; 0 barrier async; 0 waits; "
        "1 barrier async; 1 all_reduce async; 1 waits"
    ): "0<! 1<!",
    "2 ranks; "
    + "0 all_reduce async; " * 10
    + "0 waits; 1 broadcast root=1": "0<! 1<!",  # a rank that is ten collectives ahead
    # a rank outside of the group is not needed
    "3 ranks; 0 all_reduce group=b:0,1; 2 recv 0": "0<1 2<0",
    # two groups under one number: the other rank waits in its own, has gone past it, or has
    # finished
    "3 ranks; 0 new_group members=0,1; 1 new_group members=0-2": "0<! 1<2!",
    "3 ranks; 0 new_group members=0,1; 1 new_group members=1,2; 1 new_group members=0,1": "0<! 1<0",
    "3 ranks; 0 new_group members=0,1; 1 new_group members=1,2; 1 finishes": "0<!",
    # a rank that makes one more
    "3 ranks; 0-1 new_group members=0,1; 0 finishes; 1 new_group members=0-2": "1<0,2",
    # in a circle, of pairs that are made by their members alone
    (
        "3 ranks; 0 new_group members=0,1 local; 1 new_group members=1,2 local; "
        "2 new_group members=0,2 local"
    ): "0<1 1<2 2<0",
    # under another name, because one of them is in more groups
    "2 ranks; 0 new_group members=0,1 local within=2; 1 new_group members=0,1 local": "0<1! 1<0!",
    # a group that its members make alone, which is not counted, needs them only
    "3 ranks; 0 new_group members=0,1 local": "0<1",
    "2 ranks; 0 DistributedDataParallel": "0<1",  # a model that one rank wraps
    # remote calls
    "3 ranks; 0,2 calls 1 add; 1 for 0 add calls 2 twice; 2 for 1 twice calls 1 add": "0<1 2<1",
}


@pytest.mark.parametrize(("steps", "needs"), DEADLOCKS.items())
def test_a_deadlock_is_proven(steps, needs):
    """For every rank that has not finished, whom it needs."""
    found = proof(Paper(steps).states())
    words = [
        f"{r}<{','.join(map(str, need.ranks))}{'!' * bool(need.clash)}"
        for r, need in sorted(found.items())
    ]
    assert " ".join(words) == needs


HEADLINES = {  # what is hard to reach with real ranks
    "2 ranks; 0-1 new_group; 1 finishes; 0 new_group": (
        "Rank 0 waits in new_group, which every rank must call, for rank 1, which has "
        "finished without calling it again."
    ),
    "2 ranks; 0 new_group members=0,1 local": (
        "Rank 0 waits in new_group for rank 1, which has finished without calling it."
    ),
    "2 ranks; 0 new_group members=0,1 local within=2; 1 new_group members=0,1 local": (
        "The members of the group of ranks 0-1 cannot find each other: "
        "torch names a group with use_local_synchronization=True by its members and by how "
        "many groups a rank is in, and rank 0 is in 2, rank 1 is in 1. "
        "Leave use_local_synchronization=True out, and make every group on every rank."
    ),
    "2 ranks; 0-1 backward": "Every rank waits in backward for the others.",
    "3 ranks; 0-1 calls 2 add": (
        "Ranks 0-1 wait for rank 2: add(...), but rank 2 no longer has an RPC agent."
    ),
}


@pytest.mark.parametrize(("steps", "headline"), HEADLINES.items())
def test_the_headline_of_a_deadlock(steps, headline):
    """Who waits for whom, and why it will not end; the zoo has many more."""
    states = Paper(steps).states()
    assert stuck.why_stuck(proof(states), states) == headline


LOST = "2 ranks; 0 irecv 1 dropped unread; 1 isend 0; 1 isend 0 tag=1; 0 recv 1 tag=1"


@pytest.mark.parametrize(
    ("dropped", "where"),
    [((), ""), ((1,), " (line 11)"), ((1, 2), " (line 11)")],  # the second message was not sent
)
def test_the_line_of_a_dropped_irecv_is_named(dropped, where):
    """Where the rank remembers it: older irecvs may have received before."""
    states = Paper(LOST).states()
    irecv = replace(states[0].call, op="irecv", tag=0)
    lines = {number: (Line(10 + number, ""),) for number in dropped}
    left = [replace(irecv, sequence=number, lines=line) for number, line in lines.items()]
    states[0] = replace(states[0], abandoned=(*left, replace(irecv, op="isend", is_send=True)))
    assert stuck.why_stuck(proof(states), states) == (
        f"Rank 0 dropped the Work of its irecv{where}, and the message from rank 1 with it: "
        "keep the Work and call its wait()."
    )


def test_ranks_that_do_not_run_the_cell_are_named_as_that():
    """The others have not finished, because they do not run the cell."""
    states = Paper("4 ranks; 0-1 all_reduce; 1 recv 3").states()
    assert stuck.why_stuck(proof(states), states, [0, 1, 2]) == (
        "Rank 0 waits in all_reduce for ranks 2-3, which have finished without calling it. "
        "Rank 1 waits for a message from rank 3, which has finished without sending it. "
        "This cell runs on ranks 0-2 only."
    )


# --- whether anything moves ---

STILL = {"fingerprint": (1, 2, 3, 4), "is_quiescent": True}


@pytest.mark.parametrize(
    ("second", "nothing_moved"),
    [
        ({}, True),
        ({"fingerprint": (1, 2, 3, 5)}, False),
        ({"is_quiescent": False}, False),
        ({"gloo_wakeups": (5, 8)}, False),
        ({"gloo_wakeups": (6,)}, False),
        ({"gloo_wakeups": (6, 8, 1)}, False),
        ({"doing": messages.SILENT}, False),
        ({"unread": 8}, False),
        ({"unsent": 8}, False),
    ],
)
def test_one_sign_of_movement_is_enough(second, nothing_moved):
    """Two looks at a stuck pair, between which something has changed."""
    paper = Paper("2 ranks; 0 recv 1")
    before = paper.states(**STILL, gloo_wakeups=(5, 7))
    now = paper.states(**{**STILL, "gloo_wakeups": (6, 8), **second})
    assert unmoved(before, now) == nothing_moved


def test_the_first_look_proves_no_stillness():
    """Nor a look at fewer ranks, or one that was not quiet."""
    before, now = (
        Paper("2 ranks; 0 recv 1").states(**STILL, gloo_wakeups=(looks,)) for looks in (1, 2)
    )
    assert unmoved(before, now)
    for less in ({}, {0: before[0]}, {**before, 1: replace(before[1], is_quiescent=False)}):
        assert not unmoved(less, now)


@pytest.mark.parametrize(
    ("steps", "first", "second", "nothing_moved"),
    [
        (LOST, {"unsent": 9}, {"unsent": 9}, True),
        (LOST, {"unsent": 9}, {"unsent": 8}, False),
        (LOST, {"unread": 9}, {}, False),
        ("2 ranks; 0 irecv 1 unread; 1 isend 0; 0 waits", {}, {}, False),
        ("2 ranks; 0 irecv 1 dropped unread; 0 recv 1 tag=1", {}, {}, False),
    ],
)
def test_bytes_stay_in_the_sockets_behind_a_dropped_irecv_alone(
    steps, first, second, nothing_moved
):
    """gloo takes all others: a look at them proves nothing."""
    before, now = (
        Paper(steps).states(**STILL, gloo_wakeups=(looks,), **what)
        for looks, what in ((1, first), (2, second))
    )
    assert unmoved(before, now) == nothing_moved


# --- answers ---

WAITS = Paper("2 ranks; 1 barrier").states()[1]


@pytest.mark.parametrize("answer", [None, Answer(1)], ids=["no answer", "a fault"])
def test_no_answer_is_silence(answer):
    """A rank that does not answer, or cannot report what it does, is silent."""
    assert status_of(2, answer) == RankStatus(2, messages.SILENT)


def test_an_idle_rank_with_work_is_between():
    """An idle main thread with work has not finished; a busy one does what it reports."""
    for idle, doing in ((True, messages.BETWEEN), (False, messages.COMMUNICATING)):
        answer = Answer(1, replace(WAITS, idle=idle))
        assert status_of(1, answer, with_work=True).doing == doing
        assert status_of(1, answer) == answer.status
