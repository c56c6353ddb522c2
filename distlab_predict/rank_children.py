"""Runs a program as each rank that is asked for, in a forked child of the recording process.

recording_process.py starts this program, sends lists of runs, and receives the outcomes of each.
torch is imported once, before any child is forked; recorder.py notes what a child calls.
"""

import contextlib
import functools
import io
import os
import sys
import tempfile
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from typing import IO, NoReturn, cast

import torch.distributed as dist

from distlab import machine
from distlab.programs import end_with_parent
from distlab.wire import pickling
from distlab.wire.messages import Failure
from distlab.wire.source import message_and_lines
from distlab_predict import group, no_data, streams, torch_gpu
from distlab_predict import torch_changed as changed
from distlab_predict import torch_fake as fake
from distlab_predict.nodes import Outcome, Outcomes, Run
from distlab_predict.recorder import Recorder
from distlab_predict.recording_process import last_words
from distlab_predict.routing import Routing

IDLE_SECONDS = 300.0  # after which this process ends; the next prediction starts another

# --- one rank, in a child ---


def record(run: Run, rank: int, meet: Callable[[int], None]) -> Outcome:
    """Run the program as this rank.

    Args:
        run: what to run, and where.
        rank: as which.
        meet: called at once with each rank that it exchanges messages with.
    """
    os.environ.clear()
    os.environ.update(run.environment)
    os.chdir(run.folder)
    sys.path[:] = run.path
    recorder = Recorder(rank)
    recorder.install()
    streams.install(recorder.log)
    group.install(recorder.log, functools.cache(meet))
    dist.init_process_group(
        group.NAME, rank=rank, world_size=run.world_size, store=dist.HashStore()
    )
    dist.init_process_group = lambda *_, **__: None  # a program that calls it finds it done
    shown = io.StringIO()
    routing = Routing(run.skew)
    try:
        function = pickling.loads(run.header, run.buffers)
        with contextlib.redirect_stdout(shown), fake.without_data(recorder, routing):
            function(rank, run.world_size)
    except fake.NeedsData as error:
        refused = NotImplementedError(f"{no_data.NEEDED} ({error.func})")
        return failure_of(refused.with_traceback(error.__traceback__), rank)
    except Exception as error:
        return failure_of(error, rank)
    return recorder.recording(shown.getvalue(), routing.in_words())


def failure_of(error: BaseException, rank: int) -> Failure:
    """What a rank has raised, with the learner's own lines."""
    message, lines = message_and_lines(error)
    whole = "".join(traceback.format_exception(error))
    return Failure(rank, type(error).__name__, message, lines, whole)


@dataclass(frozen=True)
class Child:
    """A forked process that records a rank.

    Attributes:
        rank: which one.
        pid: its number.
        source: what it sends: the ranks that it meets, and then its outcome.
        written: what it has written to its stdout and stderr.
    """

    rank: int
    pid: int
    source: Connection
    written: IO[bytes]

    def receive(self) -> int | Outcome:
        """A rank that the child meets, or its outcome, after which it has ended."""
        try:
            received = self.source.recv()
        except EOFError:
            received = None
        if isinstance(received, int):
            return received
        _, status = os.waitpid(self.pid, 0)
        if received is None:
            received = failure_of(RuntimeError(self._end_in_words(status)), self.rank)
        self.source.close()
        self.written.close()
        return received

    def _end_in_words(self, status: int) -> str:
        """How a child ended that has sent no outcome, and the end of what it wrote."""
        ended = f"The recording process ended (exit status {os.waitstatus_to_exitcode(status)})."
        words = last_words(self.written).strip()
        if not words:
            return ended
        return f"{ended} Its last lines:\n{words}"


def start(run: Run, rank: int) -> Child:
    """Record in a forked child, which sends the ranks that it meets, and then its outcome."""
    source, sink = Pipe(duplex=False)
    written = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the child lives
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        end_with_parent(parent)
        source.close()
        os.dup2(written.fileno(), 1)
        os.dup2(written.fileno(), 2)
        _send_outcome(run, rank, sink)
    sink.close()
    return Child(rank, pid, source, written)


def _send_outcome(run: Run, rank: int, sink: Connection) -> NoReturn:
    """Record, send the outcome, and end this child."""
    status = 1
    # From here nothing may leave this function: the child would go on as its parent.
    try:
        sink.send(record(run, rank, sink.send))
        status = 0
    except Exception as error:  # the folder is gone, or what is to be sent cannot be pickled
        sink.send(failure_of(error, rank))
        status = 0
    except SystemExit as end:
        status = _status_of(end)
    except BaseException as error:  # as one of the program's own, which is no Exception
        sink.send(failure_of(error, rank))
        status = 0
    finally:
        os._exit(status)


def _status_of(end: SystemExit) -> int:
    """The exit status after `sys.exit(...)`; as Python does, write words given to it to stderr."""
    if end.code is None:
        return 0
    if isinstance(end.code, int):
        return end.code & 0xFF  # of a larger one, the system keeps no more
    print(end.code, file=sys.stderr, flush=True)
    return 1


# --- all ranks, in the parent ---


class Recordings:
    """The recordings of several runs, as many at once as there are cores.

    Args:
        runs: what to record.
    """

    def __init__(self, runs: Sequence[Run]):
        self._runs = runs
        # by run, by rank; None for ranks that have not ended
        self._found: list[dict[int, Outcome | None]] = []
        # (number of the run, rank), in the order in which they start
        self._pending: deque[tuple[int, int]] = deque()
        for number, run in enumerate(runs):
            self._found.append({})
            for rank in run.ranks or [0]:
                self._add(number, rank)
        # children with the numbers of their runs, by the pipe on which they send
        self._running: dict[Connection, tuple[int, Child]] = {}

    def outcomes(self) -> list[Outcomes]:
        """Record all of them, and return what the ranks of each have noted."""
        at_once = machine.cores()
        while self._pending or self._running:
            while self._pending and len(self._running) < at_once:
                number, rank = self._pending.popleft()
                child = start(self._runs[number], rank)
                self._running[child.source] = (number, child)
            # wait takes sockets and numbers too, so its types do not say that these are pipes
            for source in cast("list[Connection]", wait(list(self._running))):
                self._receive(source)
        outcomes = []
        for ranks in self._found:
            outcomes.append([outcome for outcome in ranks.values() if outcome is not None])
        return outcomes

    def _add(self, number: int, rank: int) -> None:
        """Have a rank of a run recorded, after those that were added before."""
        self._found[number][rank] = None
        self._pending.append((number, rank))

    def _receive(self, source: Connection) -> None:
        """Note what a child has sent: its outcome, or a rank that it meets, which is to run too."""
        number, child = self._running[source]
        received = child.receive()
        if not isinstance(received, int):
            self._found[number][child.rank] = received
            del self._running[source]
        elif self._follows(number, received):
            self._add(number, received)

    def _follows(self, number: int, rank: int) -> bool:
        """Whether a rank that another one meets is to be recorded, and is not yet."""
        run = self._runs[number]
        found = self._found[number]
        return run.ranks is None and rank not in found and len(found) < run.max_roles


def main() -> None:
    """Record the runs that are asked for, until nobody asks for a while.

    The arguments are the descriptor of the connection to the notebook, and the notebook's number.
    """
    end_with_parent(int(sys.argv[2]))
    changed.adapt(group.NAME)
    torch_gpu.adapt()
    asks = Connection(int(sys.argv[1]))
    with contextlib.suppress(EOFError):
        while asks.poll(IDLE_SECONDS):
            asks.send(Recordings(asks.recv()).outcomes())
    os._exit(0)
