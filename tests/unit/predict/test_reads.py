"""What a processor does for the operators of a program, and where it waits for its device."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from distlab_predict import torch_fake as fake
from distlab_predict import torch_quick
from distlab_predict.launches import (
    COMPILED,
    DTENSOR,
    GRAPH,
    MODULE,
    OPERATOR,
    PARAMETER,
    READ,
    VIEW,
)
from distlab_predict.nodes import BY_HAND, Wait
from distlab_predict.recorder import Recorder
from tests.unit.predict.noted import compiled, step


def noted(program):
    """The log of a program without arguments, as far as it gets without data."""
    recorder = Recorder(0)
    with torch_quick.QuickMode(allow_non_fake_inputs=True), recorder:
        try:
            program(recorder)
        except fake.NeedsData:
            recorder.log.compute("last", 0, 1)
    return recorder.log


def host(log):
    return [node.host for node in log.nodes]


def test_views_before_an_operator_are_a_part_of_its_launch():
    def program(_):
        values = torch.rand(4, 4)
        (values.t().t() + 1).exp()

    assert host(noted(program))[-2:] == [pytest.approx(OPERATOR + 2 * VIEW), OPERATOR]


@pytest.mark.parametrize("read", [torch.Tensor.item, float, bool])
def test_a_program_waits_where_it_needs_a_value(read):
    log = noted(lambda _: read(torch.rand(8).sum()))
    last = len(log.nodes) - 1
    assert log.waits == [Wait(last, (last - 1,))]
    assert log.nodes[-1].host == OPERATOR + READ


def test_numbers_that_the_program_has_written_itself_are_there():
    assert noted(lambda _: torch.arange(3).sum().item()).waits == []


def test_modules_and_parameters_of_an_optimizer_take_time():
    def program(recorder):
        recorder.before_module(nn.Identity(), ())
        torch.ones(2).exp_()
        parameters = [nn.Parameter(torch.ones(2)) for _ in range(3)]
        recorder.before_optimizer(torch.optim.SGD(parameters))
        parameters[0].data.exp_()

    log = noted(program)
    assert log.nodes[0].host == pytest.approx(OPERATOR + MODULE, abs=VIEW)
    assert log.nodes[-1].host == pytest.approx(OPERATOR + 3 * PARAMETER, abs=2 * VIEW)
    assert DTENSOR > OPERATOR


def test_a_compiled_graph_needs_little_for_each_of_its_kernels():
    """The forward pass is a graph, and the backward pass is one."""

    def make():
        weights = torch.ones(64, 64, requires_grad=True)
        values = torch.ones(64, 64)
        return (lambda given: ((given @ weights).relu() @ weights).sum()), values

    found = [node.host for node in step(compiled(make))]
    assert found == [GRAPH + COMPILED, *[COMPILED] * 4, GRAPH + COMPILED, *[COMPILED] * 4]


def test_kernels_that_are_fused_by_hand_are_as_many_and_launched_as_operators_are():
    def make():
        weights = torch.ones(64, 64, requires_grad=True)
        values = torch.ones(64, 64)
        return (lambda given: (given @ weights.t()).relu().exp().sum()), values

    usual, by_hand = (step(compiled(make, how=how)) for how in (True, BY_HAND))
    assert [replace(node, host=0) for node in by_hand] == [replace(node, host=0) for node in usual]
    assert {node.host for node in by_hand} == {OPERATOR}
