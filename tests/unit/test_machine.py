"""What a machine or its container lets a process have: cores, memory, files, threads."""

import os
import resource
import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest

from distlab import machine
from tests.plans import plan_of
from tests.refused import refused

GIB = 2**30
NO_LIMIT_1 = {"cpu.cfs_quota_us": -1, "cpu.cfs_period_us": 100_000}
NO_LIMIT_2 = {"cpu.max": "max 100000"}


@pytest.fixture
def host(tmp_path, monkeypatch):
    """A machine with 8 cores and 32 GiB: a function that puts it into control groups."""
    monkeypatch.delenv(machine.CORES, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=32 * GIB))
    monkeypatch.setattr(machine, "OWN_GROUPS", tmp_path / "own")
    monkeypatch.setattr(machine, "GROUPS", tmp_path / "groups")

    def put(own, files):
        """The lines of /proc/self/cgroup; files below /sys/fs/cgroup, by group, by name."""
        (tmp_path / "own").write_text(own)
        for group, texts in files.items():
            folder = tmp_path / "groups" / group
            folder.mkdir(parents=True, exist_ok=True)
            for name, text in texts.items():
                (folder / name).write_text(f"{text}\n")

    return put


def test_a_machine_without_control_groups(host):
    """As macOS, which has no affinity either."""
    assert machine.cores() == 8
    assert machine.free_memory() == 32 * GIB


def test_a_system_without_affinity(host, monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity")
    assert machine.cores() == 8


CPUS = {
    "version 2, a container": ("0::/\n", {"": {"cpu.max": "200000 100000"}}, 2),
    "version 2, no limit": ("0::/\n", {"": NO_LIMIT_2}, 8),
    "version 2, a part of a core": ("0::/\n", {"": {"cpu.max": "50000 100000"}}, 1),
    "version 2, rounded up": ("0::/\n", {"": {"cpu.max": "250000 100000"}}, 3),
    "version 2, more than there is": ("0::/\n", {"": {"cpu.max": "6400000 100000"}}, 8),
    "version 2, the group around has the limit": (
        "0::/user/job/step\n",
        {"user": NO_LIMIT_2, "user/job": {"cpu.max": "300000 100000"}, "user/job/step": NO_LIMIT_2},
        3,
    ),
    "version 2, the smallest counts": (
        "0::/user/job\n",
        {"user": {"cpu.max": "500000 100000"}, "user/job": {"cpu.max": "400000 100000"}},
        4,
    ),
    "version 1": (
        "1:cpu:/\n",
        {"cpu": {"cpu.cfs_quota_us": 300_000, "cpu.cfs_period_us": 100_000}},
        3,
    ),
    "version 1, two controllers in one": (
        "4:cpu,cpuacct:/\n9:memory:/\n",
        {"cpu,cpuacct": {"cpu.cfs_quota_us": 100_000, "cpu.cfs_period_us": 50_000}},
        2,
    ),
    "version 1, no limit": ("1:cpu:/\n", {"cpu": NO_LIMIT_1}, 8),
    "version 1, the path is that of the host": (
        "1:cpu:/docker/0123\n",
        {"cpu": {"cpu.cfs_quota_us": 200_000, "cpu.cfs_period_us": 100_000}},
        2,
    ),
    "version 1, nested": (
        "1:cpu:/slurm/job\n",
        {
            "cpu": NO_LIMIT_1,
            "cpu/slurm": {"cpu.cfs_quota_us": 500_000, "cpu.cfs_period_us": 100_000},
        },
        5,
    ),
    "both versions": (
        "1:cpu:/\n0::/\n",
        {"cpu": {"cpu.cfs_quota_us": 10**6, "cpu.cfs_period_us": 250_000}},
        4,
    ),
    "files that say nothing": ("0::/\n", {"": {"cpu.max": ""}}, 8),
    "a period of nothing": (
        "1:cpu:/\n",
        {"cpu": {"cpu.cfs_quota_us": 100, "cpu.cfs_period_us": 0}},
        8,
    ),
}


@pytest.mark.parametrize(("own", "files", "cores"), CPUS.values(), ids=CPUS)
def test_cores_are_those_of_the_containers_quota(host, own, files, cores):
    host(own, files)
    assert machine.cores() == cores


def test_cores_are_those_that_this_process_may_run_on(host, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {2, 5, 7})
    host("0::/\n", {"": {"cpu.max": "400000 100000"}})
    assert machine.cores() == 3


def test_a_variable_of_the_environment_counts_more_than_the_machine(host, monkeypatch):
    monkeypatch.setenv("DISTLAB_CORES", "12")
    host("0::/\n", {"": {"cpu.max": "100000 100000"}})
    assert machine.cores() == 12
    for wrong in ("0", "-1", "many", "1.5", ""):
        monkeypatch.setenv("DISTLAB_CORES", wrong)
        assert str(refused(machine.cores)) == (
            f"DISTLAB_CORES must be a whole number above 0, got {wrong!r}. "
            "It is a variable of the environment: unset it, or change it."
        )


STATISTICS = f"anon 5\ninactive_file {GIB}\n"
MEMORIES = {
    "version 2": (
        "0::/\n",
        {"": {"memory.max": 4 * GIB, "memory.current": 3 * GIB, "memory.stat": STATISTICS}},
        2 * GIB,
    ),
    "version 2, no limit": (
        "0::/\n",
        {"": {"memory.max": "max", "memory.current": 3 * GIB}},
        32 * GIB,
    ),
    "version 2, full": ("0::/\n", {"": {"memory.max": GIB, "memory.current": 2 * GIB}}, 0),
    "version 2, the group around has the limit": (
        "0::/job/step\n",
        {
            "job": {"memory.max": 4 * GIB, "memory.current": GIB},
            "job/step": {"memory.max": "max", "memory.current": GIB},
        },
        3 * GIB,
    ),
    "version 1": (
        "4:memory:/docker/0123\n",
        {
            "memory": {
                "memory.limit_in_bytes": 4 * GIB,
                "memory.usage_in_bytes": GIB,
                "memory.stat": "cache 1",
            }
        },
        3 * GIB,
    ),
    "version 1, no limit": (
        "4:memory:/\n",
        {"memory": {"memory.limit_in_bytes": 2**63 - 4096, "memory.usage_in_bytes": GIB}},
        32 * GIB,
    ),
}


@pytest.mark.parametrize(("own", "files", "free"), MEMORIES.values(), ids=MEMORIES)
def test_memory_is_what_the_container_has_left(host, own, files, free):
    host(own, files)
    assert machine.free_memory() == free


@pytest.mark.parametrize(("soft", "files"), [(1024, 1024), (resource.RLIM_INFINITY, None)])
def test_open_files(monkeypatch, soft, files):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (soft, soft))
    assert machine.open_files() == files


