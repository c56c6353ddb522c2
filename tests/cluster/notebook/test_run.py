"""cluster.run: what travels, in which order values come back, and what is printed where."""

import functools
import sys
import time

import numpy as np
import psutil
import torch

import distlab
from distlab.launch import reaper
from tests.cluster.conftest import pid_on_rank
from tests.processes import until

FACTOR = 3


class Pair:
    """A class of the test's own module, which no rank can import."""

    def __init__(self, left, right):
        self.left, self.right = left, right

    def method(self, rank, world_size):
        return self.left + rank


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)

    def forward(self, x):
        return self.linear(x).relu()


def factorial(n):
    return 1 if n < 2 else n * factorial(n - 1)


def test_values_come_in_rank_order(usable):
    """Values are listed by rank, whoever returned first; rank r is engine r, and torch agrees."""

    def slow_first(rank, world_size):
        time.sleep(0.1 * (world_size - rank))
        return rank, world_size, dist.get_rank()  # noqa: F821

    assert usable.run(slow_first) == [(rank, 4, rank) for rank in range(4)]
    assert usable.client.ids == [0, 1, 2, 3]
    assert usable.client[:].pull("rank", block=True) == [0, 1, 2, 3]
    for ranks in ([2, 1], (3,), range(1, 4)):
        assert usable.run(lambda rank, world_size: rank, ranks=ranks) == list(ranks)


def test_functions_of_every_kind_travel(usable):
    """Closures, partials, recursion, helpers, bound methods, and names of the ranks alone."""
    offset = 10
    assert usable.run(lambda rank, world_size, x: FACTOR * x * rank + offset, 5) == [10, 25, 40, 55]
    assert usable.run(functools.partial(lambda rank, world_size, by: rank + by, by=1)) == [
        1,
        2,
        3,
        4,
    ]
    assert usable.run(lambda rank, world_size: factorial(rank)) == [1, 1, 2, 6]
    assert usable.run(Pair(7, 0).method) == [7, 8, 9, 10]
    usable.push({"only_there": 40})
    assert usable.run(lambda rank, world_size: only_there + dist.get_world_size()) == [44] * 4  # noqa: F821


TENSORS = [
    torch.arange(6.0).reshape(2, 3),
    torch.arange(6, dtype=torch.int32)[::2],
    torch.zeros(0, 4),
    torch.randn(5).to(torch.bfloat16),
    torch.nn.Parameter(torch.ones(2)),
    torch.tensor([1, 2]).to_sparse(),
    torch.randn(2, dtype=torch.complex64).conj(),
]


def test_tensors_keep_dtype_and_shape(usable):
    """A tensor comes back from every rank as it was sent: values, dtype, shape, requires_grad."""
    for returned in usable.run(lambda rank, world_size, tensors: tensors, TENSORS):
        for back, tensor in zip(returned, TENSORS, strict=True):
            assert (back.dtype, back.shape, back.requires_grad) == (
                tensor.dtype,
                tensor.shape,
                tensor.requires_grad,
            )
            assert type(back) is type(tensor)
            assert torch.equal(back.detach().to_dense(), tensor.detach().to_dense())


def test_an_argument_can_be_written_on_the_rank(usable):
    """A tensor argument is the rank's own memory, and the notebook's is unchanged."""
    tensor = torch.ones(1000)

    assert usable.run(lambda rank, world_size, t: t.add_(1)[0].item(), tensor) == [2.0] * 4
    assert tensor.sum().item() == 1000


def test_modules_arrays_and_own_classes_travel(usable):
    """Modules, numpy arrays and objects; a tensor that is sent twice is one."""
    net, x, array = Net(), torch.randn(4, 3), np.arange(5)
    expected = net(x)
    for result, numbers, pair in usable.run(
        lambda rank, world_size, m, x, a: (m(x).detach(), a * 2, Pair(rank, m.linear.weight.shape)),
        net,
        x,
        array,
    ):
        assert torch.allclose(result, expected)
        assert (numbers == array * 2).all()
        assert (pair.right, type(pair).__name__) == (torch.Size([2, 3]), "Pair")
    assert usable.run(lambda rank, world_size, pair: pair[0] is pair[1], [x, x]) == [True] * 4


