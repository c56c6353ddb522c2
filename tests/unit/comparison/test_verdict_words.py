"""What a person reads: verdicts of whole comparisons, as text, table and picture."""

import pickle
from dataclasses import replace

import numpy as np
import pytest

from distlab.comparison.findings import Cause, Finding
from distlab.comparison.judging.wording import name_list, number, on_worlds, row_list
from distlab.comparison.verdict import Comparison, compared, compared_ranks
from distlab.wire.source import Line
from tests.unit.comparison.training import Training


def verdict(training, right=None, worlds=(4,)):
    """The comparison of a training with one process, which may do it in another way."""
    right = right or training
    ranks = {size: training.on(size) for size in worlds}
    return compared(right.reference(), right.shaken(), ranks)


@pytest.mark.parametrize(
    ("value", "words"),
    [(4e-7, "4e-7"), (0.25, "0.25"), (16, "16"), (1234, "1200"), (0.0, "0"), (2.5e12, "2.5e12")],
)
def test_a_number(value, words):
    assert number(value) == words


def test_names_and_rows_and_worlds():
    names = ["a", "b", "c", "d", "e"]
    assert name_list(names[:1]) == "a"
    assert name_list(names[:4]) == "a, b, c and d"
    assert name_list(names) == "a, b, c and 2 more"
    assert row_list([17]) == "row 17"
    assert row_list([4, 3]) == "rows 3 and 4"
    assert row_list(range(30)) == "rows 0, 1, 2, 3, 4, 5 and 24 more"
    assert on_worlds([4]) == "on 4 ranks"
    assert on_worlds([4, 2]) == "on 2 and on 4 ranks"
    assert on_worlds([1]) == "in one process"
    assert on_worlds([1, 4]) == "in one process and on 4 ranks"


def test_the_same():
    found = verdict(Training(), worlds=(2, 4))
    assert found.same
    assert found
    assert found.findings == ()
    words = repr(found).replace("\n", " ")
    begin, _, rest = words.partition(". The relative difference nearest to its bound is ")
    assert begin == "The same as one process: 3 steps, 4 parameters"
    size, _, bound = rest.partition(" (rounding explains up to ")
    assert 0 < float(size) < float(bound.removesuffix(").")) < 1e-4


def test_one_mistake_in_two_worlds_is_said_once():
    wrong = Training(scale=lambda rank, size, own, total: 1 / size)
    found = verdict(wrong, worlds=(2, 4))
    assert not found
    assert [finding.world_size for finding in found.findings] == [4, 2]
    assert repr(found).splitlines()[:3] == [
        "Not the same as one process, on 2 and on 4 ranks: the gradient is a multiple of",
        "the right one: 0.25 = 1 / ranks for every parameter (0.5 on 2 ranks).",
        "  line 8 in train   loss.backward()",
    ]


def test_a_factor_that_is_the_same_in_two_worlds_means_no_ranks():
    wrong = Training(scale=lambda rank, size, own, total: 0.25 if size > 1 else 1)
    found = verdict(wrong, worlds=(2, 4))
    first = repr(found).replace("\n", " ").split("   line")[0]
    assert ("the gradient is a multiple of the right one: 0.25 for every parameter.") in first


def test_mistakes_of_different_worlds_are_said_as_such():
    rates = {1: 0.1, 2: 0.2, 4: 0.4}
    found = verdict(Training(rate=lambda size, step: rates[size]), worlds=(2, 4))
    words = repr(found).replace("\n", " ")
    assert words.startswith(
        "Not the same as one process, on 4 ranks (and similarly on 2 ranks): the step is a "
        "multiple of the right one: 4 = ranks for every parameter, because in step 0 the "
        "learning rate is 0.4 instead of 0.1."
    )


def test_ranks_that_are_compared_with_each_other():
    assert repr(compared_ranks(Training().on(4))) == "The ranks do the same: 3 steps, 4 parameters."
    wrong = Training(average=lambda gradients: gradients, detailed=True)
    words = repr(compared_ranks(wrong.on(4))).replace("\n", " ")
    assert words.startswith(
        "The ranks do not do the same: in step 0 nothing averaged the gradients: each rank keeps "
        "its own.   line 9 in train   optimizer.step() After step 0 the replicas of "
    )


def test_a_cell_without_a_step():
    assert repr(compared_ranks(Training(steps=0).on(4))) == (
        "Cannot be compared: no optimizer stepped.\n"
        "What is looked at is step() of an optimizer of torch.optim."
    )


def test_what_cannot_be_compared_is_no_mistake():
    record = {"local_statistics": ["1"]}
    found = verdict(Training(record=record))
    assert not found.same
    assert repr(found) == (
        "Cannot be compared, on 4 ranks: BatchNorm normalises by the rows of each rank\n"
        "alone: 1.\n"
        "  line 7 in train   loss = F.mse_loss(model(x), y)\n"
        "Its mean and variance are not those of the whole batch, so no gradient is that\n"
        "of one process. To compare, use nn.SyncBatchNorm.convert_sync_batchnorm(model),\n"
        "or nn.GroupNorm in its place."
    )


def test_dropout_is_left_out_and_that_is_said():
    found = verdict(Training(dropout=lambda rank, step: bytes([rank, step])))
    assert found.same
    assert repr(found).endswith(
        "Dropout was left out, because masks over other parts of a batch are never equal."
    )


