"""Runs a program as a rank, in a forked child of the recording process.

Called by recordings.py, which says which ranks. torch is imported once, before any child is forked;
recorder.py notes what a child calls.
"""

import functools
import gc
import os
import pickle
import sys
import tempfile
import traceback
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, Pipe
from typing import IO, NamedTuple, NoReturn

import torch.distributed as dist

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
    torch_patches,
    torch_pipelines,
    torch_quick,
)
from distlab_predict import torch_fake as fake
from distlab_predict.nodes import Outcome, Run
from distlab_predict.program_output import Output, without_empty_folders
from distlab_predict.rank_objects import Given, NotSent, Objects, Wanted
from distlab_predict.recorder import Recorder
from distlab_predict.recording_process import last_words
from distlab_predict.routing import Routing

SELDOM = 1000  # collections of younger objects, after which the oldest may be looked through, too

# --- in a child ---


class Whole:
    """A child asks for its rank to be recorded with all micro-batches of a pipeline."""


class End(NamedTuple):
    """How a child has ended.

    Attributes:
        pickled: its outcome, which nobody needs to know in this process.
        is_failure: whether it is a failure.
    """

    pickled: bytes
    is_failure: bool


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
    with garbage.left_alone():
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

    def receive(self) -> int | Given | Wanted | Whole | End:
        """What the child sends; after a wish to be whole, or at its end, it is gone."""
        try:
            received = self.source.recv()
        except EOFError:
            received = None
        if isinstance(received, (int, Given, Wanted)):
            return received
        _, status = os.waitpid(self.pid, 0)
        if received is None:
            received = end_with(failure_of(RuntimeError(self._end_in_words(status)), self.rank))
        self.source.close()
        self.written.close()
        return received

    def _end_in_words(self, status: int) -> str:
        """How a child ended that has sent no outcome, and the end of what it wrote."""
        said = f"The recording process ended (exit status {os.waitstatus_to_exitcode(status)})."
        words = last_words(self.written).strip()
        if not words:
            return said
        return f"{said} Its last lines:\n{words}"


def end_with(outcome: Outcome) -> End:
    """The end of a child with this outcome."""
    return End(pickle.dumps(outcome), isinstance(outcome, Failure))


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
        outcome = record(run, rank, sink)
        sink.send(outcome if isinstance(outcome, Whole) else end_with(outcome))
        status = 0
    except Exception as error:  # the folder is gone, or what is to be sent cannot be pickled
        sink.send(end_with(failure_of(error, rank)))
        status = 0
    except SystemExit as end:
        status = _status_of(end)
    except BaseException as error:  # as one of the program's own, which is no Exception
        sink.send(end_with(failure_of(error, rank)))
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
