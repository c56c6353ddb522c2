"""Real ranks, which the tests share, and the count of processes that they leave behind.

Runs in pytest's process; the functions of (rank, world_size) at the end run on every rank.
"""

import contextlib
import os
import signal
import sys
import threading
from multiprocessing import forkserver, resource_tracker
from unittest import mock

import psutil
import pytest
import torch
import torch.distributed as dist
from jupyter_client.manager import start_new_kernel

import distlab
from distlab.launch import reaper
from distlab.notebook import interrupts
from distlab.notebook.cell import Cell, Options
from distlab.notebook.magics import with_first_line
from tests.processes import marked, wait_until_gone

FOUR = {"n": 4, "timeout": 60}
OURS = ("distlab-", "pymp-")  # folders of clusters, and what multiprocessing would make for a rank


def processes_of(owner: str) -> list[psutil.Process]:
    """Living processes of clusters whose tag begins with `owner`."""
    return marked(reaper.TAG, owner)


def our_processes() -> list[psutil.Process]:
    """Living processes of this test process's clusters, and its children but Python's servers."""
    tagged = processes_of(f"{os.getpid()}-")
    servers = forkserver._forkserver._forkserver_pid, resource_tracker._resource_tracker._pid
    children = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE and process.pid not in servers:
                children.append(process)
    return tagged + [process for process in children if process not in tagged]


def pids_of_the_running_cluster() -> set[int]:
    """Every process of the cluster that runs now, and its guard."""
    if distlab.Cluster.current is None:
        return set()
    tag = distlab.Cluster.current.ranks._processes.tag
    guards = [
        process
        for process in psutil.process_iter(["cmdline"])
        if tag in (process.info["cmdline"] or ())
    ]
    return {process.pid for process in [*guards, *processes_of(tag)]}


def pid_of_the_recorder() -> set[int]:
    """The process that records for predictions, if there is one: it stays for the next ones."""
    module = sys.modules.get("distlab_predict.predict")  # only where tests import it
    running = module.predict._recorder._running if module else None
    return {running.process.pid} if running else set()


class Shared:
    """The cluster that tests share, until one with other options is asked for."""

    def __init__(self):
        self.options, self.cluster = {}, None

    def made(self, **options):
        if (
            self.cluster is None
            or self.cluster is not distlab.Cluster.current
            or self.options != options
        ):
            self.options, self.cluster = options, distlab.Cluster(**options)
        return self.cluster


def pytest_collection_modifyitems(items):
    """Modules whose clusters are alike run one after another."""
    items.sort(key=lambda item: str(getattr(getattr(item, "module", None), "CLUSTER", FOUR)))


def stop_what_runs():
    if distlab.Cluster.current is not None:
        distlab.Cluster.current.stop()


@pytest.fixture(scope="session")
def shared(temporary_folder):
    """The cluster that tests share; at the end it is stopped, and no process of ours is left."""
    before = {process.pid for process in our_processes()}
    yield Shared()
    stop_what_runs()
    assert wait_until_gone(lambda: [p for p in our_processes() if p.pid not in before]) == []


@pytest.fixture(autouse=True, scope="session")
def temporary_folder(tmp_path_factory):
    """A folder in the system's place: pytest removes what torch and Jupyter leave there."""
    folder = tmp_path_factory.mktemp("temporary")
    with mock.patch.dict(os.environ, TMPDIR=str(folder)), mock.patch("tempfile.tempdir", None):
        yield

    def left():
        return [name for name in os.listdir(folder) if name.startswith(OURS)]

    assert wait_until_gone(left) == []


@pytest.fixture(autouse=True, scope="module")
def nothing_left(shared):
    """After the tests of a module, no process of ours is left but those that all modules share."""
    before = {process.pid for process in our_processes()}
    yield
    kept = before | pids_of_the_running_cluster() | pid_of_the_recorder()
    assert wait_until_gone(lambda: [p for p in our_processes() if p.pid not in kept]) == []


@pytest.fixture
def cluster(request, shared):
    """The shared ranks with the options of a module's CLUSTER, or four.

    Their timeout is long: on a busy machine, being freed must differ from it.
    """
    return shared.made(**getattr(request.module, "CLUSTER", FOUR))


@pytest.fixture(scope="module")
def sized(request, shared):
    """The shared ranks, as many as a test asks for."""
    return shared.made(n=request.param, timeout=60)


@pytest.fixture
def quick_watch(monkeypatch):
    """A deadlock is reported after 0.2 s without movement."""
    monkeypatch.setattr("distlab.notebook.seconds.UNMOVED", 0.2)
    monkeypatch.setattr("distlab.notebook.seconds.TICK", 0.1)


