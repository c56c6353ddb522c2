"""Objects that ranks send each other arrive, although each rank is recorded by itself."""

import functools

import pytest
import torch
import torch.distributed as dist
from torch import nn

import distlab
from tests.cluster.predict.test_predict import FREE, NETWORK, calls, train
from tests.refused import raised


def settings_from(rank, world_size, source):
    objects = [{"width": 64}, 3] if rank == source else [None, None]
    dist.broadcast_object_list(objects, src=source)
    settings, steps = objects
    train(nn.parallel.DistributedDataParallel(nn.Linear(64, settings["width"])), steps)


@pytest.mark.parametrize("roles", [None, [0], [3, 5]])
def test_settings_of_one_rank_are_those_of_all(roles):
    """Whether that rank is recorded or not: it is no role."""
    program = functools.partial(settings_from, source=2)
    prediction = distlab.predict(program, 8, NETWORK, FREE, roles=roles)
    assert calls(prediction) == [("all_reduce", 8, 4 * (64 * 64 + 64))]
    assert [one.rank for one in prediction.recordings] == (roles or [0])
    assert len(prediction.recordings[0].steps) == 3


def passed_on(rank, world_size):
    """Each rank gets a width from the one before, and the next one is recorded, too."""
    box = [8]
    if rank > 0:
        assert dist.recv_object_list(box, src=rank - 1) == rank - 1
    width = box[0]
    if rank < world_size - 1:
        dist.send_object_list([2 * width], dst=rank + 1)
    train(nn.Linear(64, width), 2)
    print(width)


def test_objects_are_passed_on_from_rank_to_rank():
    prediction = distlab.predict(passed_on, 4, NETWORK, FREE)
    assert [one.printed for one in prediction.recordings] == ["8\n", "16\n", "32\n", "64\n"]


def all_calls(rank, world_size):
    part = [None]
    dist.scatter_object_list(part, list("abcd") if rank == 1 else None, src=1)
    names = [None] * world_size
    dist.all_gather_object(names, {"name": part[0]})
    found = [None] * world_size if rank == 0 else None
    dist.gather_object(len(part), found, dst=0)
    train(nn.Linear(64, 64), 2)
    print(part, [one["name"] for one in names], found)


def test_what_ranks_gather_is_as_if_all_had_the_same(capsys):
    distlab.predict(all_calls, 4, NETWORK, FREE)
    assert capsys.readouterr().out == "['a'] ['a', 'a', 'a', 'a'] [1, 1, 1, 1]\n"


def test_objects_take_the_time_of_their_bytes():
    def program(rank, world_size):
        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters())
        for _ in range(2):
            objects = [b"x" * 10**6 if rank == 0 else None]
            dist.broadcast_object_list(objects, src=0)
            model(torch.ones(1, 4)).sum().backward()
            optimizer.step()

    ((name, size, num_bytes),) = calls(distlab.predict(program, 8, NETWORK, FREE))
    assert (name, size) == ("broadcast", 8)
    assert 10**6 < num_bytes < 10**6 + 100


def never_sent(rank, world_size):
    if rank == 0:
        dist.recv_object_list([None], src=1)


def sent_too_late(rank, world_size):
    """Each waits for the other."""
    box = [None]
    dist.recv_object_list(box, src=1 - rank)
    dist.send_object_list(box, dst=1 - rank)


def fails_before(rank, world_size):
    if rank == 1:
        raise ValueError("no settings")
    dist.broadcast_object_list([None], src=1)


@pytest.mark.parametrize("program", [never_sent, sent_too_late])
def test_what_is_never_sent_is_named(program):
    error = str(raised(distlab.RankError, distlab.predict, program, 2, NETWORK, FREE))
    assert "rank 0" in error
    assert "recv_object_list(" in error


def test_a_rank_that_fails_is_the_cause():
    error = str(raised(distlab.RankError, distlab.predict, fails_before, 2, NETWORK, FREE))
    assert error.startswith("rank 1 raised ValueError: no settings")
