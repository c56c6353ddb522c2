"""Each cause, at least twice: which programs it is said of, and in which words."""

from dataclasses import replace

import numpy as np
import pytest

from distlab.comparison.findings import Cause
from distlab.comparison.judging.judge import judge, judge_ranks
from distlab.comparison.records import (
    Piece,
    RankRecord,
    SeenForward,
    SeenSampler,
    SeenSeed,
    SeenStep,
)
from distlab.wire.source import Line
from tests.unit.comparison.training import FORWARD, STEP, Training, sketch

LOOP = Line(5, "for x, y in loader:", "train")
EVALUATION = Line(12, "model(x)", "evaluate")


def findings(training, right=None, size=4, change=None):
    """What is found in a training on so many ranks; its records may be changed before."""
    right = right or training
    ranks = training.on(size)
    for rank, record in enumerate(ranks):
        if change is not None:
            change(rank, record)
    return judge(right.reference(), right.shaken(), ranks).findings


def only(found):
    """The one finding."""
    (finding,) = found
    return finding


def part_of(numbers):
    """Each rank has the rows that are given for it."""
    return lambda rank, size, rows, step: np.array(numbers[rank] if size > 1 else range(rows))


# --- what one process does ---


def test_one_process_begins_with_other_values_each_time():
    right = Training()
    other = replace(right, seed=1)
    found = judge(right.reference(), [other.on(1), other.on(1)], right.on(4)).findings
    finding = only(found)
    assert (finding.cause, finding.hinders) == (Cause.UNREPEATABLE, True)
    assert finding.sentence == (
        "One process alone does not do the same twice: 0.weight, 0.bias, 2.weight and 2.bias began "
        "with other values."
    )


def test_one_process_makes_another_number_of_steps_each_time():
    right = Training()
    other = replace(right, steps=2)
    finding = judge(right.reference(), [other.on(1), right.on(1)], right.on(4)).findings[0]
    assert finding.cause is Cause.UNREPEATABLE
    assert finding.sentence == (
        "One process alone does not do the same twice: it made 3, 2 and 3 steps."
    )


def test_one_process_has_other_rows_each_time():
    right = Training()
    other = replace(right, other_rows=7)
    finding = judge(right.reference(), [other.on(1), other.on(1)], right.on(4)).findings[0]
    assert finding.cause is Cause.UNREPEATABLE
    assert finding.sentence == (
        "One process alone does not do the same twice: its rows are others each time, as without a "
        "seed."
    )


def test_no_optimizer_steps():
    nothing = Training(steps=0)
    finding = only(findings(nothing))
    assert (finding.cause, finding.hinders) == (Cause.NO_STEP, True)
    assert finding.sentence == "No optimizer stepped in one process."
    ranks = only(findings(nothing, Training()))
    assert (ranks.cause, ranks.hinders) == (Cause.NO_STEP, False)
    assert ranks.sentence == "No optimizer stepped on ranks 0-3, and one did in one process."
    assert only(judge_ranks(nothing.on(2)).findings).sentence == "No optimizer stepped."


# --- rows ---


def seeds_of(rank, record):
    record.seeds.append(SeenSeed(10 + rank, None))


def test_each_rank_draws_its_own_rows():
    def change(rank, record):
        if rank:
            for place, one in enumerate(record.forwards):
                rows = tuple(bytes([rank, number]) + b"drawn" for number, _ in enumerate(one.rows))
                record.forwards[place] = replace(one, rows=rows)
        seeds_of(rank, record)

    wrong = Training(scale=lambda rank, size, own, total: 1 + rank / 7)
    finding = only(findings(wrong, Training(), change=change))
    assert (finding.cause, finding.hinders) == (Cause.RANDOM_DATA, True)
    assert finding.sentence == (
        "The ranks draw their data without a common seed: 12 of 16 rows of step 0 are rows that "
        "one process never used."
    )
    assert finding.details[0] == (
        "The seeds are 10 on rank 0, 11 on rank 1, 12 on rank 2, 13 on rank 3."
    )


@pytest.mark.parametrize("is_seeded", [False, True])
def test_each_rank_shuffles_by_itself(is_seeded):
    orders = [np.random.default_rng(rank).permutation(16) for rank in range(4)]
    orders[0] = np.arange(16)
    wrong = Training(part=part_of([order[rank::4] for rank, order in enumerate(orders)]))
    finding = only(findings(wrong, change=seeds_of if is_seeded else None))
    assert finding.cause is Cause.RANDOM_DATA
    assert finding.hinders is not is_seeded
    begin = (
        "The ranks draw the order of their data without a common seed, so each takes its part of "
        "another order: in step 0, "
    )
    assert finding.sentence.startswith(begin)


