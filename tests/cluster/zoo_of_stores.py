"""Programs whose ranks meet in stores and groups of their own, with right ones."""

import os
import time
from datetime import timedelta
from unittest import mock

import torch.distributed as dist

from tests.cluster.zoo import breaks, folder_of_cluster, ones


def port():
    """The same on all ranks of a cluster, and another one in the next cluster."""
    return 20000 + os.getppid() % 9000


def path(name):
    """A file that all ranks of a cluster know, and that a program uses once."""
    return os.path.join(folder_of_cluster(), name)


def written_by(rank, file):
    """A new file of one rank."""
    if dist.get_rank() == rank and os.path.exists(file):
        os.unlink(file)
    dist.barrier()


def open_tcp(n, is_master, **options):
    return dist.TCPStore("127.0.0.1", port(), n, is_master, **options)


def build(rank, n, method, is_missing):
    """A group of the learner's in the place of the cluster's, for which one rank does not come."""
    dist.destroy_process_group()
    if is_missing:
        raise ValueError("no group for me")
    dist.init_process_group("gloo", init_method=method, rank=rank, world_size=n)


# --- a rank raises ---


@breaks(2, error="RankError")
def a_client_whose_server_has_raised(rank, n):
    """rank 0 raised ValueError: cannot serve"""
    if rank == 0:
        raise ValueError("cannot serve")
    open_tcp(n, is_master=False)


@breaks(2, 4, error="RankError")
def a_server_whose_client_has_raised(rank, n):
    """rank 0 waited in communication and could not go on"""
    if rank == 1:
        raise ValueError("cannot come")
    if rank == 0:
        open_tcp(n, is_master=True)


@breaks(2, error="RankError")
def two_servers_with_one_port(rank, n):
    """name: EADDRINUSE, message: address already in use"""
    open_tcp(n, is_master=True)


@breaks(2, error="RankError")
def a_group_over_tcp_whose_first_rank_has_raised(rank, n):
    """rank 0 raised ValueError: no group for me"""
    build(rank, n, f"tcp://127.0.0.1:{port()}", is_missing=rank == 0)


@breaks(2, error="RankError")
def a_group_over_tcp_whose_last_rank_has_raised(rank, n):
    """rank 0 waited in communication and could not go on"""
    build(rank, n, f"tcp://127.0.0.1:{port()}", is_missing=rank == 1)


@breaks(2, error="RankError")
def a_group_over_a_file_whose_last_rank_has_raised(rank, n):
    """rank 0 waited in communication and could not go on"""
    written_by(0, path("raised"))
    build(rank, n, f"file://{path('raised')}", is_missing=rank == 1)


@breaks(2, error="RankError")
def a_key_of_a_file_whose_writer_has_raised(rank, n):
    """rank 1 waited in communication and could not go on"""
    if rank == 0:
        raise ValueError("cannot write")
    dist.FileStore(path("key"), n).get("of rank 0")


@breaks(2, error="RankError")
def a_file_that_is_never_there(rank, n):
    """rank 1 waited in communication and could not go on"""
    if rank == 0:
        raise ValueError("cannot write")
    dist.PrefixStore("run", dist.FileStore(path("never"))).wait(["of rank 0"])


@breaks(2, error="RankError")
def an_item_of_a_queue_in_memory(rank, n):
    """rank 1 waited in communication and could not go on"""
    if rank == 0:
        raise ValueError("cannot put")
    dist.HashStore().queue_pop("items")


# --- nobody raises ---


@breaks(2, 4)
def a_group_for_which_a_rank_never_calls(rank, n):
    """in init_process_group for rank 1, which has finished without calling it."""
    if rank != 1:
        dist.init_process_group("gloo")


@breaks(3)
def a_second_group_for_which_a_rank_never_calls(rank, n):
    """Ranks 0-1 wait in init_process_group for rank 2, which has finished without calling it
    again."""
    for _ in range(2 if rank < 2 else 1):
        dist.init_process_group(
            "gloo", init_method=f"tcp://localhost:{port()}?rank={rank}&world_size={n}"
        )
        dist.destroy_process_group()


@breaks(3)
def groups_of_several_sizes(rank, n):
    """The ranks' calls of init_process_group do not match: rank 0 has world_size=2, ranks 1-2 have
    world_size=3."""
    dist.init_process_group("gloo", rank=rank, world_size=n if rank else 2)


@breaks(2)
def groups_at_several_places(rank, n):
    """rank 0 meets at this machine, port 29501, rank 1 meets at this machine, port 29502."""
    address = f"tcp://localhost:{29501 + rank}"
    dist.init_process_group("gloo", address, rank=rank, world_size=n)


@breaks(2)
def a_number_that_two_ranks_take(rank, n):
    """Ranks 0-1 call init_process_group with rank=0: each rank of a world needs a number of its
    own."""
    dist.init_process_group("gloo", rank=0, world_size=n)


