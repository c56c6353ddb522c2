"""`measure` on the ranks of a group whose backend simulates, where no network is described."""

import pytest
import torch
import torch.distributed as dist

from distlab.measure import measure
from distlab.simulated import backend


def test_without_a_network_every_rank_says_that_there_are_no_virtual_times(usable):
    """One that said so alone would leave the others waiting for it."""

    def fn(rank, world_size):
        backend.register()
        group = dist.new_group(backend=backend.SIMULATED)

        def add_up(tensor):
            dist.all_reduce(tensor, group=group)

        with pytest.raises(RuntimeError) as caught:
            measure(add_up, torch.ones(1), group=group)
        dist.destroy_process_group(group)
        return str(caught.value)

    words = "There are no virtual times without a network: call notes.use(network) first."
    assert usable.run(fn) == [words] * usable.n
