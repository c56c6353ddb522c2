"""A hundred small tests by mark: each collective, dtype and size on two ranks and on four.

The clusters are shared by the tests, which see a new process group each.
"""

import pytest
import torch
import torch.distributed as dist

DTYPES = [torch.float32, torch.float64, torch.int64]
SEEN = []


def own(rank, size, dtype):
    return torch.arange(size, dtype=dtype) + rank


def all_ranks(world_size, size, dtype):
    return [own(rank, size, dtype) for rank in range(world_size)]


@pytest.fixture
def tensor(rank, size, dtype):
    return own(rank, size, dtype)


@pytest.fixture
def everyones(world_size, size, dtype):
    return all_ranks(world_size, size, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [1, 7, 1000])
class Collectives:
    def test_all_reduce(self, tensor, everyones):
        dist.all_reduce(tensor)
        assert torch.equal(tensor, sum(everyones))

    def test_all_gather(self, tensor, everyones):
        gathered = [torch.empty_like(tensor) for _ in everyones]
        dist.all_gather(gathered, tensor)
        assert all(map(torch.equal, gathered, everyones))

    def test_broadcast(self, tensor, everyones, world_size):
        dist.broadcast(tensor, src=world_size - 1)
        assert torch.equal(tensor, everyones[-1])

    def test_reduce_scatter(self, tensor, everyones, rank, world_size):
        part = torch.empty_like(tensor)
        dist.reduce_scatter_tensor(part, tensor.repeat(world_size))
        assert torch.equal(part, sum(everyones))

    def test_ring(self, tensor, everyones, rank, world_size):
        received = torch.empty_like(tensor)
        request = dist.isend(tensor, dst=(rank + 1) % world_size)
        dist.recv(received, src=(rank - 1) % world_size)
        request.wait()
        assert torch.equal(received, everyones[rank - 1])


@pytest.mark.ranks(2)
class TestTwoRanks(Collectives):
    """45 tests."""


@pytest.mark.ranks(4)
class TestFourRanks(Collectives):
    """45 tests."""


@pytest.mark.ranks(2)
@pytest.mark.parametrize("number", range(10))
def test_no_test_sees_what_another_has_left(number, rank, world_size, tmp_path, monkeypatch):
    """Neither variables, groups, the environment nor a message; the folder is shared."""
    import os

    assert SEEN == []
    SEEN.append(number)
    assert "LEFT_BEHIND" not in os.environ
    os.environ["LEFT_BEHIND"] = "1"
    assert dist.get_pg_count() == 1
    dist.new_group()
    (tmp_path / str(rank)).touch()
    dist.barrier()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["0", "1"]
    if rank == 0:
        dist.isend(torch.ones(1), dst=1)
