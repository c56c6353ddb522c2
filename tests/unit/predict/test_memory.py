"""What a program's memory is at its peak, by what it is and on which stream it was made."""

import torch
from torch.testing._internal.two_tensor import TwoTensor

from distlab_predict import memory, torch_quick
from distlab_predict.held import Level, Made
from distlab_predict.recorder import Recorder
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


def test_a_tensor_that_is_made_of_others_has_no_memory_of_its_own():
    """As a weight that is gathered in float8, which torch takes for one in bfloat16."""
    recorder = Recorder(0)
    with torch_quick.QuickMode(allow_non_fake_inputs=True), recorder:
        pair = TwoTensor(torch.zeros(10), torch.zeros(10))
        doubled = pair * 2
        recorder.journal.name(memory.PARAMETERS, [pair])
        recorder.journal.begin()
        peak = recorder.journal.peak()
    assert [node.name for node in recorder.log.nodes] == ["zeros", "zeros", "mul", "mul"]
    assert peak == {"parameters": 80, "activations": 80}
    assert isinstance(doubled, TwoTensor)


def test_what_was_gathered_before_its_module_was_called_is_no_parameter():
    """But what an optimizer has is one, even if it was gathered as it is."""
    recorder = Recorder(0)
    with torch_quick.QuickMode(allow_non_fake_inputs=True), recorder:
        module = torch.nn.Linear(10, 1, bias=False)
        recorder.journal.name(memory.UNSHARDED, [module.weight])
        recorder.before_module(module, ())
        assert recorder.journal.peak() == {"unsharded parameters": 40}
        recorder.before_optimizer(torch.optim.SGD(module.parameters(), 1.0))
        assert recorder.journal.peak() == {"parameters": 40}


# --- what a GPU reserves, and what a compiled program does without ---


def small_step(journal: memory.Journal) -> list[torch.Tensor]:
    """A parameter of 8 MiB, an activation of 30 MiB, which goes, and a gradient of 8 MiB."""
    parameter = torch.zeros(2 << 20)
    journal.add(parameter)
    journal.name(memory.PARAMETERS, [parameter])
    journal.begin()
    activation = torch.zeros(30 << 18)
    journal.add(activation)
    del activation
    gradient = torch.zeros(2 << 20)
    journal.add(gradient)
    journal.name(memory.GRADIENTS, [gradient])
    return [parameter, gradient]


def test_a_step_reserves_segments_and_needs_less():
    """20 MiB for the parameter, 30 for the activation; the gradient fits into the first."""
    journal = memory.Journal(NodeLog())
    kept = small_step(journal)
    held = journal.held(is_expandable=False, begin=0)
    assert held.reserved == 50 << 20
    assert held.needed == 50 << 20
    assert journal.peak() == {"parameters": 8 << 20, "activations": 30 << 20}
    assert held.made == (
        Made("", "activations", 1, 30 << 20),
        Made("", "parameters", 1, 8 << 20),
    )
    assert len(kept) == 2


def test_expandable_segments_reserve_two_pages():
    """8 and 30 MiB are in 40; the gradient is where the activation was."""
    journal = memory.Journal(NodeLog())
    kept = small_step(journal)
    held = journal.held(is_expandable=True, begin=0)
    assert held.reserved == 40 << 20
    assert held.needed == 38 << 20
    assert len(kept) == 2


def test_the_line_that_made_a_storage_stays_with_it():
    """Two lines make a storage each; what one made and lost is not there at the peak."""
    log = NodeLog()
    journal = memory.Journal(log)
    journal.begin()
    kept = []
    for line in ("model.py:1", "model.py:1", "model.py:2"):
        log.line = lambda line=line: line
        tensor = torch.zeros(100)
        journal.add(tensor)
        kept.append(tensor)
    assert journal.held(False, 0).made == (
        Made("model.py:1", "activations", 2, 800),
        Made("model.py:2", "activations", 1, 400),
    )


def test_storages_of_a_compiled_program_live_while_its_nodes_use_them():
    """Four nodes are three now. Of three storages, one is not there, and one goes early."""
    log = NodeLog()
    journal = memory.Journal(log)
    journal.begin()
    kept = []
    for size in (10, 20, 40):
        tensor = torch.zeros(size)
        journal.add(tensor)
        kept.append(tensor)
        log.compute("add", 0, 0)
    log.compute("add", 0, 0)
    assert [journal.number_of(tensor) for tensor in kept] == [0, 1, 2]
    assert journal.number_of(torch.zeros(3)) is None
    assert journal.peak() == {"activations": 4 * (10 + 20 + 40)}
    journal.replace({0: (0, 1), 1: None}, {}, [0, 1, 1, 2, 3])
    assert journal.peak() == {"activations": 4 * (10 + 40)}
    levels = journal.held(False, 0).levels
    assert levels == (
        Level(0, {"activations": 4 * 10}),
        Level(1, {"activations": 4 * (10 + 40)}),
        Level(2, {"activations": 4 * 40}),
    )


def test_what_a_compiled_gradient_reads_lives_until_then():
    """An argument that an eager program lets go after its first node, and no storage made later."""
    log = NodeLog()
    journal = memory.Journal(log)
    journal.begin()
    for size in (10, 20, 40):
        tensor = torch.zeros(size)
        journal.add(tensor)
        log.compute("add", 0, 0)
        del tensor
    assert journal.peak() == {"activations": 4 * 40}
    journal.replace({}, {0: 2, 1: 0}, [0, 1, 2, 3])
    assert journal.peak() == {"activations": 4 * (10 + 40)}


def test_levels_are_those_of_the_last_step():
    """Each node of the last step has the highest level before the next one."""
    log = NodeLog()
    journal = memory.Journal(log)
    journal.begin()
    kept = []
    for size in (100, 10, 20):
        log.compute("add", 0, 0)
        tensor = torch.zeros(size)
        journal.add(tensor)
        kept.append(tensor)
    passing = torch.zeros(5)
    journal.add(passing)
    del passing
    levels = journal.held(False, begin=2).levels
    assert levels == (
        Level(2, {"activations": 440}),
        Level(3, {"activations": 540}),
    )
