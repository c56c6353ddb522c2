"""Runs a program as each rank that is asked for, in a forked child of the recording process.

recording_process.py starts this program, sends lists of runs, and receives the outcomes of each.
torch is imported once, before any child is forked; recorder.py notes what a child calls.
"""

import contextlib
import functools
import gc
import os
import sys
import tempfile
import traceback
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, Pipe, wait
from typing import IO, NoReturn, cast

import torch.distributed as dist

from distlab import machine
from distlab.programs import end_with_parent
from distlab.wire import pickling
from distlab.wire.messages import Failure
from distlab.wire.source import message_and_lines
from distlab_predict import (
    deciding,
    garbage,
    group,
    no_data,
    repeats,
    streams,
    torch_gpu,
    torch_patches,
    torch_pipelines,
    torch_quick,
)
from distlab_predict import torch_changed as changed
from distlab_predict import torch_fake as fake
from distlab_predict.nodes import Outcome, Outcomes, Run
from distlab_predict.program_output import Output, without_empty_folders
from distlab_predict.rank_objects import Given, NotSent, Objects, Waiting, Wanted
from distlab_predict.recorder import Recorder
from distlab_predict.recording_process import last_words
from distlab_predict.routing import Routing

SELDOM = 100  # collections of younger objects, after which the oldest may be looked through as well
IDLE_SECONDS = 300.0  # after which this process ends; the next prediction starts another

# --- one rank, in a child ---


class Whole:
    """A child asks for its rank to be recorded with all micro-batches of a pipeline."""


def record(run: Run, rank: int, parent: Connection) -> Outcome | Whole:
    """Run the program as this rank.

    Args:
        run: what to run, and where.
        rank: as which.
        parent: is sent at once each rank that it exchanges messages with, and hands objects on.

    Returns:
        What it has noted, or that its micro-batches must not be repeated.
    """
    # What was imported stays, and so does what is noted, so neither is often looked through for
    # garbage: the numbers of younger objects are Python's own.
    gc.freeze()
    gc.set_threshold(*gc.get_threshold()[:2], SELDOM)
    os.environ.clear()
    os.environ.update(run.environment)
    os.chdir(run.folder)
    sys.path[:] = run.path
    recorder = Recorder(rank, run.compiled)
    recorder.install()
    streams.install(recorder.log)
    group.install(recorder.log, functools.cache(parent.send))
    objects = Objects(rank, parent)
    torch_patches.replace_all(objects.functions())
    dist.init_process_group(
        group.NAME, rank=rank, world_size=run.world_size, store=dist.HashStore()
    )
    dist.init_process_group = lambda *_, **__: None  # a program that calls it finds it done
    output = Output()
    routing = Routing(run.skew)
    decisions = deciding.Decisions(rank, run.true)
    deciding.install(decisions)
    torch_pipelines.install(
        recorder.repeats(lambda: (output.length, decisions.number, objects.number), run.repeats)
    )
    try:
        function = pickling.loads(run.header, run.buffers)
        with (
            output.collected(),
            without_empty_folders(),
            torch_quick.without_data(recorder, routing),
        ):
            function(rank, run.world_size)
    except repeats.Again:
        return Whole()
    except SystemExit as end:
        if end.code:
            return _failure(_ended(end), rank, output, decisions)
    except fake.NeedsData as error:
        refused = NotImplementedError(f"{no_data.NEEDED} ({error.func})")
        return _failure(refused.with_traceback(error.__traceback__), rank, output, decisions)
    except Exception as error:
        return _failure(error, rank, output, decisions)
    recording = recorder.recording(output.printed, output.warned, routing.in_words())
    return replace(recording, branches=decisions.branches)


def _ended(end: SystemExit) -> RuntimeError:
    """An error for a program that has ended itself."""
    how = f"exit status {end.code}" if isinstance(end.code, int) else end.code
    error = RuntimeError(f"the program ended itself: {how}")
    error.__cause__ = end
    return error.with_traceback(end.__traceback__)


