"""The Work of a simulated group has what torch's own functions call of it."""

from distlab.compat import torch as private
from distlab.simulated import backend


def test_a_work_names_its_sender_as_torch_asks_for_it():
    """`dist.recv` without src asks the Work that it has waited for; the base class would raise."""
    assert private.SENDER in vars(backend.Work)
