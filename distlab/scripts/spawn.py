"""`distlab.spawn`, in the place of torch's: processes that explain why they hang.

Runs in the process that calls it, such as a script's or pytest's, and called by testing/plugin.py.
Each call has processes of its own, the ranks of a cluster that only this call knows; what forks
them waits for the next call (spawning/warm.py). rank/spawned.py calls the function.
"""

from __future__ import annotations

import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Sequence
from typing import Any

from distlab import arguments
from distlab.arguments import refuse
from distlab.errors import Interrupted, RanksFailed
from distlab.notebook import interrupts
from distlab.notebook.cell import Options
from distlab.notebook.ranks import Ranks
from distlab.rank import entry
from distlab.scripts.outcome import in_order, without_next_steps
from distlab.scripts.spawning.call import SpawnedCall
from distlab.scripts.spawning.ends import exit_status_of
from distlab.scripts.spawning.packing import packed
from distlab.scripts.spawning.warm import WARM
from distlab.supervised import SupervisedThread
from distlab.wire import pickling
from distlab.wire.spawned import Spawned

__tracebackhide__ = True  # pytest shows the line of the test
NEW_PYTHONS = ("spawn", "forkserver")


def spawn(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> SpawnContext | None:
    """Call fn(i, *args) in `nprocs` new processes, as torch.multiprocessing.spawn does.

    It takes a tenth of the time, and a deadlock ends within two seconds with the lines where the
    processes wait. A process finds what one that torch spawns would find: the caller's environment,
    working directory, arguments, stdout and stderr as they are now, and no group. It makes one by
    init_process_group, whatever port it names. Queues, managers and shared tensors may be among the
    arguments. The function may also be one of a notebook.

    Args:
        fn: the function; its first argument is the number of the process.
        args: its other arguments.
        nprocs: how many processes.
        join: whether to wait until all have ended.
        daemon: taken as torch's function takes it; here all processes end with this one.
        start_method: "spawn" or "forkserver", which mean the same here.

    Returns:
        None if `join`, otherwise a context with torch's methods `join` and `pids`.

    Raises:
        ArgumentError: an argument breaks its rule.
        DeadlockError: no process can go on.
        RankError: the function raised.
        RankDied: a process ended.
        These three are torch's ProcessRaisedException or ProcessExitedException as well.
    """
    arguments.whole_number("nprocs", nprocs, 1, advice="Call distlab.spawn(fn, args, nprocs=2).")
    if not callable(fn):
        refuse("fn", "callable", fn, "Call distlab.spawn(fn, args, nprocs=2).", wrong_type=True)
    forks = "A process that multiprocessing forks has all that this one has; torch's own spawn does"
    arguments.one_of("start_method", start_method, NEW_PYTHONS, f"{forks} that.")
    context = SpawnContext(fn, args, nprocs)
    if not join:
        context.begin_waiting()
        return context
    context.wait()
    return None


class SpawnedProcess:
    """One process of a call, with what multiprocessing's processes have.

    Attributes:
        pid: its number.
        exitcode: None while it runs; 0, its exit status, or minus the signal that ended it.
        name: as multiprocessing would call it.
    """

    def __init__(self, index: int, pid: int, context: SpawnContext):
        self.pid = pid
        self.exitcode: int | None = None
        self.name = f"SpawnProcess-{index + 1}"
        self._context = context

    def is_alive(self) -> bool:
        """Whether it runs."""
        return self.exitcode is None

    def join(self, timeout: float | None = None) -> None:
        """Wait until the processes of its call have ended."""
        self._context.wait_for_end(timeout)

    def terminate(self) -> None:
        """End it; the others of its call end as well."""
        self._context.stop()

    kill = terminate


class SpawnContext:
    """The processes of one call of `distlab.spawn`, as torch's class of the same name.

    Attributes:
        processes: one for each number, in their order.
    """

    @interrupts.held()
    def __init__(self, fn: Callable[..., Any], args: Sequence[Any], n: int):
        self._n = n
        self._folder = tempfile.mkdtemp(prefix="distlab-spawn-")
        self._ended = threading.Event()
        self._error: BaseException | None = None
        try:
            spawned = packed(fn, args, n, self._folder)
            self._server = WARM.take(n)
            self._ranks = Ranks.start_in(self._server.plan, self._server.processes)
            self._call = self._send(spawned)
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        joined = self._ranks.joined
        self.processes = [SpawnedProcess(i, joined[i].pid, self) for i in range(n)]

    def _send(self, spawned: Spawned) -> SpawnedCall:
        """Have the ranks call the function; an error ends them."""
        everyone = list(range(self._n))
        header, buffers = pickling.pack((entry.run_spawned, (spawned,), {}), "The call")

        def send(view: Any) -> Any:
            return view.apply_async(entry.call_function, header, buffers)

        try:
            call = SpawnedCall.send(self._ranks, everyone, send, Options())
        except BaseException:
            self._ranks.end()
            raise
        call.begin()
        return call

    def pids(self) -> list[int]:
        """The numbers of the processes."""
        return [process.pid for process in self.processes]

    # --- the end ---

    def wait(self) -> None:
        """Wait until all processes have ended, and raise what went wrong."""
        with interrupts.held():
            self._wait()

    def _wait(self) -> None:
        try:
            self._call.finish()
        except RanksFailed as error:
            error.failures = in_order(error.failures, self._call.failed_first)
            self._note_ends(error)
            raise self._error_of(error) from None
        except Interrupted as interrupt:
            self._note_ends(None, ended_by_us=True)
            raise Interrupted(without_next_steps(str(interrupt))) from None
        except BaseException:
            self._ranks.end()
            self._note_ends(None, ended_by_us=True)
            raise
        finally:
            if self._ranks.end(keep=True) is not None:
                WARM.keep(self._server)
            shutil.rmtree(self._folder, ignore_errors=True)
        self._note_ends(None)

    def _error_of(self, error: RanksFailed) -> RanksFailed:
        """An error of ranks as one of torch's."""
        # imported where something went wrong: it needs torch
        from distlab.scripts.spawning.errors import as_of_torch

        return as_of_torch(error, dict(enumerate(self.pids())))

    def _note_ends(self, error: RanksFailed | None, ended_by_us: bool = False) -> None:
        """Note how the processes have ended.

        Args:
            error: what went wrong in them; None for nothing.
            ended_by_us: whether this process has ended all.
        """
        failed = {} if error is None else {one.rank: one for one in error.failures}
        finished = range(self._n) if error is None else error.finished
        for rank, process in enumerate(self.processes):
            if rank in failed:
                process.exitcode = exit_status_of(failed[rank])
            elif rank in finished and not ended_by_us:
                process.exitcode = 0
            else:
                process.exitcode = -signal.SIGTERM

    def begin_waiting(self) -> None:
        """Wait on a thread, so that a deadlock is found whatever the caller does meanwhile."""
        _Waiter(self).start()

    def wait_and_note(self) -> None:
        """Wait, and keep what went wrong for `join`. Runs on: the waiting thread."""
        try:
            self.wait()
        except BaseException as error:
            self._error = error
        finally:
            self._ended.set()

    def wait_for_end(self, timeout: float | None) -> bool:
        """Whether all processes have ended within so many seconds; None for no limit."""
        return self._ended.wait(timeout)

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """Wait until all processes have ended, or for so many seconds; True if they have.

        Args:
            timeout: seconds; None for no limit.
            grace_period: taken as torch's method takes it; all end at once here.

        Raises:
            What `distlab.spawn` raises.
        """
        try:
            if not self.wait_for_end(timeout):
                return False
        except KeyboardInterrupt:
            self.stop()
            raise
        if self._error is not None:
            raise self._error
        return True

    def stop(self) -> None:
        """End all processes."""
        if not self._ended.is_set():
            self._ranks.kill(range(self._n))


class _Waiter(SupervisedThread):
    """The thread that waits for the processes of a call that does not wait itself."""

    def __init__(self, context: SpawnContext):
        super().__init__("distlab-spawn")
        self._context = context

    def serve(self) -> None:
        """Wait for them."""
        self._context.wait_and_note()

    def on_error(self, error: BaseException) -> None:
        """The context has it."""

    def on_end(self) -> None:
        """The context knows it."""