@pytest.mark.parametrize("size", [2, 4])
def test_no_rank_divides_the_rows(size):
    wrong = Training(part=lambda rank, size, rows, step: np.arange(rows))
    finding = only(findings(wrong, size=size))
    assert (finding.cause, finding.hinders) == (Cause.UNDIVIDED, True)
    assert finding.sentence == (
        "The ranks do not divide the work: every rank used all 16 rows of step 0, as one process "
        "does."
    )


@pytest.mark.parametrize("size", [2, 4])
def test_the_batch_grows(size):
    """One process has 4 rows in each of 12 steps, the ranks 4 rows each."""
    right = Training(rows=4, steps=12)
    ranks = right.on(size)
    reference = right.reference()
    for rank, record in enumerate(ranks):
        record.steps = record.steps[: 12 // size]
        mine = reference[0].forwards[rank::size]
        record.forwards = [replace(one, step=step) for step, one in enumerate(mine)]
    finding = only(judge(reference, right.shaken(), ranks).findings)
    assert (finding.cause, finding.hinders) == (Cause.LARGER_BATCH, True)
    assert finding.sentence == (
        f"The batch grows with the number of ranks: step 0 has {4 * size} rows, {size} times the 4 "
        "of one process."
    )


@pytest.mark.parametrize("steps", [2, 5])
def test_the_ranks_make_other_numbers_of_steps(steps):
    finding = only(findings(Training(steps=steps, data_steps=5), Training(data_steps=5)))
    assert (finding.cause, finding.hinders) == (Cause.OTHER_STEPS, True)
    assert finding.sentence == f"The ranks make {steps} steps, and one process makes 3."


def test_some_ranks_have_the_same_rows():
    wrong = Training(part=lambda rank, size, rows, step: np.arange(rows)[rank % 2 :: size])
    right = Training()
    finding = only(findings(wrong, right))
    assert (finding.cause, finding.ranks) == (Cause.SAME_ROWS, (0, 2, 1, 3))
    assert finding.sentence == (
        "Some ranks have the same rows: ranks 0 and 2, and ranks 1 and 3, in step 0."
    )
    assert finding.details[0] == "One process used 8 rows that no rank used."


def test_all_ranks_have_the_same_rows():
    wrong = Training(part=lambda rank, size, rows, step: np.arange(rows)[::size])
    finding = only(findings(wrong))
    assert finding.sentence == "All ranks have the same rows in step 0."
    assert only(judge_ranks(wrong.on(4)).findings).sentence == (
        "All ranks have the same rows, so they do not divide the work."
    )


def test_a_row_is_used_twice_and_another_one_never():
    rows = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 10], [12, 13, 14, 15]]
    finding = only(findings(Training(part=part_of(rows))))
    assert (finding.cause, finding.hinders) == (Cause.ROWS_REPEATED, False)
    assert finding.sentence == (
        "The ranks do not use each row once: in step 0, row 10 is used twice and row 11 is never "
        "used."
    )


def test_rows_that_are_left_over():
    right = Training(rows=18)
    wrong = replace(right, part=part_of([range(4 * rank, 4 * rank + 4) for rank in range(4)]))
    finding = only(findings(wrong, right))
    assert (finding.cause, finding.hinders) == (Cause.ROWS_REPEATED, True)
    assert finding.sentence == (
        "The ranks do not use each row once: in step 0, rows 16 and 17 are never used."
    )
    assert finding.details[0].startswith("18 rows cannot be divided by 4 ranks.")


def test_rows_that_a_sampler_repeats():
    def change(rank, record):
        record.samplers.append(SeenSampler(0, 0, False, rank, 4, 2, LOOP))

    rows = [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 0], [3, 7, 11, 1]]
    right = Training(rows=14)
    finding = only(findings(replace(right, part=part_of(rows)), right, change=change))
    assert finding.sentence == (
        "The ranks do not use each row once: in step 0, rows 0 and 1 are used twice."
    )
    assert finding.details[0].startswith("DistributedSampler repeats 2 samples, so that every rank")
    assert finding.lines == (LOOP,)


def test_rows_in_other_steps():
    """Each rank takes a part of all data: every row is used once, but in another step."""
    right = Training(rows=4, steps=4)
    ranks = right.on(4)
    (reference,) = right.reference()
    for rank, record in enumerate(ranks):
        rows = reference.forwards[rank].rows
        record.forwards = [SeenForward(step, True, (rows[step],), FORWARD) for step in range(4)]
        spoil(record)
    finding = only(judge([reference], right.shaken(), ranks).findings)
    assert (finding.cause, finding.hinders) == (Cause.ROWS_DIFFER, True)
    assert finding.sentence == (
        "The ranks use the rows of one process, each as often, but in other steps: step 0 has "
        "others."
    )


def spoil(record):
    """Make the gradients of a rank others, as those of other rows are."""
    for place, step in enumerate(record.steps):
        parameters = {}
        for name, seen in step.parameters.items():
            gradient = replace(seen.gradient, sums=np.roll(seen.gradient.sums, 1) + 0.3)
            value = replace(seen.value, sums=seen.value.sums + 0.1)
            parameters[name] = replace(seen, gradient=gradient, value=value)
        record.steps[place] = replace(step, parameters=parameters)


