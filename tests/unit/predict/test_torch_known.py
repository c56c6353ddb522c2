"""Tensors without data whose values are known all the same: whole numbers that need no data."""

import pytest
import torch

from distlab_predict import torch_known, torch_quick


@pytest.fixture
def mode(monkeypatch):
    monkeypatch.setattr(torch_known.fake_tensor, "CONSTANT_NUMEL_LIMIT", torch_known.MOST_KNOWN)
    with torch_quick.QuickMode(allow_non_fake_inputs=True) as mode:
        yield mode


def known(tensor):
    return tensor.constant is not None


def test_values_follow_views_writes_and_arithmetic(mode):
    for _ in range(2):  # the second time from memory
        tensor = torch.zeros(6, dtype=torch.int64)
        tensor[1] = 7
        tensor.view(2, 3)[1, 2] += 4
        tensor += torch.arange(6)
        assert tensor.tolist() == [0, 8, 2, 3, 4, 9]
        assert (tensor > 3).nonzero().flatten().tolist() == [1, 4, 5]


def test_what_data_goes_into_has_no_values(mode):
    data = torch.randn(4)
    places = torch.zeros(4, dtype=torch.int64)
    places.copy_(data.argsort())
    assert not known(data)
    assert not known(places)
    assert not known(torch.arange(4) + (data > 0))


def test_many_values_are_not_kept(mode):
    assert not known(torch.arange(torch_known.MOST_KNOWN + 1))


def test_a_mask_of_a_long_text_is_not_computed(mode):
    """It would have 10,000,000,000 elements."""
    places = torch.arange(100_000)
    mask = places[:, None] >= places[None, :]
    assert mask.shape == (100_000, 100_000)
    assert not known(mask)
    assert known(places)


def test_what_is_written_from_outside_is_forgotten_with_its_views(mode):
    tensor = torch.arange(4)
    part = tensor[:2]
    torch_known.forget([[part]])
    assert not known(tensor)
    assert not known(part)