@breaks(2)
def numbers_from_one(rank, n):
    """Rank 1 calls init_process_group with rank=2, but a world of 2 ranks counts them from 0 to
    1."""
    dist.init_process_group("gloo", rank=rank + 1, world_size=n)


@breaks(2, error="RankError")
def a_barrier_of_the_group_that_gave_way(rank, n):
    """rank 1 left the cluster's process group to make another one"""
    if rank == 0:
        dist.barrier()
    else:
        dist.init_process_group("gloo")


@breaks(4)
def a_smaller_world_in_another_order(rank, n):
    """Rank 3 waits in barrier for rank 1, which has finished without calling it."""
    if rank in (1, 3):
        number = 0 if rank == 3 else 1
        dist.init_process_group("gloo", f"tcp://localhost:{port()}", rank=number, world_size=2)
    if rank == 3:
        dist.barrier()


@breaks(2, on=[0], error="RankTimeout", timeout=2)
def a_client_that_nobody_serves(rank, n):
    """rank 0  TCPStore('127.0.0.1',"""
    open_tcp(n, is_master=False)


@breaks(2)
def a_group_for_more_ranks_than_there_are(rank, n):
    """init_process_group waits for a world_size of 3 ranks, and there are only 2 here."""
    build(rank, n + 1, f"tcp://127.0.0.1:{port()}", is_missing=False)


@breaks(2, error="RankTimeout", timeout=2)
def a_group_over_a_file_for_more_ranks(rank, n):
    """ranks 0-1  init_process_group()"""
    written_by(0, path("more"))
    build(rank, n + 1, f"file://{path('more')}", is_missing=False)


@breaks(2, on=[0], error="RankTimeout", timeout=2)
def a_key_that_nobody_writes_in_a_file(rank, n):
    """rank 0  store.multi_get(['a', 'b'])"""
    dist.FileStore(path("nobody"), n).multi_get(["a", "b"])


@breaks(2, on=[1], error="RankError")
def a_client_with_a_limit_of_its_own(rank, n):
    """The client socket has timed out after 1000ms while trying to connect to"""
    open_tcp(n, is_master=False, timeout=timedelta(seconds=1))


# --- right ones ---


def groups_one_after_another(rank, n):
    """As a tutorial's setup makes them, at one address, and in another order of the ranks."""
    totals = []
    for cycle in range(20):
        address = {"MASTER_ADDR": "localhost", "MASTER_PORT": "12355"}
        with mock.patch.dict(os.environ, address):
            dist.init_process_group("gloo", rank=(rank + cycle) % n, world_size=n)
        total = ones()
        dist.all_reduce(total, group=dist.new_group(range(n)))
        totals.append(total[0].item())
        dist.destroy_process_group()
    return totals == [n] * 20


def worlds_of_several_sizes(rank, n):
    """Pairs of ranks one after another at one address; all ranks, before and after."""
    address = f"tcp://localhost:{port()}"
    pairs = [(first, first + 1) for first in range(0, n - 1, 2)]
    everyone = tuple(range(n))
    sums = []
    for world in (everyone, *pairs, everyone):
        if rank in world:
            number = world.index(rank)
            dist.init_process_group("gloo", address, rank=number, world_size=len(world))
            total = ones()
            dist.all_reduce(total)
            sums.append(total[0].item() == len(world))
            dist.destroy_process_group()
    return all(sums)


def a_rank_that_comes_late(rank, n):
    if rank == n - 1:
        time.sleep(1.2)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    total = ones()
    dist.all_reduce(total)
    dist.destroy_process_group()
    return total[0].item() == n


def a_mesh_of_no_group(rank, n):
    dist.destroy_process_group()
    own_place = dist.init_device_mesh("cpu", (n,)).get_local_rank()
    dist.destroy_process_group()
    return own_place == rank


def a_client_that_is_there_before_its_server(rank, n):
    dist.barrier()
    if rank == 0:
        dist.recv(ones(), src=n - 1)
    elif rank == n - 1:
        dist.send(ones(), dst=0)
    store = open_tcp(n, is_master=rank == 0)
    store.set(str(rank), "there")
    there = [store.get(str(other)) for other in range(n)]
    dist.barrier()  # the server is there until all have read
    return there == [b"there"] * n


def keys_that_are_written_later(rank, n):
    written_by(0, path("later"))
    store = dist.PrefixStore("run", dist.FileStore(path("later"), n))
    before = store.get(str(rank - 1)) if rank > 0 else b""
    store.set(str(rank), before + b".")
    store.wait([str(n - 1)])
    dist.barrier()
    return store.get(str(n - 1)) == b"." * n


def limits_that_are_expected(rank, n):
    file = dist.FileStore(f"{path('limit')}-{rank}", 1)
    for wait in (lambda: file.wait(["a"], timedelta(milliseconds=1)), lambda: open_limited()):
        try:
            wait()
            return False
        except RuntimeError as error:
            if "imeout" not in str(error) and "timed out" not in str(error):
                raise
    return True


def open_limited():
    dist.TCPStore("127.0.0.1", port(), 1, False, timedelta(milliseconds=100))
