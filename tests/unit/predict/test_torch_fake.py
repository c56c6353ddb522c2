"""Tensors without data: what is remembered of an operator is what torch itself makes of it."""

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from distlab_predict import torch_fake as fake
from distlab_predict import torch_quick


class Seen(TorchDispatchMode):
    """The operators with the tensors that they return, and whose storage those have."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        value = operator(*args, **(kwargs or {}))
        if operator.namespace != "prim":
            storages = [one.untyped_storage()._cdata for one in fake.tensors_in(args)]
            for one in fake.tensors_in(value):
                storage = one.untyped_storage()
                source = storages.index(storage._cdata) if storage._cdata in storages else None
                kind = one.dtype, fake.device_of(one), one.requires_grad, storage.nbytes()
                self.calls.append(
                    (str(operator), one.shape, one.stride(), one.storage_offset(), *kind, source)
                )
        return value


def seen(mode, program):
    with mode, Seen() as calls:
        for _ in range(2):
            program()
    return calls.calls


def learn(model, *inputs, optimizer=torch.optim.AdamW):
    optimizer = optimizer(model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        model(*inputs).float().square().mean().backward()
        optimizer.step()


def convolutions():
    layers = (
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
    )
    learn(nn.Sequential(*layers, nn.Flatten(), nn.Linear(8 * 64, 10)), torch.randn(4, 3, 16, 16))


def attention():
    layers = (nn.TransformerEncoderLayer(32, 4, 64, batch_first=True) for _ in range(2))
    learn(nn.Sequential(*layers), torch.randn(2, 10, 32), optimizer=torch.optim.SGD)


def views_and_writes_in_place():
    x = torch.randn(6, 4, requires_grad=True)
    y = (x @ torch.randn(4, 8)).t().contiguous()
    first, second = y.view(4, 2, 6).unbind(1)
    values, places = torch.cat([first, second.flip(0)], 1).topk(3, dim=1)
    z = y[:4].gather(1, places).masked_fill(values > 0, 1.0).expand(2, 4, 3).reshape(-1)
    kept = torch.empty(24)
    torch.mul(z.detach(), 2, out=kept)
    z = z.clone()
    z[::2].mul_(3)
    (z + kept.roll(1).narrow(0, 0, 24)).as_strided((3, 4), (4, 1)).sum().backward()


@pytest.mark.parametrize("program", [convolutions, attention, views_and_writes_in_place])
def test_it_remembers_what_torch_makes(program):
    found = seen(torch_quick.QuickMode(), program)
    assert found
    assert found == seen(FakeTensorMode(), program)
