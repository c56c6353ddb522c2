"""What a plan says of its layouts, which are made up."""

from dataclasses import replace

import pytest

from distlab.simulated.network import Device, Network
from distlab_predict.layouts import Layout, Step
from distlab_predict.plans import Plan
from distlab_predict.reasons import percent

GIB = 1 << 30
DEVICE = Device("100 TFLOP/s", memory=80 * GIB)


def step(computing, exposed, idle, gib, tokens=8000, launches=0.0):
    memory = {"activations": 0.75 * gib * GIB, "parameters": 0.25 * gib * GIB}
    seconds = computing + exposed + launches + idle
    flops = 50e12 * computing
    size = gib * GIB
    return Step(
        seconds, computing, exposed, launches, idle, flops, memory, size, 80 * GIB, 100e12, tokens
    )


def layout(tensor, recompute, made=None, why="", left_out=False):
    return Layout(8, {"tensor": tensor, "recompute": recompute, "layers": 4}, made, why, left_out)


BEST = layout(2, "none", step(0.8, 0.1, 0.1, 60))
MORE_WORK = layout(1, "full", step(1.0, 0.02, 0.1, 50))
TOO_LARGE = layout(1, "none", step(0.8, 0.0, 0.0, 100))
REFUSED = [layout(8, what, None, "rank 0 raised ValueError: 8\nline 3") for what in "ab"]
LEFT_OUT = layout(4, "full", None, "would take 30 % longer or more", True)


def plan(*layouts, **options):
    return Plan(layouts, Network("5 us", "50 GB/s"), DEVICE, **options)


ALL = plan(MORE_WORK, BEST, TOO_LARGE, *REFUSED, LEFT_OUT, width=1.1, lead=1.05)


def test_the_best_that_fits_and_why_the_next_one_lost():
    assert ALL.best is BEST
    assert ALL.runner_up is MORE_WORK
    assert not ALL.is_too_close
    assert ALL.why == (
        "tensor=1 instead of 2, recompute='full' instead of 'none': 11 % slower, 25 % more "
        "computing, but exposed communication 2 % of the step instead of 10 %"
    )


def test_with_other_tokens_the_same_work_is_compared():
    """Twice the tokens in twice the time, and a little more computing."""
    other = layout(1, "none", step(2 * 0.85, 0.2, 0.2, 70, tokens=16000))
    assert plan(BEST, other).why.endswith("5 % slower, 6 % more computing")
    assert plan(BEST, other, lead=1.04).is_too_close is False
    assert plan(BEST, other, lead=1.06).is_too_close is True


@pytest.mark.parametrize(
    ("made", "others", "binds"),
    [
        (step(0.9, 0.06, 0.04, 60), [], "exposed communication"),
        (step(0.7, 0.1, 0.2, 60), [], "idle time"),
        (step(0.97, 0.02, 0.01, 60), [], "computing"),
        (step(0.6, 0.1, 0.1, 60, launches=0.2), [], "launches by the processor"),
        (step(0.9, 0.06, 0.04, 60), [TOO_LARGE], "memory"),
        (step(0.9, 0.06, 0.04, 60), [replace(TOO_LARGE, step=step(2, 0, 0, 90))], None),
    ],
)
def test_what_binds_is_what_would_save_most(made, others, binds):
    found = plan(layout(2, "none", made), *others).binds
    assert found == (binds or "exposed communication")


def test_launches_have_a_column_and_words_where_they_take_more_than_a_percent():
    late = layout(2, "none", step(0.6, 0.1, 0.1, 60, launches=0.2))
    shown = repr(plan(late, BEST)).splitlines()
    assert "launches" in shown[1]
    assert "20.0%" in shown[2]
    assert "launches by the processor 20 %" in repr(plan(late))
    slower = layout(1, "none", step(0.8, 0.1, 0.1, 60, launches=0.2))
    words = "launches by the processor 17 % of the step instead of 0.0 %"
    assert words in plan(BEST, slower).why
    assert "launches" not in repr(plan(BEST))


