"""The words of a verdict, from what ranks report."""

from types import SimpleNamespace

import pytest

from distlab import errors
from distlab.checking import Limits
from distlab.client import verdict
from distlab.client.verdict import Verdict
from distlab.simulated.events import Collective, Message, Wait
from distlab.simulated.trial import Outcome


def outcome(right=True, events=(), printed="", given="1", why=""):
    return Outcome(right, given, "2", "2" if right else "3", why, (1, 4), list(events), printed)


def asks(forbids=(), limits=None):
    return SimpleNamespace(forbids=forbids, limits=limits, texts=lambda kind: ["Twice?"])


def messages(sends, peer):
    """Two messages of 8 bytes, one after the other."""
    return [event for op in (1, 2) for event in (Message(op, sends, peer, 8, ("0", 0)), Wait(op))]


def broadcasts(op, ranks=(0, 1)):
    return Collective(op, "broadcast", "0", op, ranks, 0, (8,), (8,))


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
    assert verdict.wrong("3 ranks", ranks, asks()).splitlines() == [
        "With 3 ranks it gives wrong values:",
        "         given   expected   yours",
        "rank 0   1       2          2",
        "rank 1   1       2          3       wrong",
        "rank 2   1       2          3       wrong",
        f"Ranks 1-2: {why}",
        "rank 0 printed: so far so good",
        f"rank 2 printed: {'x' * verdict.MOST_PRINTED}",
    ]
    assert "\n         expected   yours\n" in verdict.wrong("1 rank", [outcome(False, given="")], asks())


@pytest.mark.parametrize(
    ("events", "exercise", "words"),
    [
        ([[broadcasts(1, (0,))]], asks(["broadcast", "barrier"]), "it calls dist.broadcast. The exercise is to do it"),
        ([[broadcasts(1, (0,))]], asks(["barrier"]), ""),
        ([messages(True, 1), messages(False, 0)], asks(limits=Limits(16, messages=2, steps=2, calls=0)), ""),
        (
            [messages(True, 1), messages(False, 0)],
            asks(limits=lambda n, length, item: Limits(n * length * item)),
            "with 2 ranks rank 0 sends 16 B where 8 B suffice. Twice?",
        ),
        (
            [messages(True, 1), messages(False, 0)],
            asks(limits=Limits(messages=1)),
            "with 2 ranks rank 0 sends 2 messages where 1 is enough. Twice?",
        ),
        (
            [messages(True, 1), messages(False, 0)],
            asks(limits=Limits(steps=1)),
            "with 2 ranks 2 messages follow each other where 1 is enough. Twice?",
        ),
        (
            [[broadcasts(1), broadcasts(2)]] * 2,
            asks(limits=Limits(calls=1)),
            "with 2 ranks rank 0 calls 2 collectives where 1 is enough. Twice?",
        ),
    ],
)
def test_what_a_right_answer_must_not_do(events, exercise, words):
    """Collectives that the exercise builds; bytes, messages and calls of a rank, and messages that wait."""
    ranks = [outcome(events=of_rank) for of_rank in events]
    found = verdict.wrong(f"{len(ranks)} ranks", ranks, exercise)
    assert found.startswith(words and f"The values are right, but {words}")
    assert bool(found) == bool(words)


def test_an_error_is_shown_as_of_a_world_of_its_own():
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
