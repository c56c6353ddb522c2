"""The words of a verdict, from what ranks tell."""

import pytest

from distlab import errors
from distlab.checking import Limits
from distlab.client import verdict
from distlab.client.verdict import Verdict
from distlab.simulated.events import Collective, Message, Wait
from distlab.simulated.trial import Outcome


def outcome(right=True, events=(), printed="", given="1", why=""):
    return Outcome(right, given, "2", "2" if right else "3", why, (1, 4), list(events), printed)


def sends(op, peer, size):
    return [Message(op, True, peer, size, ("0", 0)), Wait(op)]


def receives(op, peer, size):
    return [Message(op, False, peer, size, ("0", 0)), Wait(op)]


# rank 0 sends two messages to rank 1, one after the other
TWO_MESSAGES = [
    outcome(events=sends(1, 1, 8) + sends(2, 1, 8)),
    outcome(events=receives(1, 0, 8) + receives(2, 0, 8)),
]


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (Verdict("chain", True, words="8 cases with 2 ranks."), "chain: passed. 8 cases with 2 ranks."),
        (Verdict("chain", False), "chain: not yet"),
        (Verdict("chain", False, attempted=False), "chain: not attempted"),
    ],
)
def test_a_verdict_shows_itself_in_one_line(found, words):
    """Name, state, and the reason where there is one."""
    assert repr(found) == words


def test_wrong_values_are_a_grid_with_what_they_look_like():
    """Every rank has its line; ranks with the same fault share a sentence; what was printed is there, but not much."""
    why = "Nothing is returned: is a `return` missing?"
    ranks = [outcome(printed="so far\nso good"), outcome(False, why=why), outcome(False, why=why, printed="x" * 500)]
    assert verdict.wrong_values("3 ranks", ranks).splitlines() == [
        "With 3 ranks it gives wrong values:",
        "         given   expected   yours",
        "rank 0   1       2          2",
        "rank 1   1       2          3       wrong",
        "rank 2   1       2          3       wrong",
        f"Ranks 1-2: {why}",
        "rank 0 printed: so far so good",
        f"rank 2 printed: {'x' * verdict.MOST_PRINTED}",
    ]


def test_a_function_without_arguments_has_no_column_for_them():
    """Nothing was given."""
    assert "\n         expected   yours\n" in verdict.wrong_values("1 rank", [outcome(False, given="")])


def test_what_is_forbidden_is_named():
    """Each of the collectives that the exercise builds, and no others."""
    event = Collective(1, "all_reduce", "0", 1, (0, 1), 0, (8, 4), (8, 4))
    assert verdict.forbidden([outcome(), outcome(events=[event])], ["all_reduce", "barrier"]).count("dist.") == 1
    assert verdict.forbidden([outcome(events=[event])], ["barrier"]) == ""


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        (Limits(num_bytes=16, messages=2, steps=2, calls=0), ""),
        (Limits(num_bytes=8, because="Twice?"), "with 2 ranks rank 0 sends 16 B where 8 B suffice. Twice?"),
        (Limits(messages=1), "with 2 ranks rank 0 sends 2 messages where 1 is enough."),
        (Limits(steps=1), "with 2 ranks 2 messages follow each other where 1 is enough."),
    ],
)
def test_what_a_right_answer_does_too_much_is_counted(limits, words):
    """Bytes and messages of the rank that sends most, and messages that wait for each other."""
    assert verdict.too_much("2 ranks", TWO_MESSAGES, limits) == (words and f"The values are right, but {words}")


def test_calls_of_collectives_are_counted():
    """A limit on how many a rank calls."""
    events = [Collective(op, "broadcast", "0", op, (0, 1), 0, (8,), (8,)) for op in (1, 2)]
    words = verdict.too_much("2 ranks", [outcome(events=events)] * 2, Limits(calls=1))
    assert words == "The values are right, but with 2 ranks rank 0 calls 2 collectives where 1 is enough."


def test_an_error_is_told_as_of_a_world_of_its_own():
    """The small world's group is not named, its ranks are all, and nothing is said of the time afterwards."""
    error = errors.DeadlockError(
        "3 of 4 ranks wait for each other; nobody will send.\n"
        "  rank 0  recv(src=2, group of ranks 0-2)  line 3\n"
        "  rank 1  all_reduce(group of ranks 0-2)  line 4\n"
        "Freed after 1.1 s. Variables are kept and the process group is rebuilt: change the cell and run it again."
    )
    assert verdict.raised("3 ranks", error, 3, 4).splitlines() == [
        "With 3 ranks it ends in DeadlockError:",
        "3 of 3 ranks wait for each other; nobody will send.",
        "  rank 0  recv(src=2)  line 3",
        "  rank 1  all_reduce()  line 4",
    ]
