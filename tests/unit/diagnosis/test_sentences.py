"""Every function that makes words, on generated statuses and failures: sentences."""

import functools
import importlib
import inspect
import pkgutil
import types
import typing
from dataclasses import is_dataclass, replace
from random import Random

import pytest

from distlab import diagnosis
from distlab.diagnosis import (
    advice,
    afterwards,
    deaths,
    endings,
    failures,
    joining,
    lines,
    marks,
    matching,
    meanwhile,
    new_groups,
    preempted,
    proof,
    readable,
    report,
    stuck,
)
from distlab.wire import messages
from distlab.wire.messages import COMMUNICATING, MESSAGE, CallRecord, Failure, NewGroup, RankStatus
from distlab.wire.source import Line

STATUSES = 300  # seeds
RANKS = range(4)
# what the fields hold whose types say less than their docstrings
KINDS = (messages.MESSAGE, messages.COLLECTIVE, messages.REMOTE, messages.OTHER, messages.WAITING)
WORDS = {
    "doing": (messages.IDLE, messages.COMPUTING, COMMUNICATING, messages.BETWEEN, messages.SILENT),
    "op": (
        "send",
        "irecv",
        "all_reduce",
        "gather",
        "new_group",
        "backward",
        messages.DDP_FORWARD,
        "init_rpc",
        "waiting",
    ),
    "collective": ("", "reduce", "allreduce", "alltoall"),
    "group": ("", "0", "7"),
    "function": ("", "add", "through a file"),
    "reduce_op": ("", "SUM", "MAX"),
    "text": ("", "f()"),
    "file": ("", "/nowhere/a.py"),
    "how": ("", preempted.RETURNED, preempted.RAISED, preempted.DIED, preempted.WAITED),
}
RANK_FIELDS = ("rank", "members", "peer", "root", "caller")


@functools.cache
def hints_of(kind):
    """The types of a dataclass's fields."""
    return typing.get_type_hints(kind)


def made(kind, rng, name="", depth=0):
    """A value of a type."""
    origin = typing.get_origin(kind)
    inner = typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return made(rng.choice(inner), rng, name, depth)
    if kind is type(None):
        return None
    if origin is tuple and inner[1:] == (...,):
        number = rng.choice((0, 0, 1, 2, 3))
        if depth >= 3:
            return ()
        return tuple(made(inner[0], rng, name, depth + 1) for _ in range(number))
    if origin is tuple:
        return tuple(made(one, rng, name, depth + 1) for one in inner)
    if is_dataclass(kind):
        fields = {}
        for field, hint in hints_of(kind).items():
            fields[field] = made(hint, rng, field, depth + 1)
        return kind(**fields)
    if kind is bool:
        return rng.random() < 0.5
    if kind is int:
        return rng.choice(RANKS) if name in RANK_FIELDS else rng.randint(0, 3)
    if kind is float:
        return rng.random()
    if kind is str:
        return rng.choice(KINDS if name == "kind" else WORDS.get(name, ("word", "other")))
    raise TypeError(f"{name} is {kind}")


@functools.cache
def states_of(seed):
    """The statuses of one to four ranks."""
    rng = Random(seed)
    return {rank: state(rank, rng) for rank in range(rng.randint(1, 4))}


def state(rank, rng):
    """A status of a rank, as one may be sent: a rank waits in a call, and in no call otherwise."""
    found = made(RankStatus, rng)
    doing = (
        COMMUNICATING
        if found.call
        else rng.choice([word for word in WORDS["doing"] if word != COMMUNICATING])
    )
    inner = []
    for one in found.serving:
        doing_inside = COMMUNICATING if one.call else messages.COMPUTING
        inner.append(replace(one, doing=doing_inside, function=one.function or "add", rank=rank))
    beside = tuple(
        replace(one, doing=COMMUNICATING, rank=rank) for one in found.other_threads if one.call
    )
    return replace(found, rank=rank, doing=doing, serving=tuple(inner), other_threads=beside)


def is_a_sentence(text, may_be_empty=False):
    """What a learner can read: no None, no list of ranks that is empty, no gap."""
    assert isinstance(text, str)
    assert text or may_be_empty
    for line in text.splitlines():
        assert "None" not in line, line
        assert "no ranks" not in line, line
        assert "  " not in line.strip(), line


def is_a_table(text):
    """The same for words in columns."""
    assert text
    assert "None" not in text, text
    assert "no ranks" not in text, text