TASKS = {
    "no limit": ("0::/\n", {"": {"pids.max": "max", "pids.current": 7}}, None),
    "version 2, a container": ("0::/\n", {"": {"pids.max": 100, "pids.current": 7}}, (100, 7, 93)),
    "version 2, the fewest left": (
        "0::/user/job\n",
        {
            "user": {"pids.max": 500, "pids.current": 490},
            "user/job": {"pids.max": 100, "pids.current": 9},
        },
        (500, 490, 10),
    ),
    "version 1": ("8:pids:/\n", {"pids": {"pids.max": 60, "pids.current": 61}}, (60, 61, 0)),
    "files that say nothing": ("0::/\n", {"": {"pids.max": ""}}, None),
}


@pytest.mark.parametrize(("own", "files", "limit"), TASKS.values(), ids=TASKS)
def test_processes_are_those_that_the_container_allows(host, own, files, limit):
    """And the container around it."""
    host(own, files)
    found = machine.tasks()
    assert (found and (found.most, found.taken, found.left)) == limit


@pytest.mark.parametrize(
    ("user", "soft", "limit"),
    [
        (1000, 30, (30, 5, True)),
        (1000, resource.RLIM_INFINITY, None),
        (0, 30, None),
        (1000, 50_000, (50_000, 900, True)),
    ],
)
def test_processes_are_those_that_the_user_may_have(monkeypatch, tmp_path, user, soft, limit):
    """The user's own, with their threads, only if the limit may be near."""
    (tmp_path / "loadavg").write_text("0.20 0.18 0.12 1/900 11206\n")
    for pid, threads in ((7, 2), (8, 3), (9, 4)):
        for thread in range(threads):
            (tmp_path / str(pid) / "task" / str(thread)).mkdir(parents=True)
    monkeypatch.setattr(machine, "PROCESSES", tmp_path)
    monkeypatch.setattr(machine, "OWN_GROUPS", tmp_path / "none")
    monkeypatch.setattr(machine, "_owner", lambda process: 1000 if process.name in "78" else 0)
    monkeypatch.setattr(os, "getuid", lambda: user)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(resource, "getrlimit", lambda which: (soft, soft))
    found = machine.tasks()
    assert (found and (found.most, found.taken, found.is_users)) == limit


def test_ranks_compute_with_the_cores_that_they_have(host):
    """A cluster on a container's share of a large machine does not begin more threads than that."""
    host("0::/\n", {"": {"cpu.max": "400000 100000"}})
    assert [plan_of(n).threads for n in (1, 2, 3, 8)] == [4, 2, 1, 1]


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system has no affinity")
def test_a_process_that_may_run_on_one_core_counts_one():
    """As under taskset, or a job of Slurm."""
    core = min(os.sched_getaffinity(0))
    code = (
        f"import os; os.sched_setaffinity(0, [{core}]); from distlab import machine; "
        "print(machine.cores())"
    )
    environment = {name: value for name, value in os.environ.items() if name != machine.CORES}
    assert (
        subprocess.check_output([sys.executable, "-c", code], text=True, env=environment) == "1\n"
    )
