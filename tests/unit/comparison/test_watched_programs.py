"""What is seen of programs that train in other ways than a plain loop."""

import random
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.nn.functional import cross_entropy, nll_loss
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DistributedSampler

from distlab.comparison.findings import Cause
from distlab.comparison.judging.judge import judge
from distlab.comparison.records import WatchOptions
from distlab.comparison.watching.watch import watched

ROWS = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))
TARGETS = torch.arange(8) % 3


def look_at(train, **options):
    """The record of a program in one process, of which everything could be looked at."""
    record = watched(0, 1, lambda rank, world_size: train(), (), {}, WatchOptions(**options))
    assert record.unseen == []
    return record


def make(*layers):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), *layers, nn.Linear(6, 3))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def assert_equal(sketch, tensor):
    np.testing.assert_array_equal(sketch.sums, tensor.detach().double().flatten().numpy())


def test_accumulation_is_one_step_of_several_passes():
    """A rank's own gradient is the sum of what the passes gave."""

    def train():
        model, optimizer = make()
        for _ in range(2):
            for part in range(4):
                rows = slice(2 * part, 2 * part + 2)
                loss = functional.cross_entropy(model(ROWS[rows]), TARGETS[rows])
                (loss / 4).backward()
            optimizer.step()
            optimizer.zero_grad()

    record = look_at(train, detailed=True)
    assert len(record.steps) == 2
    assert [backward.step for backward in record.backwards] == [0] * 4 + [1] * 4
    assert [backward.targets for backward in record.backwards] == [2] * 8
    for step in record.steps:
        for parameter in step.parameters.values():
            own = parameter.own_gradient.sums
            np.testing.assert_allclose(own, parameter.gradient.sums, atol=1e-6)


def test_parameters_that_are_used_before_the_forward_pass_may_be_perturbed():
    """A penalty that is computed first."""

    def train():
        model, optimizer = make()
        penalty = sum(parameter.square().sum() for parameter in model.parameters())
        (functional.cross_entropy(model(ROWS), TARGETS) + penalty).backward()
        optimizer.step()

    assert len(look_at(train, perturbation=1).steps) == 1


def test_two_optimizers_that_step_together_make_one_step():
    def train():
        model, _ = make()
        first = torch.optim.SGD(model[0].parameters(), lr=0.1)
        second = torch.optim.Adam(model[1].parameters(), lr=0.2)
        for _ in range(2):
            model(ROWS).sum().backward()
            first.step()
            second.step()

    record = look_at(train)
    assert [len(step.parameters) for step in record.steps] == [4, 4]
    assert record.steps[0].learning_rates == (0.1, 0.2)
    assert record.steps[0].optimizer == "SGD"
    assert record.steps[1].others == {}


def test_optimizers_that_take_turns_make_steps_of_their_own():
    """What the other one has is no parameter of nobody, once it has stepped."""

    def train():
        model, _ = make()
        optimizers = [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in model]
        for _ in range(2):
            for optimizer in optimizers:
                model(ROWS).sum().backward()
                optimizer.step()

    record = look_at(train)
    first = ["0.weight", "0.bias"]
    second = ["1.weight", "1.bias"]
    assert [list(step.parameters) for step in record.steps] == [first, second] * 2
    assert [list(step.others) for step in record.steps] == [second, [], [], []]


def test_an_optimizer_that_steps_twice_makes_two_steps():
    def train():
        model, optimizer = make()
        model(ROWS).sum().backward()
        optimizer.step()
        optimizer.step()

    assert len(look_at(train).steps) == 2


def test_optimizers_that_step_in_the_backward_pass_make_one_step():
    def train():
        model, _ = make()
        for parameter in model.parameters():
            optimizer = torch.optim.SGD([parameter], lr=0.1)

            def step(parameter, optimizer=optimizer):
                optimizer.step()
                optimizer.zero_grad()

            parameter.register_post_accumulate_grad_hook(step)
        for _ in range(2):
            model(ROWS).sum().backward()

    record = look_at(train)
    assert [len(step.parameters) for step in record.steps] == [4, 4]
    assert all(one.gradient is not None for one in record.steps[1].parameters.values())


def test_a_closure_computes_the_gradient_inside_of_the_step():
    def train():
        model, optimizer = make()

        def closure():
            optimizer.zero_grad()
            loss = model(ROWS).square().mean()
            loss.backward()
            return loss

        for _ in range(2):
            optimizer.step(closure)

    record = look_at(train)
    assert len(record.steps) == 2
    assert record.steps[0].parameters["0.weight"].gradient is not None