# --- calls of the functions with generated arguments, which look at what they return ---


def _why_stuck(rng, states):
    if needs := proof.proof(states):
        is_a_sentence(stuck.why_stuck(needs, states, rng.choice((None, [*states], [0]))))


def _proof(rng, states):
    for need in (proof.proof(states) or {}).values():
        is_a_sentence(need.clash, may_be_empty=True)
        assert need.clash or need.ranks


def _rank_error(rng, states):
    raised = made(tuple[Failure, ...], rng) or (made(Failure, rng),)
    is_a_table(
        str(failures.rank_error(raised, [*RANKS], rng.random() < 0.5, rng.choice(("", "x."))))
    )


def _rank_died(rng, states):
    dead = []
    for rank in rng.sample(RANKS, 2):
        ending = endings.ending_of(rng.choice((0, 3, -9, -6, -64)))
        dead.append(deaths.DeadRank(rank, ending, made(tuple[Line, ...], rng)))
    died = {one.rank: one.ending for one in dead}
    again = rng.choice(("", "call cluster.restart()"))
    others = [rank for rank in RANKS if rank not in died][: rng.randint(0, 2)]
    gone = rng.choice(("", "x."))
    is_a_table(str(deaths.rank_died(dead, others, again, rng.random() < 0.5, gone)))
    is_a_sentence(deaths.died_words(died))


def _marked_source(rng, states):
    marked = marks.marked_source(states, "%%px\nf()\n\nf()")
    if marked:
        is_a_table(marks.source_text(marked))
        is_a_table(marks.source_html(marked, lambda ranks: "" if ranks else "no ranks"))


def _calls(rng, states):
    for one in states.values():
        for call in (one.call, *one.abandoned, *one.pending, *one.history):
            if call is not None:
                is_a_sentence(report.call_words(call))
                is_a_sentence(matching.tensor_words(call), may_be_empty=True)


def _disagreement(rng, states):
    calls = {rank: replace(made(CallRecord, rng), members=(*RANKS,)) for rank in RANKS}
    is_a_sentence(matching.disagreement(calls), may_be_empty=True)


def _misfit(rng, states):
    ends = [
        replace(made(CallRecord, rng), kind=MESSAGE, tensors=(("float32", (rng.randint(0, 2),)),))
        for _ in "ab"
    ]
    is_a_sentence(matching.misfit(*ends), may_be_empty=True)


def _left(rng, states):
    for line in (*report.unmatched_operations(states), *report.begun_earlier(states)):
        is_a_sentence(line)
    is_a_sentence(report.words_of_unmatched(["  x"], rng.random() < 0.5, "").replace("  x", "x"))


def _at_that_time(rng, states):
    then = meanwhile.at_that_time([*RANKS], states, made(tuple[Failure, ...], rng))
    is_a_table(report.table(then) if then else "-")
    is_a_sentence(meanwhile.clash_of(states), may_be_empty=True)
    is_a_sentence(meanwhile.were_late(states), may_be_empty=True)
    last = meanwhile.last_calls("all_reduce", states)
    is_a_table(report.table(last) if last else "-")


def _why_unmatched(rng, states):
    for rank, one in states.items():
        for call in (*one.abandoned, *one.pending):
            is_a_sentence(proof.why_unmatched(rank, call, states), may_be_empty=True)


def _activity(rng, states):
    for one in states.values():
        is_a_sentence(report.activity(one))


def _lines(rng, states):
    some = made(tuple[Line, ...], rng)
    is_a_table(lines.where([0, 1], some) or "-")
    for line in some:
        lines.with_text(line)


def _outcome(rng, states):
    some = rng.sample(RANKS, rng.randint(0, 2))
    replaced = {rank: afterwards.words_of_loss(("x",) * rng.randint(0, 2)) for rank in some}
    is_a_sentence(
        afterwards.words_of_freeing(
            1.0, rng.sample(RANKS, rng.randint(0, 1)), replaced, rng.choice(("", "x."))
        )
    )
    is_a_sentence(afterwards.words_of_late(some, rng.choice((None, 2.0))))
    for words in afterwards.not_freed(replaced):
        is_a_sentence(words)
    is_a_sentence(
        afterwards.EndedWithGroup(rng.random() < 0.5, rng.random() < 0.5).words(), may_be_empty=True
    )


