"""The private parts of ipyparallel that distlab uses, one function or class for each.

Tried with 9.0 to 9.2. Runs on the notebook's kernel, and on ranks. ipyparallel is imported where it
is needed, because a cluster starts its fork server first.
"""

import contextlib
import functools
import importlib
import pickle
import re
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

# module and function in which an engine runs a call of the notebook's
RUNS_CALL = ("ipyparallel.engine.kernel", "do_apply")
# the nanny of engine 1 writes this into its log when the engine has gone; a "." and the id stand
# after the name
NANNY = re.compile(r"(\S+ \S+) \[KernelNanny\.(\d+)\] (?:Pipe closed|Parent \d+ exited)")


# --- the client and its results ---


def engines_with_work(client: Any) -> set[int]:
    """The engines that have not yet answered all that they were sent.

    Private: the client's tables.
    """
    if hasattr(client, "ranks_with_work"):  # no client of ipyparallel's
        return set(client.ranks_with_work())
    found = set()
    for number, engine in list(client._engines.items()):
        if client._outstanding_dict.get(engine):
            found.add(number)
    return found


class NoSuchEngineError(Exception):
    """An engine is gone that was to be sent something; then no engine was sent it."""


@contextlib.contextmanager
def engines_exist() -> Iterator[None]:
    """Raise NoSuchEngineError where ipyparallel, asked for a view or to send, finds no such engine.

    Not documented: for a list of engines it raises what a dict does.
    """
    kinds: tuple[type[Exception], ...] = (KeyError,)
    ipyparallel = sys.modules.get("ipyparallel")  # a launcher has ranks without it
    if ipyparallel is not None:
        kinds = (KeyError, ipyparallel.NoEnginesRegistered)
    try:
        yield
    except kinds as error:
        raise NoSuchEngineError(f"engine {error} is gone") from error


def forget_engine(client: Any, engine_id: int) -> None:
    """Report to the hub that an engine has ended, as its nanny would; it informs all clients.

    Private: a client's loop and socket. Runs on: any thread. A client that has been closed reports
    nothing.
    """
    client._io_loop.add_callback(
        client.session.send, client._query_socket, "unregistration_request", {"id": engine_id}
    )


def ask_for_engines(client: Any) -> None:
    """Have a client ask the hub which engines are there.

    It misses what is published while it connects. Private: how a client sends, and its table of
    engines.
    """

    def update(reply: Any) -> None:
        content = reply.result()["content"]
        client._update_engines(content["engines"])

    asked = client._send(client._query_stream, "connection_request")
    asked.add_done_callback(update)


def drop_late_replies(client: Any) -> None:
    """Have a client ignore replies that nobody waits for, which it would print.

    They come from a host that was lost and is back, for example. Private: the client's table of
    what to do with replies.
    """

    def only_awaited(handle: Callable[[dict[str, Any]], None], reply: dict[str, Any]) -> None:
        asked_by = reply["parent_header"].get("msg_id")
        asked_by_broadcast = reply["metadata"].get("original_msg_id")
        if asked_by in client.outstanding or asked_by_broadcast in client.outstanding:
            handle(reply)

    handlers = client._queue_handlers.items()
    client._queue_handlers = {
        kind: functools.partial(only_awaited, handle) for kind, handle in handlers
    }


def address_of_controller(client: Any) -> str:
    """The address at which a client reaches its controller. Private: the client's socket."""
    endpoint = client._query_socket.last_endpoint.decode()  # tcp://address:port
    address_and_port = endpoint.rpartition("/")[2]
    return address_and_port.rpartition(":")[0]


def written(result: Any) -> list[dict[str, Any]]:
    """stdout, stderr and outputs of each engine, in the order of the targets.

    The public `stdout` parses the dates of every message first, a tenth of a short cell's time.
    Private: the AsyncResult's metadata.
    """
    return result._metadata


class Replies:
    """What some ranks have replied to what they were sent.

    Private: the AsyncResult's children, the future of each engine's answer.

    Args:
        result: ipyparallel's AsyncResult.
        targets: its ranks.

    Attributes:
        futures: the future of each rank's reply.
    """

    def __init__(self, result: Any, targets: Sequence[int]):
        self.result = result
        self.futures = dict(zip(targets, result._children, strict=True))

    def unfinished(self) -> list[int]:
        """The ranks that have not replied yet."""
        return [rank for rank, answer in self.futures.items() if not answer.done()]

    def so_far(self) -> dict[int, Any]:
        """The replies that have arrived; an exception object where ipyparallel reports one."""
        found = {}
        for rank, answer in self.futures.items():
            if answer.done():
                found[rank] = answer.exception() or answer.result()
        return found

    def within(self, limit: float) -> dict[int, Any]:
        """The replies that arrive within `limit` seconds."""
        self.result.wait(limit)
        return self.so_far()


# --- controller and engines ---


@contextlib.contextmanager
def defer_cluster_module() -> Iterator[None]:
    """Import ipyparallel inside this without what starts clusters, a fifth of it.

    On a rank, its first use loads it. Private: that ipyparallel takes some of its own names from
    that module.
    """
    stand_in = types.ModuleType("ipyparallel.cluster")
    vars(stand_in)["__getattr__"] = lambda name: stand_in
    if sys.modules.setdefault(stand_in.__name__, stand_in) is not stand_in:  # it is there already
        yield
        return
    try:
        yield
    finally:
        del sys.modules[stand_in.__name__]
    package = vars(sys.modules["ipyparallel"])
    taken_from_it = [name for name, value in package.items() if value is stand_in]
    names = {"cluster", *taken_from_it}

    def load(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module 'ipyparallel' has no attribute {name!r}")
        module = importlib.import_module(stand_in.__name__)
        return module if name == "cluster" else getattr(module, name)

    for name in names & set(package):
        del package[name]
    package["__getattr__"] = load


def use_kernel(kernel: type) -> None:
    """Have an engine that starts in this process run this class of kernels.

    Not documented: the module's variable.
    """
    import ipyparallel.engine.app

    ipyparallel.engine.app.Kernel = kernel


def change_controller(monitor: type) -> None:
    """Have a controller that starts in this process run this class, and not sleep on the way.

    Not documented: variables of its modules, and that it sleeps for a quarter of a second on its
    way, for no reason.
    """
    from ipyparallel.controller import app, heartmonitor

    heartmonitor.HeartMonitor = monitor
    app.time = types.SimpleNamespace(sleep=lambda seconds: None)


def read_replies_with(loads: Callable[[Any], Any]) -> None:
    """From now on, unpickle what engines send with this function.

    What this process sends is pickled as before.
    """
    from ipyparallel.serialize import serialize

    serialize.pickle = types.SimpleNamespace(
        loads=loads,
        dumps=pickle.dumps,
        DEFAULT_PROTOCOL=pickle.DEFAULT_PROTOCOL,
        HIGHEST_PROTOCOL=pickle.HIGHEST_PROTOCOL,
    )
