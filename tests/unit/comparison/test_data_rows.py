"""Which tensor has the rows, and what tells rows apart."""

import pytest
import torch

from distlab.comparison.watching.data_rows import data_of, fingerprints, has_received


def test_the_first_tensor_that_nothing_computed_is_the_data():
    """Also by name, and inside of a batch."""
    activation = torch.ones(2, 2, requires_grad=True) * 2
    rows = torch.ones(3)
    assert data_of(((activation, rows), {})) is rows
    assert data_of(((), {"input_ids": rows, "labels": torch.zeros(3)})) is rows
    assert data_of((({"image": [activation, rows]},), {})) is rows
    assert data_of(((torch.tensor(3.0), activation), {"scale": 2})) is None


@pytest.mark.parametrize(
    "rows",
    [
        torch.arange(6.0).view(3, 2),
        torch.arange(3),
        torch.tensor([True, False, True]),
        torch.arange(12.0).view(3, 4).to(torch.bfloat16),
        torch.arange(12.0).view(4, 3).t(),
        torch.complex(torch.arange(3.0), torch.zeros(3)),
        torch.eye(3).to_sparse(),
    ],
)
def test_a_row_is_known_by_its_content_wherever_it_stands(rows):
    dense = rows.to_dense() if rows.is_sparse else rows
    backwards = fingerprints(dense.flip(0))
    assert fingerprints(rows) == tuple(reversed(backwards))
    distinct = len(torch.unique(torch.view_as_real(dense) if dense.is_complex() else dense, dim=0))
    assert len(set(backwards)) == distinct


def test_a_batch_without_rows_has_no_fingerprints():
    assert fingerprints(torch.ones(0, 3)) == ()
    assert fingerprints(torch.ones(3, 0)) == ()


def test_an_activation_of_another_rank_is_received():
    received = torch.zeros(2, 2).requires_grad_()
    parameter = torch.nn.Parameter(torch.zeros(2))
    assert has_received((received,), {})
    assert not has_received((received * 2, torch.ones(2), parameter), {})