@pytest.fixture
def usable(cluster):
    """The shared cluster, which must still add up its ranks after the test."""
    yield cluster
    assert cluster.run(sum_of_ranks) == [cluster.n * (cluster.n - 1) / 2] * cluster.n


@pytest.fixture(scope="session")
def on_gloo(shared):
    """What every program of the backends gives on gloo, with three ranks."""
    # with torch's sharding, which takes seconds to import
    from tests.cluster.backend_programs import PROGRAMS

    three = shared.made(n=3, timeout=60)
    return {name: outcome(three, program) for name, program in PROGRAMS.items()}


def outcome(cluster, program):
    """What a program gives; in words why it does not, as where this torch's gloo lacks a type."""
    try:
        return cluster.run(program)
    except distlab.RankError as error:
        return str(error)


class Notebook:
    """A kernel that runs cells as a front end does and keeps what they show."""

    def __init__(self):
        self.manager, self.client = start_new_kernel()
        self.pid = self.manager.provisioner.pid

    def run(self, source: str, someone_watches: bool = False, type_line=None) -> list[dict]:
        """Run a cell; its iopub messages as dicts with `type` and the message's content.

        type_line: called where the cell asks for a line.
        """
        messages = []

        def keep(message):
            if message["msg_type"] not in (
                "stream",
                "display_data",
                "execute_result",
                "error",
                "update_display_data",
            ):
                return
            new, last = (
                {"type": message["msg_type"], **message["content"]},
                messages[-1] if messages else {},
            )
            # a line may come in two
            if new["type"] == "stream" and last.get("name") == new["name"]:
                last["text"] += new["text"]
            else:
                messages.append(new)

        hooks = {"output_hook": keep, "stdin_hook": type_line}
        reply = self.client.execute_interactive(
            source, allow_stdin=someone_watches, timeout=120, **hooks
        )
        self.status = reply["content"]["status"]
        return messages

    def text(self, source: str) -> str:
        """What a cell shows, as plain text."""
        return "\n".join(plain(message) for message in self.run(source))

    def close(self, now: bool = False) -> None:
        """End the kernel, after which nothing of it is left."""
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=now)
        assert wait_until_gone(lambda: processes_of(f"{self.pid}-")) == []


def plain(message: dict) -> str:
    if message["type"] == "stream":
        return message["text"]
    if message["type"] == "error":
        return f"{message['ename']}: {message['evalue']}"
    return message["data"].get("text/plain", "")


@pytest.fixture(scope="module")
def notebook(request, nothing_left):
    """A kernel with a cluster of two ranks, or of a module's RANKS_OF_NOTEBOOK."""
    book, ranks = Notebook(), getattr(request.module, "RANKS_OF_NOTEBOOK", 2)
    book.run(f"%load_ext distlab\nimport distlab\ncluster = distlab.Cluster({ranks}, timeout=20)")
    assert book.status == "ok"
    yield book
    assert processes_of(f"{book.pid}-")
    book.close(now=True)


def kill(cluster, *ranks):
    """Kill the processes of some ranks, and return the pids that all had."""
    pids = [one.pid for one in cluster.ranks.joined]
    for rank in ranks:
        os.kill(pids[rank], signal.SIGKILL)
    assert wait_until_gone(lambda: set(ranks) & set(cluster.client.ids)) == set()
    return pids


def descriptors_and_threads():
    return len(os.listdir("/proc/self/fd")), threading.active_count()


def sum_of_ranks(rank, world_size):
    # cloudpickle takes torch.tensor for torch.distributed.tensor, and imports it
    total = torch.full((1,), float(rank))
    dist.all_reduce(total)
    return total.item()


def pid_on_rank(rank, world_size):
    return os.getpid()


def until_told(folder):
    """A job of ipyparallel's client that says that it runs, and ends with the file `go`."""
    import os
    import time

    (folder / os.environ["RANK"]).touch()
    while not (folder / "go").exists():
        time.sleep(0.01)
    return "done"


def spin(rank, world_size):
    while True:
        pass


def stuck(rank, world_size):
    dist.recv(torch.zeros(1), src=(rank + 1) % world_size)


def dies(rank, world_size):
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def px(cluster, code, **options):
    """Run a %%px cell, without a notebook around it."""
    ranks = list(range(cluster.n))
    options = Options(source=f"%%px\n{code}", **options)
    compiled = with_first_line("%%px", code)
    with interrupts.held():
        Cell.send(
            cluster.ranks,
            ranks,
            lambda view: view.execute(compiled, silent=False, block=False),
            options,
        ).finish()