def test_other_rows_of_the_same_data():
    def change(rank, record):
        if rank == 3:
            first = record.forwards[0]
            record.forwards[0] = replace(first, rows=(b"other", *first.rows[1:]))
        spoil(record)

    finding = only(findings(Training(), change=change))
    assert (finding.cause, finding.hinders) == (Cause.ROWS_DIFFER, False)
    assert finding.sentence == (
        "The ranks use other rows: 1 of 16 rows of step 0 are rows that one process never used."
    )


def test_other_rows_say_nothing_where_all_numbers_agree():
    def change(rank, record):
        for place, one in enumerate(record.forwards):
            rows = tuple(bytes([rank]) + row for row in one.rows)
            record.forwards[place] = replace(one, rows=rows)

    assert findings(Training(), change=change) == []


# --- samplers, evaluation, dropout ---


@pytest.mark.parametrize("epochs", [(0, 0), (0, 1, 1)])
def test_every_epoch_has_the_same_order(epochs):
    def change(rank, record):
        for epoch in epochs:
            record.samplers.append(SeenSampler(0, epoch, True, rank, 4, 0, LOOP))

    same = Training(same_rows=True, steps=len(epochs))
    finding = only(findings(same, change=change))
    assert finding.cause is Cause.SAME_ORDER
    assert finding.sentence == (
        "Every epoch has the same order: in 2 epochs the sampler shuffled by epoch 0."
        if len(epochs) == 2
        else "Some epochs have the same order: set_epoch() got the same number twice."
    )
    assert finding.lines == (LOOP,)


def test_a_look_at_the_first_batch_is_no_epoch():
    def change(rank, record):
        for epoch in (0, 0):
            record.samplers.append(SeenSampler(0, epoch, True, rank, 4, 0, LOOP))

    assert findings(Training(), change=change) == []


def evaluate(record, rows):
    record.forwards.append(
        SeenForward(3, False, tuple(bytes([row]) for row in rows), EVALUATION, has_gradients=False)
    )


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ([[0, 4, 8], [1, 5, 9], [2, 6, 0], [3, 7, 1]], "counts rows 0 and 1 twice"),
        ([[0, 4], [1, 5], [2, 6], [3, 7]], "misses rows 8 and 9"),
        ([[0, 4], [1, 5], [2, 6], [3, 3]], "counts row 3 twice and misses rows 7, 8 and 9"),
    ],
)
def test_evaluation_counts_rows_twice_or_misses_some(parts, words):
    right = Training()
    reference = right.reference()
    evaluate(reference[0], range(10))
    ranks = right.on(4)
    for record, rows in zip(ranks, parts, strict=True):
        evaluate(record, rows)
    finding = only(judge(reference, right.shaken(), ranks).findings)
    assert finding.cause is Cause.EVALUATION_ROWS
    assert finding.sentence == f"The evaluation {words}."
    assert finding.lines == (EVALUATION,)


@pytest.mark.parametrize("parts", [[range(10)] * 4, [range(10), [], [], []]])
def test_evaluation_of_all_rows_on_some_ranks_is_right(parts):
    right = Training()
    reference = right.reference()
    evaluate(reference[0], range(10))
    ranks = right.on(4)
    for record, rows in zip(ranks, parts, strict=True):
        evaluate(record, rows)
    assert judge(reference, right.shaken(), ranks).findings == []


def test_all_ranks_draw_the_same_dropout_masks():
    wrong = Training(dropout=lambda rank, step: bytes([step]))
    finding = only(findings(wrong))
    assert finding.cause is Cause.SAME_DROPOUT
    assert finding.sentence == "All ranks drew the same dropout masks."
    first_alone = Training(dropout=lambda rank, step: bytes([step, rank * step]))
    assert only(findings(first_alone)).sentence == (
        "All ranks drew the same dropout masks in 1 of 3 dropouts."
    )
    assert only(judge_ranks(wrong.on(2)).findings).cause is Cause.SAME_DROPOUT


# --- steps that move nothing ---


def test_a_step_without_gradients():
    def change(rank, record):
        for place, step in enumerate(record.steps):
            parameters = {}
            for name, seen in step.parameters.items():
                value = record.initial[name].value
                parameters[name] = replace(seen, value=value, gradient=None)
            record.steps[place] = replace(step, parameters=parameters, strangers=strangers)

    for strangers in (0, 4):
        finding = only(findings(Training(), change=change))
        assert finding.cause is Cause.NOTHING_MOVED
        assert finding.sentence == (
            "optimizer.step() changed no parameter: none of its parameters has a gradient."
        )
        assert ("fully_shard(model)" in finding.details[0]) is bool(strangers)


