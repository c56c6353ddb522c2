"""What a program's memory is at its peak, by what it is and on which stream it was made."""

import torch

from distlab_predict import memory
from distlab_predict.streams import NodeLog


def test_each_stream_has_a_pool_of_its_own():
    """What was freed on one stream is not used on another: 40 bytes, and 80."""
    log = NodeLog()
    journal = memory.Journal(log)
    journal.begin()
    first = torch.zeros(10)
    journal.add(first)
    del first
    log.current = lambda: 1
    second = torch.zeros(20)
    journal.add(second)
    journal.name(memory.GRADIENTS, [second])
    assert journal.peak() == {"activations": 40, "gradients": 80}


def test_the_peak_is_when_the_sum_is_largest():
    """Bytes freed before others are made do not count; a storage's growth does."""
    journal = memory.Journal(NodeLog())
    journal.begin()
    for size in (10, 20):
        tensor = torch.zeros(size)
        journal.add(tensor)
        del tensor
    kept = torch.zeros(5)
    journal.add(kept)
    kept.untyped_storage().resize_(400)
    journal.resize(kept.untyped_storage())
    assert journal.peak() == {"activations": 400}


def test_what_was_made_before_the_first_step_counts_while_it_lives():
    journal = memory.Journal(NodeLog())
    passing = torch.zeros(100)
    parameter = torch.zeros(3)
    journal.add(passing)
    journal.add(parameter)
    journal.name(memory.PARAMETERS, [parameter])
    del passing
    journal.begin()
    assert journal.peak() == {"parameters": 12}