def test_output_is_shown_under_its_rank(usable, capfd):
    """What ranks print is shown sorted by rank, equal lines folded, stderr marked."""

    def talk(rank, world_size):
        print(f"group {rank // 2}")
        print("and more" if rank == 3 else "", end="")
        print("careful", file=sys.stderr)

    usable.run(talk)
    assert capfd.readouterr().out.splitlines() == [
        "ranks 0-1:        group 0",
        "rank 2:           group 1",
        "rank 3:           group 1",
        "                  and more",
        "ranks 0-3 stderr: careful",
    ]


def test_push_and_pull(usable):
    """push defines variables on all ranks or some; pull returns values by rank."""
    usable.push({"x": torch.arange(3), "y": "why"})
    assert [t.tolist() for t in usable.pull("x")] == [[0, 1, 2]] * 4
    usable.push({"y": "because"}, ranks=[1, 3])
    assert usable.pull("y") == ["why", "because", "why", "because"]
    assert usable.pull("y", ranks=[3, 0]) == ["because", "why"]
    assert usable.pull(["y", "rank"]) == [["why", 0], ["because", 1], ["why", 2], ["because", 3]]


def test_many_tensors_there_and_back(usable):
    """The parameters of a deep model, 300 tensors large and small, go to a rank and come back."""
    tensors = [torch.full((size,), float(i)) for i in range(100) for size in (1, 10, 40_000)]
    (back,) = usable.run(lambda rank, world_size, t: [x + 1 for x in t], tensors, ranks=[1])
    assert all(torch.equal(one, other - 1) for one, other in zip(tensors, back, strict=True))


def test_ipyparallels_client_works(usable):
    """push, execute and map_sync of a view; send_signal reaches engines without a nanny."""
    view = usable.client[:]
    view.push({"z": 5}, block=True)
    assert usable.pull("z") == [5] * 4
    assert view.map_sync(lambda i: i * i, range(6)) == [0, 1, 4, 9, 16, 25]
    sleeping = view.apply_async(time.sleep, 30)
    until(lambda: all(row["state"] in ("sleeping", "computing") for row in usable.describe()))
    usable.client.send_signal("SIGINT", block=True)
    errors = sleeping.get(timeout=20, return_exceptions=True)
    assert [error.ename for error in errors] == ["KeyboardInterrupt"] * 4


def test_the_functions_of_the_package_act_on_the_current_cluster(usable, tmp_path):
    """As the methods of the same name."""
    with distlab.trace() as trace:
        assert distlab.run(pid_on_rank) == [one.pid for one in usable.ranks.joined]
    assert trace is usable.last_trace
    assert usable.export(tmp_path / "script.py").notes[-1].endswith(": pid_on_rank(rank, ...)")


def test_the_table_and_what_listens(usable):
    """repr and HTML list every rank with its pid; nothing of a cluster listens beyond 127.0.0.1."""
    shown = usable._repr_mimebundle_()
    assert shown["text/html"].count("<tr ") == 4
    lines = shown["text/plain"].splitlines()
    assert lines[0] == "Cluster(4): backend gloo"
    for rank, pid in enumerate(usable.run(pid_on_rank)):
        assert lines[rank + 1].startswith(f"rank {rank}: idle")
        assert lines[rank + 1].endswith(f" MB  pid {pid}")
        assert f"pid {pid}" in shown["text/html"]
    processes = usable.ranks._processes
    connections = []
    for process in reaper.processes_of(processes.tag):
        connections += process.net_connections(kind="inet")
    listening = {c.laddr.ip for c in connections if c.status == psutil.CONN_LISTEN}
    assert listening | {processes.channel.address[0]} == {"127.0.0.1"}