def test_a_step_of_gradients_of_0_and_one_with_a_rate_of_0():
    zero = Training(after=lambda rank, size, step, gradients: scaled(gradients, 0.0))
    found = findings(zero)
    assert {finding.cause for finding in found} == {Cause.NOTHING_MOVED}
    assert [finding.world_size for finding in found] == [4, 1]
    assert found[0].sentence == "optimizer.step() changed no parameter: every gradient is 0."
    still = Training(rate=lambda size, step: 0.0 if size > 1 else 0.1)
    assert only(findings(still)).sentence == (
        "optimizer.step() changed no parameter: its learning rate is 0."
    )


def scaled(gradients, factor):
    return {name: np.float32(factor) * value for name, value in gradients.items()}


# --- replicas ---


def test_replicas_begin_with_other_values():
    def alone(rank, size, parameters):
        if size > 1 and rank == 0:
            parameters["0.weight"] = parameters["0.weight"] + 1
        return parameters

    finding = only(findings(Training(begin=alone), Training()))
    assert (finding.cause, finding.hinders, finding.ranks) == (Cause.OTHER_INITIAL, False, (0,))
    assert finding.sentence == (
        "The replicas begin with other values: 0.weight of rank 0 is not that of ranks 1-3."
    )


def test_replicas_all_begin_with_other_values():
    def each(rank, size, parameters):
        return {name: value + rank for name, value in parameters.items()}

    finding = only(findings(Training(begin=each), Training()))
    assert finding.sentence == (
        "The replicas begin with other values: all parameters differ between all ranks."
    )


def test_equal_replicas_that_begin_with_other_values_cannot_be_compared():
    def all_of_them(rank, size, parameters):
        if size > 1:
            parameters["0.bias"] = parameters["0.bias"] + 1
        return parameters

    finding = only(findings(Training(begin=all_of_them)))
    assert (finding.cause, finding.hinders) == (Cause.OTHER_INITIAL, True)
    assert finding.sentence == "0.bias begins with other values than in one process."


def alone(gradients):
    """Nothing averages."""
    return gradients


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({}, "each rank keeps its own"),
        ({"bypassed": True}, "the forward pass goes past DistributedDataParallel"),
        (
            {"wrapper": "DistributedDataParallel", "averages": False},
            "the forward pass is made inside of no_sync()",
        ),
    ],
)
def test_nothing_averages_the_gradients(fields, why):
    wrong = Training(average=alone, forward=lambda rank, size, step, number: fields)
    finding = only(findings(wrong))
    assert (finding.cause, finding.step) == (Cause.NOT_AVERAGED, 0)
    assert finding.sentence == f"In step 0 nothing averaged the gradients: {why}."
    assert finding.details[0] == (
        "Each rank kept its own gradient: their mean is that of one process, so nothing averaged "
        "them."
    )
    assert finding.lines == ((FORWARD,) if fields else (STEP,))


@pytest.mark.parametrize(
    ("inside", "why"),
    [
        ((3,), "the last of 4 forward passes is made inside of no_sync()"),
        ((0, 1, 2, 3), "all 4 forward passes are made inside of no_sync()"),
    ],
)
def test_the_last_pass_is_inside_of_no_sync(inside, why):
    def forward(rank, size, step, number):
        return {"wrapper": "DistributedDataParallel", "averages": number not in inside}

    wrong = Training(average=alone, passes=4, forward=forward)
    assert only(findings(wrong)).sentence == f"In step 0 nothing averaged the gradients: {why}."


def test_the_sum_and_weighted_means_prove_it_as_well():
    sums = Training(average=alone, scale=lambda rank, size, own, total: 1 / size)
    assert "their sum is that of one process" in only(findings(sums)).details[0]
    parts = part_of([range(7), range(7, 9), range(9, 13), range(13, 16)])
    unequal = Training(average=alone, part=parts)
    assert "their mean, weighted by rows, is that of one" in only(findings(unequal)).details[0]


def test_gradients_are_averaged_within_pairs():
    def pairs(gradients):
        if len(gradients) == 1:
            return gradients
        found = []
        for rank, own in enumerate(gradients):
            other = gradients[(rank + 2) % 4]
            found.append({name: (own[name] + other[name]) / 2 for name in own})
        return found

    finding = only(findings(Training(average=pairs)))
    assert finding.cause is Cause.NOT_AVERAGED
    assert finding.sentence == (
        "In step 0 nothing averaged the gradients over all ranks: they are equal within ranks 0 "
        "and 2 and within ranks 1 and 3 only."
    )


@pytest.mark.parametrize("names", [("2.bias",), ("0.bias", "2.bias")])
def test_some_gradients_are_averaged(names):
    def some(gradients):
        found = []
        for own in gradients:
            mean = {name: sum(one[name] for one in gradients) / 4 for name in own}
            found.append({**mean, **{name: own[name] for name in names}})
        return found

    finding = only(findings(Training(average=some)))
    assert (finding.cause, finding.parameters) == (Cause.PARTLY_AVERAGED, names)
    assert finding.sentence == (
        "Some gradients are averaged and others are not: in step 0 that of 2.bias is not."
        if len(names) == 1
        else "Some gradients are averaged and others are not: in step 0 those of 0.bias and 2.bias "
        "are not."
    )