def test_a_step_that_raises_does_not_hide_the_next_ones():
    def train():
        model, optimizer = make()
        other = torch.optim.SGD([torch.zeros(2, requires_grad=True)], lr=0.1)

        def fails():
            raise ValueError("of the closure")

        with pytest.raises(ValueError, match="of the closure"):
            other.step(fails)
        model(ROWS).sum().backward()
        optimizer.step()

    assert len(look_at(train).steps) == 1


def test_what_activation_checkpoints_compute_again_is_seen_once():
    def train():
        model, optimizer = make(nn.Dropout(0.5))
        for reentrant in (False, True):
            hidden = checkpoint(model[:2], ROWS.clone().requires_grad_(), use_reentrant=reentrant)
            functional.cross_entropy(model[2](hidden), TARGETS).backward()
            optimizer.step()

    record = look_at(train)
    assert len(record.forwards) == 4
    assert len(record.dropouts) == 2
    assert [backward.targets for backward in record.backwards] == [8, 8]


def test_autocast_makes_the_tolerance_coarse():
    def train():
        model, optimizer = make()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(ROWS).sum()
        loss.backward()
        optimizer.step()

    assert look_at(train).epsilon == torch.finfo(torch.bfloat16).eps


def test_double_precision_makes_it_fine():
    def train():
        model, optimizer = make()
        model.double()
        model(ROWS.double()).sum().backward()
        optimizer.step()

    assert look_at(train).epsilon == torch.finfo(torch.float64).eps


def test_a_scaled_gradient_is_seen_unscaled():
    def train(scaled):
        model, optimizer = make()
        scaler = torch.amp.GradScaler("cpu", enabled=scaled)
        scaler.scale(model(ROWS).sum()).backward()
        scaler.step(optimizer)
        scaler.update()

    plain = look_at(lambda: train(False)).steps[0].parameters
    scaled = look_at(lambda: train(True)).steps[0].parameters
    for name, parameter in plain.items():
        np.testing.assert_allclose(scaled[name].gradient.sums, parameter.gradient.sums, rtol=1e-6)


def test_a_loop_without_modules_has_its_parameters_by_number():
    def train():
        weight = torch.ones(4, 3, requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.1)
        loss = functional.cross_entropy(ROWS @ weight, TARGETS)
        (weight.grad,) = torch.autograd.grad(loss, [weight])
        optimizer.step()

    record = look_at(train)
    assert list(record.steps[0].parameters) == ["parameter 0 of SGD"]
    assert record.steps[0].strangers == 1
    assert record.backwards[0].targets == 8
    assert_equal(record.initial["parameter 0 of SGD"].value, torch.ones(4, 3))


DROPOUTS = {
    "dropout": lambda x: functional.dropout(x, 0.5),
    "in place": lambda x: functional.dropout(x + 0, 0.5, inplace=True),
    "1d": lambda x: functional.dropout1d(x, 0.5),
    "2d": lambda x: functional.dropout2d(x[None], 0.5)[0],
    "3d": lambda x: functional.dropout3d(x[None, None], 0.5)[0, 0],
    "alpha": lambda x: functional.alpha_dropout(x, 0.5, training=True),
    "feature alpha": lambda x: functional.feature_alpha_dropout(x[None], 0.5, training=True)[0],
    "attention": lambda x: functional.scaled_dot_product_attention(x, x, x, dropout_p=0.5),
}


@pytest.mark.parametrize("kind", DROPOUTS)
def test_dropout_of_every_kind_is_kept_out(kind):
    x = torch.ones(2, 3, 4)
    drop = DROPOUTS[kind]
    kept = []
    record = look_at(lambda: kept.append((drop(x), torch.rand(1))))
    output, drawn = kept[0]
    torch.manual_seed(0)
    assert torch.equal(drawn, torch.rand(1))  # it has drawn nothing
    assert len(record.dropouts) == 1
    torch.testing.assert_close(output, x)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, dropout=0.5)

    def forward(self, x):
        return self.attention(x, x, x)[0]


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.layers = kind(4, 4, num_layers=2, dropout=0.5)

    def forward(self, x):
        return self.layers(x)[0]


@pytest.mark.parametrize("kind", [None, nn.LSTM, nn.GRU, nn.RNN])
def test_dropout_inside_of_attention_and_recurrent_networks_is_kept_out(kind):
    module = Attention() if kind is None else Recurrent(kind)
    outputs = []
    record = look_at(lambda: outputs.append(module(ROWS[:, None])))
    assert len(record.dropouts) == 1
    assert record.draws == []
    torch.testing.assert_close(outputs[0], module.eval()(ROWS[:, None]))