def _failure(error: Exception, rank: int, output: Output, decisions: deciding.Decisions) -> Failure:
    """What a rank has raised, and the last lines that its program has written to stderr."""
    failure = failure_of(error, rank)
    for words in decisions.in_words():
        failure = replace(failure, message=f"{failure.message}\n{words}")
    words = output.last_words(of_stdout=isinstance(error.__cause__, SystemExit))
    if words:
        failure = replace(failure, message=f"{failure.message}\nIts last lines:\n{words}")
    return replace(failure, consequence=isinstance(error, NotSent))


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
        source: the connection to it. It sends the ranks that it meets, objects for other ranks or
            a wish for theirs, and at last its outcome.
        written: what it has written to its stdout and stderr.
    """

    rank: int
    pid: int
    source: Connection
    written: IO[bytes]

    def receive(self) -> int | Given | Wanted | Whole | Outcome:
        """What the child sends; after its outcome it has ended."""
        try:
            with garbage.left_alone():
                received = self.source.recv()
        except EOFError:
            received = None
        if isinstance(received, (int, Given, Wanted)):
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
    """Record in a forked child, which sends what `Child.receive` returns."""
    source, sink = Pipe()
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
        sink.send(record(run, rank, sink))
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
        # by run: ranks that are recorded only because another one wants their objects
        self._helpers: list[set[int]] = []
        self._objects: list[Waiting] = []  # by run
        # (number of the run, rank), in the order in which they start
        self._pending: deque[tuple[int, int]] = deque()
        for number, run in enumerate(runs):
            self._found.append({})
            self._helpers.append(set())
            self._objects.append(Waiting())
            for rank in run.ranks or [0]:
                self._add(number, rank)
        # children with the numbers of their runs, by the connection to them
        self._running: dict[Connection, tuple[int, Child]] = {}

    def outcomes(self) -> list[Outcomes]:
        """Record all of them, and return what the ranks of each have noted."""
        while self._pending or self._running:
            self._start()
            # wait takes sockets and numbers too, so its types do not say that these are pipes
            for source in cast("list[Connection]", wait(list(self._running))):
                self._receive(source)
        outcomes = []
        for found, helpers in zip(self._found, self._helpers, strict=True):
            outcomes.append(_of_roles(found, helpers))
        return outcomes

    def _start(self) -> None:
        """Start as many ranks as there are cores for; those that wait for objects need none."""
        waiting = sum(len(objects) for objects in self._objects)
        free = machine.cores() - len(self._running) + waiting
        while self._pending and free > 0:
            number, rank = self._pending.popleft()
            child = start(self._runs[number], rank)
            self._running[child.source] = (number, child)
            free -= 1
        if waiting == len(self._running):
            for objects in self._objects:
                objects.give_up()

    def _add(self, number: int, rank: int) -> None:
        """Have a rank of a run recorded, after those that were added before."""
        self._found[number][rank] = None
        self._pending.append((number, rank))

    def _receive(self, source: Connection) -> None:
        """Act on what a child has sent."""
        number, child = self._running[source]
        received = child.receive()
        objects = self._objects[number]
        if isinstance(received, Given):
            objects.give(received)
        elif isinstance(received, Wanted):
            if not objects.want(source, received):
                self._help(number, received.source)
        elif isinstance(received, int):
            self._helpers[number].discard(received)
            if self._follows(number, received):
                self._add(number, received)
        elif isinstance(received, Whole):
            del self._running[source]
            whole = start(replace(self._runs[number], repeats=False), child.rank)
            self._running[whole.source] = (number, whole)
        else:
            self._found[number][child.rank] = received
            del self._running[source]
            objects.end(child.rank)

    def _help(self, number: int, rank: int) -> None:
        """Have a rank recorded whose objects another one wants; it is not one of the roles."""
        found = self._found[number]
        if rank not in found:
            self._helpers[number].add(rank)
            self._add(number, rank)
        elif found[rank] is not None:
            self._objects[number].end(rank)

    def _follows(self, number: int, rank: int) -> bool:
        """Whether a rank that another one meets is to be recorded, and is not yet."""
        run = self._runs[number]
        found = self._found[number]
        return run.ranks is None and rank not in found and len(found) < run.max_roles


def _of_roles(found: dict[int, Outcome | None], helpers: set[int]) -> Outcomes:
    """The outcomes of the ranks that stand for all; of others only failures."""
    outcomes = []
    for rank, outcome in found.items():
        if outcome is not None and (rank not in helpers or isinstance(outcome, Failure)):
            outcomes.append(outcome)
    return outcomes


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