def test_a_rank_has_another_learning_rate():
    def rate(rank, step):
        return 0.05 if rank == 0 and step else 0.1

    finding = only(findings(Training(rate_of_rank=rate)))
    assert (finding.cause, finding.ranks, finding.step) == (Cause.REPLICAS_DIFFER, (0,), 1)
    assert finding.sentence == (
        "The replicas are not equal, because their learning rates are not: 0.05 on rank 0 and 0.1 "
        "on ranks 1-3 in step 1."
    )


def test_a_rank_changes_its_gradients_after_the_average():
    def last(rank, size, step, gradients):
        return scaled(gradients, 1.01 if rank == 3 else 1)

    finding = only(findings(Training(after=last)))
    assert (finding.cause, finding.ranks) == (Cause.REPLICAS_DIFFER, (3,))
    assert finding.sentence == (
        "The replicas are not equal: after step 0 all parameters differ between ranks, and so do "
        "their gradients."
    )


def test_a_rank_steps_less_often():
    def change(rank, record):
        if rank == 1:
            record.steps.pop()

    finding = only(findings(Training(), change=change))
    assert (finding.cause, finding.ranks) == (Cause.REPLICAS_DIFFER, (1,))
    assert finding.sentence == (
        "The replicas are not equal, because not all ranks step as often: 3 on ranks 0, 2 and 3 "
        "and 2 on rank 1."
    )


def test_a_rank_that_has_no_more_rows_steps_less_often():
    """As Join lets it: it makes no backward pass either."""

    def change(rank, record):
        if rank == 1:
            record.steps.pop()
            record.forwards.pop()
            record.backwards.pop()

    right = Training(part=lambda rank, size, rows, step: np.arange(rows)[rank::size])
    causes = [finding.cause for finding in findings(right, change=change)]
    assert Cause.REPLICAS_DIFFER not in causes


def test_an_old_value_on_other_ranks():
    def change(rank, record):
        for place, step in enumerate(record.steps):
            parameters = dict(step.parameters)
            others = {}
            if rank:
                stale = parameters.pop("2.bias")
                others["2.bias"] = replace(stale, value=record.initial["2.bias"].value)
            record.steps[place] = replace(step, parameters=parameters, others=others)

    finding = only(findings(Training(), change=change))
    assert finding.cause is Cause.REPLICAS_DIFFER
    assert finding.sentence == (
        "The replicas are not equal: before step 1 2.bias is not on ranks 1-3 what another rank's "
        "optimizer made of it."
    )


# --- numbers ---


@pytest.mark.parametrize(
    ("factor", "words"),
    [
        (0.25, "0.25 = 1 / ranks"),
        (4, "4 = ranks"),
        (16, "16 = ranks²"),
        (1 / 16, "0.0625 = 1 / ranks²"),
        (2, "2"),
        (0.7311, "0.7311"),
        (-1, "-1"),
    ],
)
@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
def test_a_factor(factor, words, optimizer):
    wrong = Training(
        optimizer=optimizer,
        scale=lambda rank, size, own, total: factor if size > 1 else 1,
    )
    finding = only(findings(wrong))
    assert finding.cause is Cause.GRADIENT_FACTOR
    assert finding.factor == pytest.approx(factor)
    assert finding.sentence == (
        f"The gradient is a multiple of the right one: {words} for every parameter."
    )
    if factor in (4, 0.25):
        assert ("Adam divides by the size" in finding.details[0]) is (optimizer == "Adam")


def test_a_factor_of_passes():
    wrong = Training(passes=2, scale=lambda rank, size, own, total: 2 if size > 1 else 1)
    finding = only(findings(wrong))
    assert finding.meanings == ("backward passes per step", "ranks / backward passes per step")
    assert finding.sentence == (
        "The gradient is a multiple of the right one: 2 = backward passes per step for every "
        "parameter."
    )


def test_a_factor_of_some_parameters():
    def twice(rank, size, step, gradients):
        if size > 1:
            gradients["0.weight"] = 4 * gradients["0.weight"]
        return gradients

    finding = only(findings(Training(after=twice)))
    assert (finding.factor, finding.parameters) == (4, ("0.weight",))
    assert finding.sentence == (
        "The gradient is a multiple of the right one: 4 = ranks for 0.weight only."
    )


def test_a_factor_that_the_learning_rate_takes_back_is_none():
    right = Training(
        scale=lambda rank, size, own, total: float(size), rate=lambda size, step: 0.1 / size
    )
    assert findings(right) == []