def test_other_random_numbers_in_a_model_are_noted():
    class Noise(nn.Module):
        def forward(self, x):
            return x + torch.randn_like(x)

    def train():
        model, optimizer = make(Noise())
        model(ROWS).sum().backward()
        optimizer.step()

    (line,) = look_at(train).draws
    assert line.text == "model(ROWS).sum().backward()"


def test_batches_are_normalised_in_training_only():
    def train():
        model, _ = make(nn.BatchNorm1d(6), nn.LayerNorm(6))
        model.eval()
        model(ROWS)
        model[1].train()
        model.training = True
        model(ROWS)

    assert look_at(train).local_statistics == ["1"]


def test_evaluation_is_told_from_training():
    def train():
        model, _ = make()
        model(ROWS)
        model.eval()
        with torch.no_grad():
            model(ROWS[:3])

    forwards = look_at(train).forwards
    seen = [(one.training, one.has_gradients, len(one.rows)) for one in forwards]
    assert seen == [(True, True, 8), (False, False, 3)]


def test_passes_over_samplers_are_seen():
    def train():
        samplers = [DistributedSampler(range(5), 2, 1), DistributedSampler(range(4), 2, 0, False)]
        for epoch in range(2):
            samplers[0].set_epoch(epoch)
            for sampler in samplers:
                list(sampler)

    seen = [(one.sampler, one.epoch, one.shuffles, one.padded) for one in look_at(train).samplers]
    assert seen == [(0, 0, True, 1), (1, 0, False, 0), (0, 1, True, 1), (1, 0, False, 0)]


def test_a_transformation_of_torch_func_is_not_looked_into():
    def train():
        model, _ = make()
        parameters = dict(model.named_parameters())

        def loss(parameters, row):
            return torch.func.functional_call(model, parameters, (row,)).sum()

        torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, ROWS)

    assert look_at(train).forwards == []


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.second = nn.Linear(6, 3)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


# torch warns of Python 3.13.0, whose checks are slower
@pytest.mark.filterwarnings("ignore:Guards may run slower:RuntimeWarning")
@pytest.mark.parametrize("by_method", [False, True])
def test_a_compiled_model_has_the_names_and_numbers_of_a_plain_one(by_method):
    def train(compiles):
        torch.manual_seed(0)
        model = Layers()
        called = model
        if compiles and by_method:
            model.compile(backend="aot_eager")
        elif compiles:
            called = torch.compile(model, backend="aot_eager", fullgraph=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            functional.cross_entropy(called(ROWS), TARGETS).backward()
            optimizer.step()

    compiled = look_at(lambda: train(True))
    plain = look_at(lambda: train(False))
    assert [len(forward.rows) for forward in compiled.forwards] == [8, 8]
    for name, parameter in plain.steps[1].parameters.items():
        value = compiled.steps[1].parameters[name].value.sums
        np.testing.assert_allclose(value, parameter.value.sums, rtol=1e-6)


def test_of_layers_that_are_called_one_by_one_the_first_has_the_rows():
    """In evaluation as well, where nothing tells an activation from data."""

    def train():
        model, optimizer = make()
        with torch.no_grad():
            model[1](model[0](ROWS))
        model[1](torch.tanh(model[0](ROWS))).sum().backward()
        optimizer.step()
        with torch.no_grad():
            model[1](torch.tanh(model[0](ROWS)))

    assert [len(one.rows) for one in look_at(train).forwards] == [8, 0] * 3


def test_what_is_traced_is_not_looked_into():
    """torch.jit would record what looks."""
    model, _ = make()
    traced = []

    def train():
        traced.append(torch.jit.trace(model, ROWS))

    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        look_at(train)
    torch.testing.assert_close(traced[0](ROWS), model(ROWS))


def test_of_many_steps_the_first_are_kept(monkeypatch):
    monkeypatch.setattr("distlab.comparison.watching.state.MOST_NUMBERS", 200)

    def train(rank, world_size):
        model, optimizer = make()
        for _ in range(9):
            model(ROWS).sum().backward()
            optimizer.step()

    record = watched(0, 1, train, (), {}, WatchOptions())
    assert len(record.steps) == 2
    assert record.unseen == ["Of the steps, only the first 2 were looked at."]
    assert [one.step for one in record.forwards] == list(range(9))


def test_a_layer_that_begins_to_normalise_later_is_seen():
    def train():
        model, _ = make(nn.BatchNorm1d(6))
        model[1].eval()
        model(ROWS)
        model[1].train()
        model(ROWS)

    assert look_at(train).local_statistics == ["1"]


def test_a_model_without_numbers_is_let_through():
    def train():
        with torch.device("meta"):
            model = nn.Linear(4, 3)
        model(torch.empty(2, 4, device="meta")).sum().backward()

    assert look_at(train, detailed=True).backwards == []


def test_complex_parameters_are_seen():
    class Wave(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4, dtype=torch.complex64))

        def forward(self, x):
            return (x.to(torch.complex64) * self.weight.conj()).sum().abs()

    def train():
        model = Wave()
        model(ROWS).backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()

    seen = look_at(train, detailed=True).steps[0].parameters["weight"]
    np.testing.assert_array_equal(seen.own_gradient.sums, seen.gradient.sums)