def test_a_best_layout_that_only_communicates_has_no_computing_to_compare_with():
    only = layout(2, "none", step(0.0, 0.5, 0.5, 60))
    other = layout(1, "none", step(0.25, 0.5, 0.5, 60))
    assert plan(only, other).why.endswith("computing 20 % of the step instead of 0.0 %")


def test_where_nothing_fits_the_plan_says_by_how_much_and_what_helps():
    found = plan(TOO_LARGE, replace(TOO_LARGE, step=step(1, 0, 0, 96)), *REFUSED)
    assert found.best is None
    assert found.binds == "memory"
    assert found.runner_up is None
    assert found.why == (
        "No layout fits. tensor=1, recompute='none', layers=4 comes nearest and needs 96.0 GiB of "
        "80.0 GiB. Most of that is activations, 72.0 GiB: recompute more, or give each rank fewer "
        "tokens at once."
    )
    assert found.why in repr(found)
    nothing = plan(*REFUSED)
    assert nothing.why == "No layout could be predicted."
    assert nothing.binds == ""
    assert "2 layouts: 0 predicted, 2 refused." in repr(nothing)


def test_a_table_of_the_fastest_with_the_reasons_below():
    assert repr(ALL).splitlines() == [
        "Predicted, not measured: 8 ranks, 5 µs, 50 GB/s",
        "tensor   recompute      a step   tokens/s each     MFU   computing   exposed    idle      "
        "memory",
        "     1        none      800 ms           1,250   50.0%      100.0%      0.0%    0.0%   "
        "100.0 GiB   does not fit",
        "     2        none     1.00 s            1,000   40.0%       80.0%     10.0%   10.0%    "
        "60.0 GiB   best",
        "     1        full     1.12 s              893   44.6%       89.3%      1.8%    8.9%    "
        "50.0 GiB   runner-up",
        "Best: tensor=2, recompute='none', 909 to 1,100 tokens/s of each rank.",
        "What binds is memory: computing is 80 % of the step, exposed communication 10 %, "
        "idle time 10 %; tensor=1 instead of 2 would be 25 % faster, but needs 100.0 GiB.",
        f"Runner-up: {ALL.why}.",
        "6 layouts: 3 predicted, 2 refused, 1 left out by the rule.",
        "By the rule: where changing one argument has done something to at least 3 pairs of "
        "layouts, it does at least as much to others.",
        "Refused, 2: rank 0 raised ValueError: 8",
    ]
    assert ALL.refused == {"rank 0 raised ValueError: 8": 2}
    assert ALL.left_out == [LEFT_OUT]


def test_without_tokens_steps_are_compared():
    found = plan(replace(BEST, step=step(0.8, 0.1, 0.1, 78, tokens=None)), width=1.25)
    assert found.best.rate == 1.0
    assert found.rate_interval == (0.8, 1.25)
    assert "a step in 800 ms to 1.25 s" in repr(found)
    assert "memory too close to call" in repr(found)
    assert found.why == "No other layout fits."


def test_a_map_has_the_two_arguments_that_matter_most():
    """The argument that is the same everywhere is not drawn, and the best layout has the ring."""
    figure = ALL.plot()
    words = [text.get_text() for text in figure.axes[0].texts]
    assert {"tensor", "recompute", "1,250", "1,000", "893", "left out", "best"} <= {*words}
    assert words.count("–") == len(REFUSED) + 1  # the legend has it too, beside its meaning
    assert words.count("refused") == 1
    assert "layers" not in words
    assert "best is tensor 2, recompute none: 1e+03, fits" in figure.alt
    assert "tensor 1, recompute none: 1.25e+03, too large" in figure.alt
    alone = plan(BEST, replace(BEST, choice={**BEST.choice, "tensor": 4}))
    assert not {"recompute", "refused"} & {text.get_text() for text in alone.plot().axes[0].texts}


@pytest.mark.parametrize(("share", "words"), [(0.12, "12 %"), (0.004, "0.4 %"), (0.0096, "1 %")])
def test_a_share_has_one_or_two_digits(share, words):
    assert percent(share) == words