def test_a_mean_of_means_over_unequal_parts():
    parts = part_of([range(7), range(7, 9), range(9, 13), range(13, 16)])
    for detailed in (False, True):
        finding = only(findings(Training(part=parts, detailed=detailed)))
        assert finding.cause is Cause.UNEQUAL_PARTS
        assert finding.sentence == (
            "The gradient is a mean of means over unequal parts: in step 0 the ranks have 7, 2, 4 "
            "and 3 rows."
        )
        assert ("own gradients would be" in finding.details[0]) is detailed


def test_a_mean_that_is_weighted_rightly_is_the_same():
    parts = part_of([range(7), range(7, 9), range(9, 13), range(13, 16)])
    right = Training(part=parts, scale=lambda rank, size, own, total: own * size / total)
    assert findings(right) == []


def test_another_gradient():
    def noisy(rank, size, step, gradients):
        if size > 1:
            gradients["0.weight"] = gradients["0.weight"] + np.float32(0.01)
        return gradients

    finding = only(findings(Training(after=noisy)))
    assert (finding.cause, finding.parameters) == (Cause.GRADIENT_DIFFERS, ("0.weight",))
    assert finding.sentence.startswith("The gradient is another one than in one process, ")


def test_the_steps_are_a_multiple():
    wrong = Training(rate=lambda size, step: 0.1 * size)
    finding = only(findings(wrong))
    assert (finding.cause, finding.factor, finding.lines) == (Cause.STEP_FACTOR, 4, (STEP,))
    assert finding.sentence == (
        "The step is a multiple of the right one: 4 = ranks for every parameter, because in step 0 "
        "the learning rate is 0.4 instead of 0.1."
    )
    later = Training(rate=lambda size, step: 0.1 if step < 2 or size == 1 else 0.07)
    assert only(findings(later)).step == 2


def test_the_steps_are_others():
    def decay(rank, size, step, gradients):
        return gradients

    wrong = Training(after=decay, decay=lambda size: 0.1 / size)
    finding = only(findings(wrong))
    assert (finding.cause, finding.step) == (Cause.STEP_DIFFERS, 0)
    assert finding.sentence == (
        "The gradients are equal, but step 0 changes every parameter in another way."
    )


def test_a_loss_where_gradients_say_little():
    record = {"epsilon": 2**-3}
    right = Training(record=record, grain=2**-7)
    for size in (2, 4):
        ranks = right.on(size)
        for one in ranks:
            one.backwards[0] = replace(one.backwards[0], loss=7.0)
        finding = only(judge(right.reference(), right.shaken(), ranks).findings)
        assert finding.cause is Cause.LOSS_DIFFERS
        assert finding.sentence.startswith(
            "The loss is another one: in step 0 the mean of the ranks' losses is 7, and 0."
        )


# --- what cannot be compared ---


def test_batch_normalisation_over_local_batches():
    def noisy(rank, size, step, gradients):
        return (
            scaled(gradients, 1)
            if size == 1
            else {name: value + np.float32(0.01) for name, value in gradients.items()}
        )

    record = {"local_statistics": ["1", "4"]}
    for training in (Training(record=record), Training(record=record, after=noisy)):
        finding = only(findings(training))
        assert (finding.cause, finding.hinders) == (Cause.LOCAL_STATISTICS, True)
        assert finding.sentence == ("BatchNorm normalises by the rows of each rank alone: 1 and 4.")


def test_numbers_that_are_not_finite_on_a_rank():
    def spoiled(rank, size, step, gradients):
        if size > 1 and rank == 2 and step == 1:
            gradients["2.bias"] = gradients["2.bias"] * np.float32(np.nan)
        return gradients

    finding = only(findings(Training(after=spoiled)))
    assert (finding.cause, finding.step, finding.ranks) == (Cause.NOT_FINITE, 1, (2,))
    assert finding.sentence == "From step 1 on numbers of 2.bias are not finite on rank 2."


def test_numbers_that_are_not_finite_in_one_process_either():
    def spoiled(rank, size, step, gradients):
        return scaled(gradients, np.inf if step == 1 else 1)

    finding = only(findings(Training(after=spoiled, steps=2)))
    assert (finding.cause, finding.hinders) == (Cause.NOT_FINITE, True)
    assert finding.sentence == (
        "In one process some numbers are not finite, from step 1 on: those of 0.weight, 0.bias, "
        "2.weight and 2.bias."
    )


def test_what_was_not_seen_is_said():
    sentence = "Sparse gradients of embed.weight were not looked at."
    finding = only(findings(Training(record={"unseen": [sentence]})))
    assert (finding.cause, finding.hinders, finding.sentence) == (Cause.NOT_SEEN, True, sentence)


