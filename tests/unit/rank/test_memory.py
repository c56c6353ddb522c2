"""Which tensors of a list share memory."""

import pytest
import torch

from distlab.rank.memory import indices_that_share

ROW, SQUARE = torch.zeros(12), torch.zeros(4, 3)
ONE = torch.zeros(3)


@pytest.mark.parametrize(
    ("tensors", "shared"),
    [
        ([], []),
        ([torch.zeros(3) for _ in range(4)], []),
        ([ONE] * 4, [0, 1, 2, 3]),
        ([torch.zeros(3), ONE, torch.zeros(3), ONE.view(3, 1)], [1, 3]),
        (ROW.chunk(4), []),
        (SQUARE.unbind(), []),
        (SQUARE.unbind(1), []),
        ([SQUARE[::2], SQUARE[1::2]], []),
        ([ROW[:6], ROW[5:]], [0, 1]),
        ([ROW[:4], ROW[6:], ROW[3:6]], [0, 2]),
        ([SQUARE[:, 0], SQUARE[:, 1], SQUARE[2]], [0, 1, 2]),
        ([SQUARE[:, 0], SQUARE[:, 1], SQUARE[:, 1:]], [1, 2]),
        ([ROW, ROW[2:4].view(torch.int16)], [0, 1]),
        ([torch.zeros(0)] * 3, []),
        ([ROW[3:3], ROW], []),
        ([torch.zeros(3, device="meta")] * 2, []),
        ([torch.zeros(1).expand(3)] * 2, []),
        ([1, "no tensor"], []),
    ],
)
def test_indices_that_share_memory(tensors, shared):
    """By their bytes: views of one buffer may lie beside or between each other."""
    assert indices_that_share(tensors) == shared


def test_memory_is_only_looked_at():
    before = torch.arange(6.0).view(2, 3)
    columns = before.clone()
    assert indices_that_share([*columns.unbind(1), columns[0]]) == [0, 1, 2, 3]
    assert columns.equal(before)