def test_a_module_that_draws_from_python_or_numpy_draws():
    class Skip(nn.Module):
        def __init__(self, draw):
            super().__init__()
            self.draw = draw

        def forward(self, x):
            return x if self.draw() < 0.5 else -x

    for draw in (random.random, np.random.rand):
        model, _ = make(Skip(draw))
        assert len(look_at(lambda model=model: model(ROWS)).draws) == 1


@pytest.mark.parametrize("loss", [cross_entropy, nn.CrossEntropyLoss(ignore_index=2), nll_loss])
def test_targets_are_counted_however_the_loss_is_called(loss):
    def train():
        model, _ = make()
        loss(model(ROWS), TARGETS).backward()

    expected = 6 if isinstance(loss, nn.Module) else 8
    assert look_at(train).backwards[0].targets == expected


def test_an_optimizer_may_find_its_rates_itself():
    def train():
        model, optimizer = make()
        optimizer.param_groups[0]["lr"] = torch.tensor(0.5)
        optimizer.add_param_group({"params": [torch.zeros(2)], "lr": 0.25})
        model(ROWS).sum().backward()
        optimizer.step()
        optimizer.param_groups[0]["lr"] = None
        optimizer.param_groups[0]["params"].clear()
        model(ROWS).sum().backward()
        optimizer.step()

    assert [step.learning_rates for step in look_at(train).steps] == [(0.5, 0.25), (0.25,)]


def test_parameters_without_a_module_are_perturbed_at_their_first_step():
    def train(values):
        weight = torch.ones(4, 3, requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for _ in range(2):
            functional.cross_entropy(ROWS @ weight, TARGETS).backward()
            optimizer.step()
        values.append(weight.detach())

    values = []
    look_at(lambda: train(values))
    look_at(lambda: train(values), perturbation=1)
    assert 0 < float((values[0] - values[1]).abs().max()) < 1e-5


def test_a_module_may_be_scripted():
    """The script compiler knows torch's own functions only."""

    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)
            self.dropout = nn.Dropout(0.5)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            x = functional.scaled_dot_product_attention(x, x, x)
            return functional.cross_entropy(self.dropout(self.layer(x)), y)

    def train():
        torch.jit.script(Loss())(ROWS, TARGETS).backward()
        torch.jit.script(nn.Dropout(0.5))

    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        record = look_at(train)
    assert len(record.forwards) == 1


def test_a_program_that_only_counts_is_let_through():
    def train():
        with FakeTensorMode():
            model, optimizer = make()
            model(torch.empty(2, 4)).sum().backward()
            optimizer.step()

    record = look_at(train)
    assert (record.steps, record.backwards, record.forwards) == ([], [], [])


def test_ranks_that_all_do_everything_without_a_module_are_not_the_same():
    """No rows are seen there, so equal losses have to tell."""

    def train(rank, world_size):
        weight = torch.ones(4, 3, requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.1)
        functional.cross_entropy(ROWS @ weight, TARGETS).backward()
        optimizer.step()

    one = watched(0, 1, train, (), {}, WatchOptions())
    perturbed = [watched(0, 1, train, (), {}, WatchOptions(perturbation=k)) for k in (1, 2)]
    ranks = [watched(rank, 2, train, (), {}, WatchOptions()) for rank in range(2)]
    (finding,) = judge(one, perturbed, ranks).findings
    assert (finding.cause, finding.hinders) == (Cause.UNDIVIDED, True)
    assert finding.sentence == (
        "The ranks do not divide the work: no module was called whose rows could be looked at, "
        "and all ranks have the same losses, bit for bit."
    )