def test_noise_that_is_drawn_in_training_excuses_other_numbers():
    def noisy(rank, size, step, gradients):
        return {name: value + np.float32(0.01 * size) for name, value in gradients.items()}

    wrong = Training(after=noisy, record={"draws": [FORWARD]})
    finding = only(findings(wrong))
    assert (finding.cause, finding.hinders) == (Cause.NOT_SEEN, True)
    assert finding.sentence == (
        "Random numbers are drawn in training, and the ranks draw others than one process."
    )
    assert findings(Training(record={"draws": [FORWARD]})) == []


def test_a_hook_that_compresses_excuses_other_numbers():
    def noisy(rank, size, step, gradients):
        return {name: value + np.float32(0.01 * size) for name, value in gradients.items()}

    record = {"compression": "powerSGD_hook"}
    finding = only(findings(Training(after=noisy, record=record)))
    assert finding.sentence == "The communication hook powerSGD_hook changes the gradients."
    assert findings(Training(record=record)) == []


def test_a_parameter_that_no_rank_steps():
    def change(rank, record):
        for place, step in enumerate(record.steps):
            parameters = dict(step.parameters)
            del parameters["2.bias"]
            record.steps[place] = replace(step, parameters=parameters)

    finding = only(findings(Training(), change=change))
    assert (finding.cause, finding.hinders) == (Cause.NOT_SEEN, True)
    assert finding.sentence == (
        "2.bias is stepped by no rank in step 0, at least not under this name."
    )


@pytest.mark.parametrize(("begin", "end"), [(1, 3), (0, 1)])
def test_a_parameter_that_one_world_steps_later_or_no_more(begin, end):
    def change(rank, record):
        for place, step in enumerate(record.steps):
            parameters = dict(step.parameters)
            if not begin <= place < end:
                del parameters["2.bias"]
            record.steps[place] = replace(step, parameters=parameters)

    right = Training()
    (reference,) = right.reference()
    finding = only(findings(right, change=change))
    step = 0 if begin else 1
    assert finding.sentence == (
        f"2.bias is stepped by no rank in step {step}, at least not under this name."
    )
    change(0, reference)
    finding = only(judge([reference], right.shaken(), right.on(2)).findings)
    assert finding.sentence == (
        f"2.bias is stepped by ranks in step {step}, and not in one process."
    )


def test_some_ranks_train_in_evaluation_mode():
    wrong = Training(forward=lambda rank, size, step, number: {"training": rank == 0})
    finding = only(findings(wrong))
    assert (finding.cause, finding.hinders) == (Cause.NOT_SEEN, True)
    assert finding.sentence == (
        "Some ranks train in evaluation mode, without model.train(): ranks 1-3."
    )


def test_one_rank_does_it_all():
    right = Training()
    (reference,) = right.reference()
    nothing = [RankRecord(rank, 4, {}) for rank in (1, 2, 3)]
    found = judge([reference], right.shaken(), [reference, *nothing]).findings
    assert found[0].sentence == (
        "The ranks do not divide the work: rank 0 does it all, and others nothing."
    )


def test_dropout_masks_in_pairs():
    wrong = Training(dropout=lambda rank, step: bytes([step, rank % 2]))
    assert only(findings(wrong)).sentence == (
        "Ranks 0 and 2, and ranks 1 and 3, drew the same dropout masks."
    )


def test_a_factor_next_to_1_is_written_with_more_digits():
    wrong = Training(scale=lambda rank, size, own, total: 1.0003 if size > 1 else 1)
    assert only(findings(wrong)).sentence == (
        "The gradient is a multiple of the right one: 1.0003 for every parameter."
    )


# --- parts that are made by hand ---


def cut_by_hand(axis_of):
    """Each rank has a part of some parameters under the name of the whole."""

    def change(rank, record):
        def cut(name, seen):
            if name not in axis_of:
                return seen
            axis = axis_of[name]
            shape = list(seen.shape)
            shape[axis] //= 4
            size = int(np.prod(shape))

            def part(one):
                whole = one.sums.reshape(seen.shape)
                return sketch(np.split(whole, 4, axis=axis)[rank])

            return replace(
                seen,
                shape=tuple(shape),
                piece=Piece(0, size - 1, size, size),
                value=part(seen.value),
                gradient=None if seen.gradient is None else part(seen.gradient),
            )

        record.initial = {name: cut(name, seen) for name, seen in record.initial.items()}
        for place, step in enumerate(record.steps):
            parameters = {name: cut(name, seen) for name, seen in step.parameters.items()}
            record.steps[place] = replace(step, parameters=parameters)

    return change


COLUMNS_AND_ROWS = {"0.weight": 0, "0.bias": 0, "2.weight": 1}


def test_parts_that_are_cut_by_hand_are_put_together():
    whole = Training(part=lambda rank, size, rows, step: np.arange(rows))
    assert findings(whole, change=cut_by_hand(COLUMNS_AND_ROWS)) == []

    def summed(rank, size, step, gradients):
        factors = {name: 4 if name in COLUMNS_AND_ROWS and size > 1 else 1 for name in gradients}
        return {name: np.float32(factors[name]) * value for name, value in gradients.items()}

    wrong = only(findings(replace(whole, after=summed), change=cut_by_hand(COLUMNS_AND_ROWS)))
    assert wrong.sentence == (
        "The gradient is a multiple of the right one: 4 = ranks for 0.weight, 0.bias and 2.weight "
        "only."
    )


