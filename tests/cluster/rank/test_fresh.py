"""Fresh ranks: interpreters of their own, and all else as with forked ones."""

import gc
import os
import sys
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist

import distlab
from distlab.errors import DeadlockError, RankDied, RankError
from tests.cluster.conftest import kill
from tests.processes import wait_until_gone

NAMES = [f"loss {number}" for number in range(26)]


def by_name(rank, world_size):
    """Goes through a set of strings, whose order depends on the seed of their hashes."""
    for name in set(NAMES):
        if NAMES.index(name) % 2:
            dist.all_reduce(torch.ones(1))
        else:
            dist.broadcast(torch.ones(1), 0)


def facts(rank, world_size):
    """What a rank shares with others that were forked from the same process."""
    return {
        "hash": hash("loss"),
        "pid": os.getpid(),
    }


def surroundings(rank, world_size):
    """What a fresh rank has, as a forked one has it."""
    return {
        "threads": torch.get_num_threads(),
        "leads a session": os.getsid(0) == os.getpid(),
        "prompt": hasattr(sys, "ps1"),
        "collects": gc.isenabled(),
        "arguments": sys.argv,
        "path": [folder for folder in sys.path if "python" not in folder],
        "debugger": "debugpy" in sys.modules,
        "safe path": os.environ.get("PYTHONSAFEPATH"),
    }


def lives(pid):
    """Whether a process runs, and does not only wait to be read."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.new_python
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux forks ranks")
def test_a_loop_over_a_set_deadlocks_on_fresh_ranks_as_on_a_cluster(capfd):
    """Here two forked ranks agree; a fresh rank that has died is replaced by a fresh one."""
    with distlab.Cluster(2, preload=["wave"], threads=2) as forked:
        forked.run(by_name)
        assert len({one["hash"] for one in forked.run(facts)}) == 1
        expected = forked.run(surroundings)
    with distlab.Cluster(2, preload=["wave"], threads=2, fresh=True) as cluster:
        assert cluster.run(surroundings) == expected
        assert cluster.run(lambda rank, world_size: "wave" in sys.modules) == [True, True]
        with pytest.raises(DeadlockError, match="do not call the same collective"):
            cluster.run(by_name)
        with pytest.raises(RankError, match="MismatchError: The ranks do not call the same"):
            cluster.run(by_name, check=True)
        with pytest.raises(RankDied, match="rank 1 ended with exit status 3"):
            cluster.run(lambda rank, world_size: os._exit(3) if rank else dist.barrier())
        found = cluster.run(facts)
        kill(cluster, 1)
        cluster.heal()
        found += cluster.run(facts, ranks=[1])
        assert [len({one[name] for one in found}) for name in ("hash", "pid")] == [3, 3]
        cluster.client[:].execute("print('by a cell', rank)", block=True).display_outputs()
        assert "by a cell 1" in capfd.readouterr().out
    assert not wait_until_gone(lambda: list(filter(lives, [one["pid"] for one in found])))


@pytest.mark.new_python
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends them so")
def test_fresh_ranks_end_with_their_server():
    """Its first ranks were fresh: it imports nothing, and a forked cluster takes another one."""
    with distlab.Cluster(2, fresh=True) as cluster:
        server = cluster.ranks._processes.servers.to(0).process.pid
        assert "libtorch" not in Path(f"/proc/{server}/maps").read_text()
        pids = [one["pid"] for one in cluster.run(facts)]
        assert {psutil.Process(pid).ppid() for pid in pids} == {server}
        with distlab.Cluster(2) as forked:
            assert forked.ranks._processes.servers.to(0).process.pid != server
            assert len({one["hash"] for one in forked.run(facts)}) == 1
    with distlab.Cluster(2, fresh=True) as cluster:
        pids = [one["pid"] for one in cluster.run(facts)]
        psutil.Process(cluster.ranks._processes.servers.to(0).process.pid).kill()
        assert not wait_until_gone(lambda: list(filter(lives, pids)))
