"""The fixture `same_as_one_process`, and `assert distlab.compare(...)` in a plain test."""

import os

import pytest
import torch
import torch.distributed as dist

import distlab
from tests.testing.inner import Inner

PROGRAM = """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train(rank, world_size, wrong=False):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    rows = torch.randn(16, 4)[rank::world_size]
    net = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        called = model if wrong else net
        called(rows).square().mean().backward()
        optimizer.step()
"""
TESTS = """
import distlab
import pytest
import torch
import torch.distributed as dist
from program import train

ranks = pytest.mark.ranks


def fails_in(rank, world_size, n):
    if world_size == n and rank == n - 1:
        raise ValueError("only here")
    dist.barrier()


@ranks(4)
def test_right(same_as_one_process):
    assert same_as_one_process(train).same

@ranks(4)
def test_wrong(same_as_one_process):
    same_as_one_process(train, wrong=True)

@ranks(4)
def test_fails_on_ranks(same_as_one_process):
    same_as_one_process(fails_in, 4)

@ranks(4)
def test_fails_in_one_process(same_as_one_process):
    same_as_one_process(fails_in, 1)

@ranks(4)
def test_other_argument(same_as_one_process):
    same_as_one_process(train, stepz=3)

@ranks(2)
def test_on_ranks():
    distlab.compare(train, (1, 2))

@ranks(4)
def test_after_all():
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total == 4

def test_plain_right():
    assert distlab.compare(train, (1, 2))
    assert distlab.Cluster.current is None

def test_plain_wrong():
    assert distlab.compare(train, (1, 8), wrong=True)

@ranks(2)
def test_after_plain_tests(world_size):
    assert dist.get_world_size() == world_size == 2

def test_without_ranks(same_as_one_process):
    pass
"""
SENTENCE = "on {n} ranks: in step 0 nothing averaged the gradients"


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    folder = tmp_path_factory.mktemp("project")
    (folder / "program.py").write_text(PROGRAM)
    (folder / "test_program.py").write_text(TESTS)
    return Inner(folder)


def test_each_ends_as_it_should(ended):
    assert {name: found.how for name, found in ended.outcomes.items()} == {
        "test_right": "passed",
        "test_wrong": "failed",
        "test_fails_on_ranks": "failed",
        "test_fails_in_one_process": "failed",
        "test_other_argument": "failed",
        "test_on_ranks": "failed",
        "test_after_all": "passed",
        "test_plain_right": "passed",
        "test_plain_wrong": "failed",
        "test_after_plain_tests": "passed",
        "test_without_ranks": "error",
    }


def words_of(ended, name):
    found = ended.outcomes[name]
    return found.line, " ".join(found.text.split())


def test_a_wrong_program_fails_with_the_verdict(ended):
    """At the test's own line, and not at a line of distlab's."""
    line, text = words_of(ended, "test_wrong")
    assert line.startswith("rank 0: Failed: Not the same")
    assert SENTENCE.format(n=4) in " ".join(line.split())
    assert "> same_as_one_process(train, wrong=True)" in text
    assert "program.py:17 in train called(rows).square().mean().backward()" in text
    assert "in_test.py" not in text


def test_an_error_says_on_which_rank_and_in_which_world(ended):
    line, text = words_of(ended, "test_fails_on_ranks")
    assert line == "rank 3: ValueError: only here"
    assert "rank = 3, world_size = 4, n = 4" in text
    assert "ranks 0-2 waited in communication and could not go on" in text
    line, text = words_of(ended, "test_fails_in_one_process")
    assert line == "rank 0: ValueError: only here"
    assert "rank = 0, world_size = 1, n = 1" in text
    assert "ranks 1-3 waited in communication and could not go on" in text


def test_a_plain_assert_shows_the_verdict(ended):
    """On more ranks than the cluster of the marked tests has, which is not used for it."""
    _, text = words_of(ended, "test_plain_wrong")
    verdict = text.partition(" distlab.compare ---")[2]
    assert SENTENCE.format(n=8) in verdict
    assert "program.py:17 in train called(rows)" in verdict


def test_what_does_not_fit_is_refused_before_anything_runs(ended):
    """Arguments that the program does not take, and a call that is none for ranks."""
    line, text = words_of(ended, "test_other_argument")
    assert "train is called as train(rank, world_size, stepz=3)" in " ".join(line.split())
    assert "watch.py" not in text
    line, _ = words_of(ended, "test_on_ranks")
    assert "A test on ranks has the fixture same_as_one_process(train, ...)." in line


def test_without_ranks_the_fixture_says_what_to_do(ended):
    _, text = words_of(ended, "test_without_ranks")
    words = "same_as_one_process is there in tests on ranks only: mark this one with"
    assert f"{words} @pytest.mark.ranks(2)" in text


def own_group(rank, world_size, folder):
    """A script's own beginning and end."""
    dist.init_process_group("gloo")
    total = torch.ones(1)
    dist.all_reduce(total)
    (folder / f"{rank} of {world_size} in {os.environ['WORLD_SIZE']}: {total.item()}").touch()
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.ranks(2)
def test_worlds_are_real_and_the_test_goes_on_in_its_own(tmp_path, same_as_one_process):
    """A program may make its group; afterwards the test has one, and its variables."""
    with pytest.raises(pytest.fail.Exception, match="no optimizer stepped"):
        same_as_one_process(own_group, tmp_path)
    dist.barrier()
    seen = sorted(one.name for one in tmp_path.iterdir())
    assert seen == ["0 of 1 in 1: 1.0", "0 of 2 in 2: 2.0", "1 of 2 in 2: 2.0"]
    assert os.environ["WORLD_SIZE"] == "2"


@pytest.mark.ranks(2, network=distlab.Network("5 us", "25 GB/s"))
def test_on_simulated_machines(same_as_one_process):
    space = {}
    exec(PROGRAM, space)
    assert same_as_one_process(space["train"]).same
    with pytest.raises(pytest.fail.Exception, match="nothing averaged"):
        same_as_one_process(space["train"], True)


@pytest.mark.ranks(1)
def test_one_rank_is_one_process(same_as_one_process):
    space = {}
    exec(PROGRAM, space)
    assert same_as_one_process(space["train"]).same