def test_parts_that_do_not_fit_cannot_be_compared():
    def change(rank, record):
        cut_by_hand({"0.weight": 0})(rank, record)
        seen = record.initial["0.weight"]
        record.initial["0.weight"] = replace(seen, value=seen.value.scaled(1 + rank))

    finding = only(findings(Training(), change=change))
    assert (finding.cause, finding.hinders) == (Cause.NOT_SEEN, True)
    assert finding.sentence == (
        "0.weight has another shape than in one process, and it is not known which part each rank "
        "has: [2, 4] instead of [8, 4] for 0.weight."
    )


def test_stages_of_a_pipeline_rename_their_parameters():
    """Rank 1 has the second layer, and calls it "0"."""

    def change(rank, record):
        first = {"0.weight": "0.weight", "0.bias": "0.bias"}
        names = [first, {"2.weight": "0.weight", "2.bias": "0.bias"}]

        def renamed(parameters):
            return {new: parameters[old] for old, new in names[rank].items()}

        record.initial = renamed(record.initial)
        for place, step in enumerate(record.steps):
            record.steps[place] = replace(step, parameters=renamed(step.parameters))
        record.model_parallel = True
        if rank:
            record.forwards.clear()

    stages = Training(part=lambda rank, size, rows, step: np.arange(rows), begin=with_equal_biases)
    assert findings(stages, size=2, change=change) == []


def with_equal_biases(rank, size, parameters):
    return {name: 0 * value if "bias" in name else value for name, value in parameters.items()}


def test_a_rank_without_an_element_of_a_shard():
    assert findings(Training(sharded=True), size=4) == []
    assert findings(Training(sharded=True, optimizer="Adam", rows=18), size=3) == []


def test_a_summand_of_a_gradient_is_added_up():
    def change(rank, record):
        for place, step in enumerate(record.steps):
            parameters = {}
            for name, seen in step.parameters.items():
                gradient = seen.gradient.scaled((rank + 1) / 10)
                parameters[name] = replace(seen, gradient=gradient, gradient_is_partial=True)
            record.steps[place] = replace(step, parameters=parameters)

    assert findings(Training(), change=change) == []


def test_parameters_that_are_averaged_after_the_step_are_right():
    """Each rank's own step, and then the mean of the parameters, is plain SGD."""
    assert findings(Training(average=alone, average_values=True)) == []


def test_a_step_has_no_others_in_old_records():
    assert SeenStep(None, "SGD", (0.1,), {}).others == {}


def test_ranks_that_are_not_finite_are_not_compared_with_one_process():
    def spoiled(rank, size, step, gradients):
        factor = np.float32(np.nan if rank == 1 and step == 1 else 1)
        return {name: value * factor for name, value in gradients.items()}

    finding = only(judge_ranks(Training(after=spoiled, steps=2).on(2)).findings)
    assert finding.cause is Cause.NOT_FINITE
    assert finding.details == ()


def test_a_mask_that_all_ranks_have_is_no_undivided_work():
    def change(rank, record):
        for place, one in enumerate(record.forwards):
            record.forwards[place] = replace(one, rows=(b"mask",))

    right = Training()
    (reference,) = right.reference()
    shaken = right.shaken()
    for record in (reference, *[one for ranks in shaken for one in ranks]):
        change(0, record)
    ranks = right.on(4)
    for rank, record in enumerate(ranks):
        change(rank, record)
    assert judge([reference], shaken, ranks).findings == []


def test_a_chaotic_training_cannot_be_compared_to_its_end():
    """Its rounding grows from step to step, until the values are anywhere."""
    right = Training(steps=6, same_rows=True)
    (reference,) = right.reference()
    shaken = right.shaken()
    for (one,) in shaken:
        for place in (4, 5):
            parameters = {}
            for name, seen in one.steps[place].parameters.items():
                parameters[name] = replace(
                    seen, gradient=seen.gradient.scaled(3), value=seen.value.scaled(2)
                )
            one.steps[place] = replace(one.steps[place], parameters=parameters)
    finding = only(judge([reference], shaken, right.on(4)).findings)
    assert (finding.cause, finding.hinders, finding.step) == (Cause.NOT_SEEN, True, 4)
    assert finding.sentence.endswith(
        " of the norm of the gradient in step 4, so no mistake could be seen from there on."
    )
    wrong = replace(right, scale=lambda rank, size, own, total: size)
    found = judge([reference], shaken, wrong.on(4)).findings
    assert [one.cause for one in found] == [Cause.GRADIENT_FACTOR, Cause.NOT_SEEN]