def test_several_findings():
    mistake = Finding(Cause.SAME_ROWS, "Some ranks have the same rows: ranks 0-1.", (), 4)
    hindrance = Finding(Cause.NOT_SEEN, "Something else.", ("Do this.",), 4, hinders=True)
    other = replace(mistake, cause=Cause.SAME_DROPOUT, sentence="All ranks drew the same masks.")
    other = replace(other, lines=(Line(3, "model(x)", "train"),))
    found = Comparison((mistake, other, hindrance), (4,), 1, 3, 4)
    assert repr(found).splitlines() == [
        "Not the same as one process, on 4 ranks: some ranks have the same rows: ranks",
        "0-1.",
        "Also, on 4 ranks: all ranks drew the same masks.",
        "  line 3 in train   model(x)",
        "Also cannot be compared, on 4 ranks: something else.",
        "Do this.",
    ]


def test_a_mistake_that_one_process_makes_as_well():
    found = verdict(Training(rate=lambda size, step: 0.0))
    assert repr(found).splitlines() == [
        "Wrong in one process and on 4 ranks: optimizer.step() changed no parameter: its",
        "learning rate is 0.",
        "  line 9 in train   optimizer.step()",
        "Look at the first number of the scheduler.",
    ]


def test_the_table_has_a_row_for_each_world_and_step():
    table = verdict(Training(), worlds=(2, 4)).table()
    assert table.title.startswith("The same as one process: ")
    assert [row[:2] for row in table.rows] == [
        ("2", "0"), ("2", "1"), ("2", "2"), ("4", "0"), ("4", "1"), ("4", "2"),
    ]  # fmt: skip
    assert {row[2] for row in table.rows} <= {"0.weight", "0.bias", "2.weight", "2.bias"}


def test_the_picture_shows_where_a_world_leaves_the_band():
    wrong = Training(rate=lambda size, step: 0.2 if size > 1 and step else 0.1)
    figure = verdict(wrong).plot()
    assert "4 ranks: from step 1 on more than rounding explains, " in figure.in_words()
    assert "4 ranks: within what rounding explains" in verdict(Training()).plot().in_words()
    texts = {text.get_text() for ax in figure.axes for text in ax.texts}
    assert {"4 ranks", "rounding"} <= texts


def test_a_verdict_can_be_sent_elsewhere():
    found = verdict(Training())
    assert repr(pickle.loads(pickle.dumps(found))) == repr(found)


def test_a_person_sees_html_and_a_saved_notebook_has_text(monkeypatch):
    found = verdict(Training(scale=lambda rank, size, own, total: 1 / size))
    assert found._repr_mimebundle_() == ({}, {})
    monkeypatch.setattr("distlab.comparison.verdict.notebook_shell", lambda: "a shell")
    monkeypatch.setattr("distlab.comparison.verdict.somebody_watches", lambda: True)
    shown, _ = found._repr_mimebundle_()
    assert shown["text/plain"] == repr(found)
    assert shown["text/html"].startswith("<div><b>Not the same as one process, on 4 ranks: the ")
    assert "padding-left:2ch" in shown["text/html"]


def test_numbers_that_say_little_are_said_to():
    right = Training(record={"epsilon": 2**-5}, grain=2**-5)
    found = verdict(right)
    assert found.same
    assert "so smaller mistakes cannot be seen: compare in float32" in repr(found).replace(
        "\n", " "
    )


def test_a_gradient_that_is_rounding():
    """A bias before a sum that does not depend on it, as a key's bias in attention."""
    right = Training(optimizer="Adam", key_bias=True)
    found = verdict(right, worlds=(2, 4))
    assert found.same, found
    assert "The gradient of key.bias is no larger than rounding, so little is known of it." in repr(
        found
    ).replace("\n", " ")
    assert np.isfinite(found.differences[4][0].gradient)


def test_a_reference_of_several_ranks_is_called_so():
    right = Training()
    wrong = Training(begin=lambda rank, size, parameters: shifted(parameters, size > 2))
    found = compared(right.on(2), [right.on(2), right.on(2)], {4: wrong.on(4)})
    assert repr(found).splitlines()[0] == (
        "Cannot be compared, on 4 ranks: all parameters begin with other values than in"
    )
    assert repr(found).splitlines()[1] == "the world of 2 ranks."


def shifted(parameters, is_other):
    return {name: value + is_other for name, value in parameters.items()}


def test_one_process_alone_is_judged_as_well():
    still = Training(steps=0)
    assert not compared(still.reference(), still.shaken(), {}).same
    assert compared(Training().reference(), Training().shaken(), {}).same


def test_a_name_at_the_beginning_stays_as_it_is():
    finding = Finding(Cause.OTHER_INITIAL, "W begins with other values.", (), 4, hinders=True)
    found = Comparison((finding,), (4,), 1, 3, 4)
    assert repr(found) == "Cannot be compared, on 4 ranks: W begins with other values."


def test_replicas_that_are_averaged_after_the_step_are_no_difference():
    found = verdict(Training(average=lambda gradients: gradients, average_values=True))
    assert found.same
    for one in found.differences[4]:
        for size, bound in one.pairs:
            assert size <= bound