def _failure(rng, states):
    raised = made(Failure, rng)
    readable.made_readable(raised)
    is_a_sentence(readable.readable(raised.message, rng.random() < 0.5))
    for words in (*failures.raised_words([raised]), *failures.handled_words([raised])):
        is_a_table(words)
    for words in failures.about_checks(rng.random() < 0.5, rng.random() < 0.5):
        is_a_sentence(words)


def _not_built(rng, states):
    failed = made(tuple[Failure, ...], rng)
    missing = rng.sample(RANKS, 0 if failed else 1)
    is_a_table(joining.not_built(failed, missing, 60.0, 30.0, rng.random() < 0.5))
    assert all(isinstance(joining.waited_to_join(one), bool) for one in failed)


def _groups_error(rng, states):
    made_by = {rank: replace(made(NewGroup, rng), rank=rank) for rank in RANKS}
    raised = made(tuple[Failure, ...], rng)
    is_a_table(
        str(
            failures.groups_error(
                "The groups differ.", made_by, raised, [*RANKS], afterwards.EndedWithGroup()
            )
        )
    )
    several = {
        rank: [replace(one, rank=rank) for one in made(tuple[NewGroup, ...], rng)] for rank in RANKS
    }
    if differing := new_groups.differing_groups(several):
        is_a_sentence(new_groups.words_of_groups(differing))


def _advice(rng, states):
    refused = made(Failure, rng)
    is_a_sentence(advice.advice_for(replace(refused, message="can't start new thread")))
    is_a_sentence(advice.advice_for(refused), may_be_empty=True)
    is_a_sentence(advice.on_limit_of_processes("RuntimeError: can't start new thread"))
    is_a_sentence(
        matching.by_value({rank: rng.choice(("2 steps", "")) for rank in RANKS}, ("has", "have"))
    )


def _preempted(rng, states):
    ranks = [replace(made(preempted.RankPreempted, rng), rank=rank) for rank in states]
    others = {rank: made(preempted.EndOfRank, rng) for rank in RANKS if rank not in states}
    doing = {rank: state(rank, rng) for rank in RANKS}
    saved = made(tuple[preempted.SavedFile, ...], rng)
    saves = tuple((one, (rng.choice(RANKS),)) for one in saved)
    record = preempted.PreemptionRecord(tuple(ranks), others, doing, saves)
    for paragraph in preempted.words_of_preemption(record).splitlines():
        is_a_sentence(paragraph)
        assert paragraph.endswith("."), paragraph


CHECKS = {
    "why_stuck why_by_passes why_no_gradients": _why_stuck,
    "table": lambda rng, states: is_a_table(report.table(states)),
    "rows": lambda rng, states: [is_a_sentence(what) for _, what, *_ in report.rows(states)],
    "brief": lambda rng, states: is_a_sentence(report.brief(states)),
    "words_of_destroyed": lambda rng, states: is_a_table(
        failures.words_of_destroyed(states) or "-"
    ),
    "proof need_of": _proof,
    "call_words callee_words own_wait_words with_line tensor_words": _calls,
    "activity": _activity,
    "unmatched_operations begun_earlier words_of_unmatched": _left,
    "at_that_time clash_of were_late last_calls": _at_that_time,
    "why_unmatched why_unmatched_message": _why_unmatched,
    "marked_source source_text source_html": _marked_source,
    "disagreement": _disagreement,
    "misfit": _misfit,
    "rank_error": _rank_error,
    "rank_died died_words": _rank_died,
    "where position_words with_text": _lines,
    "words_of_freeing words_of_late not_freed words_of_loss": _outcome,
    "not_built waited_to_join": _not_built,
    "groups_error words_of_groups differing_groups": _groups_error,
    "made_readable readable raised_words handled_words about_checks": _failure,
    "words_of_preemption": _preempted,
    "advice_for on_limit_of_processes by_value": _advice,
}


@pytest.mark.parametrize("names", CHECKS)
def test_words_for_whatever_a_rank_may_report(names):
    """Generated by a seed, which is in the message."""
    for seed in range(STATUSES):
        try:
            CHECKS[names](Random(seed), states_of(seed))
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error


def test_every_function_that_makes_words_is_tried():
    """A new one has to be added above."""
    tried = {name for names in CHECKS for name in names.split()}
    for found in pkgutil.iter_modules(diagnosis.__path__, f"{diagnosis.__name__}."):
        module = importlib.import_module(found.name)
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if function.__module__ != module.__name__ or name.startswith("_"):
                continue
            returned = str(typing.get_type_hints(function)["return"])
            assert name in tried or "str" not in returned, name
