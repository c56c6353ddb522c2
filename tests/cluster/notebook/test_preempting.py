"""`Cluster.preempt`: SIGTERM, a grace time and SIGKILL, with what programs make of them."""

import os
import signal
import sys
import time

import pytest
import torch
import torch.distributed as dist

import distlab

STEPS = 8


def train(rank, world_size, on_term=None, at_end=None):
    """Steps with an all-reduce each; `on_term` handles SIGTERM, `at_end` follows each step."""
    if on_term is not None:
        signal.signal(signal.SIGTERM, on_term)
    weight = torch.zeros(4, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for step in range(STEPS):
        (weight * rank).sum().backward()
        dist.all_reduce(weight.grad)
        optimizer.step()
        optimizer.zero_grad()
        if at_end is not None and at_end(weight):
            return step + 1
    return STEPS


def no_handler(rank, world_size):
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    return train(rank, world_size)


def exits(rank, world_size):
    return train(rank, world_size, lambda *_: sys.exit(3))


def calls_a_collective(rank, world_size):
    return train(rank, world_size, lambda *_: dist.barrier())


def never_returns(rank, world_size):
    def on_term(*_):
        while True:
            time.sleep(0.05)

    return train(rank, world_size, on_term)


def decides_together(rank, world_size, path):
    asked = []

    def at_end(weight):
        stop = torch.tensor(len(asked))
        dist.all_reduce(stop)
        if not stop:
            return False
        if rank == 0:
            torch.save(weight, f"{path}.partial")
            os.replace(f"{path}.partial", path)
        dist.barrier()
        return True

    return train(rank, world_size, lambda *_: asked.append(1), at_end)


def waits_in_gloo(rank, world_size):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
    if rank == 0:
        time.sleep(30)
    dist.all_reduce(torch.ones(1))


def test_ranks_that_decide_together(usable, tmp_path):
    """Every rank ends after the same step, and the file is whole; handlers are then as before."""
    with usable.preempt(1, step=3) as preempted:
        assert usable.run(decides_together, tmp_path / "a.pt") == [3] * 4
    assert "Its handler (<lambda>, test_preempting.py" in preempted.report
    assert "ran at once, and returned. It ended by itself" in preempted.report
    assert "Ranks 0, 2 and 3 ended without an error." in preempted.report
    assert "by rank 0: a.pt (complete: it can be loaded)." in preempted.report
    assert usable.run(lambda rank, world_size: signal.signal.__module__) == ["signal"] * 4


@pytest.mark.parametrize(
    ("program", "grace", "error", "words"),
    [
        (no_handler, 5, distlab.RankDied, "It had no handler for SIGTERM"),
        (exits, 5, distlab.RankError, "ran at once, and raised SystemExit: 3. It ended by itself"),
        (calls_a_collective, 5, distlab.DeadlockError, "It waited in barrier() at"),
        (
            never_returns,
            0.5,
            distlab.RankDied,
            "It was killed (SIGKILL) after 0.5 s of grace, sleeping",
        ),
    ],
)
def test_handlers(usable, program, grace, error, words):
    """What others did stands in the report as well."""
    with usable.preempt(1, step=2, grace=grace) as preempted, pytest.raises(error):
        usable.run(program)
    assert "Rank 1 got SIGTERM at the end of optimizer step 2, at test_preempting.py" in str(
        preempted
    )
    assert words in preempted.report
    assert "Ranks 0, 2 and 3 waited in all_reduce() at test_preempting.py" in preempted.report


def test_python_runs_no_handler_while_gloo_waits(usable):
    """The signal came, and nothing happened until the kill."""
    with usable.preempt(1, after=0.3, grace=0.5) as preempted, pytest.raises(distlab.RankDied):
        usable.run(waits_in_gloo, ranks=[0, 1])
    assert "did not run. Python runs one only between two instructions" in preempted.report
    assert "which did not come back from all_reduce()" in preempted.report
    assert "Rank 0 was sleeping at" in preempted.report


def test_arguments(usable):
    """Each is refused before anything is prepared, and so is a second preemption."""
    for given in ({"rank": 7, "step": 1}, {"rank": "some", "step": 1}, {"rank": 1}):
        with pytest.raises(distlab.ArgumentError), usable.preempt(**given):
            pass
    with pytest.raises(distlab.ArgumentError), usable.preempt(1, step=1, after=1.0):
        pass
    with usable.preempt(1, step=1), pytest.raises(distlab.ClusterError, match="already"):
        usable.preempt(2, step=1).__enter__()
