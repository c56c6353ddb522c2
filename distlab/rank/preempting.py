"""A rank that is to be preempted: it gets SIGTERM as from a scheduler, and reports what follows.

Runs on every rank, called by entry.py for notebook/preempting.py. `begin` counts the steps of
optimizers from now on, and puts wrappers around the functions that set a handler of signals and
around those that save; `end` takes them away. Reports are sent by a thread of their own: a handler
of signals may run between any two instructions of the main thread, also where that holds a lock.
"""

from __future__ import annotations

import functools
import glob
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.optim import optimizer as optimizers

from distlab.rank.frames import lines_of_thread
from distlab.rank.plugins import PLUGINS, preempt_nothing
from distlab.rank.this_rank import THIS_RANK
from distlab.supervised import SupervisedThread
from distlab.wire import messages
from distlab.wire.messages import Answer, Moment, RankStatus
from distlab.wire.preemption import Order, first_line
from distlab.wire.source import is_learners, line_of

SENT_SECONDS = 0.5  # for a report to be sent, before the rank goes on without knowing
CHECKPOINT = "torch.distributed.checkpoint"
IGNORED = "ignored"
IN_C = "in compiled code"
SHARD = ".distcp"  # files that torch.distributed.checkpoint itself writes with torch.save


def begin(orders: Sequence[Order]) -> None:
    """Prepare this rank for a preemption. Runs on: every rank, on its main thread."""
    end()
    _Preemption.here = _Preemption(orders)


def end() -> int:
    """Undo that, and return how many steps were finished. Runs on: every rank, on its main thread.

    The number of steps is 0 where nothing was prepared.
    """
    here = _Preemption.here
    if here is None:
        return 0
    _Preemption.here = None
    here.end()
    return here.steps


class _Preemption:
    """What is prepared on this rank for one preemption.

    Args:
        orders: all of them, also those for other ranks.

    Attributes:
        here: the one of this process; None while none is prepared.
        steps: how many optimizer steps this rank has finished.
    """

    here: _Preemption | None = None

    def __init__(self, orders: Sequence[Order]):
        self.steps = 0
        self._orders = [order for order in orders if THIS_RANK.rank in order.ranks]
        self._pid = os.getpid()
        self._was_sent = False
        # the optimizer whose step is under way: one may have others inside
        self._outermost: Any = None
        self._sender = _Sender()
        self._sender.start()
        self._replaced: list[tuple[Any, str, Any]] = []
        self._own_signal = signal.signal
        self._own_getsignal = signal.getsignal
        self._replace(signal, "signal", self._set_handler)
        self._replace(signal, "getsignal", self._get_handler)
        self._replace(torch, "save", functools.partial(self._save, torch.save))
        self._watch_checkpoints()
        self._watch_handler()
        self._hooks = (
            optimizers.register_optimizer_step_pre_hook(self._on_step_begins),
            optimizers.register_optimizer_step_post_hook(self._on_step_ends),
        )
        PLUGINS.preempt = self._on_order

    def end(self) -> None:
        """Take everything away again."""
        PLUGINS.preempt = preempt_nothing
        for hook in self._hooks:
            hook.remove()
        for owner, name, original in reversed(self._replaced):
            setattr(owner, name, original)
        handler = signal.getsignal(signal.SIGTERM)
        if isinstance(handler, _WatchedHandler):
            signal.signal(signal.SIGTERM, handler.own)
        self._sender.stop()

    def _replace(self, owner: Any, name: str, replacement: Any) -> None:
        self._replaced.append((owner, name, getattr(owner, name)))
        setattr(owner, name, replacement)

    # --- the signal ---

    def _on_step_begins(self, optimizer: Any, *_: Any) -> None:
        if self._outermost is None:
            self._outermost = optimizer

    def _on_step_ends(self, optimizer: Any, *_: Any) -> None:
        """Count a step, and send the signal if it is this one that is meant."""
        if os.getpid() != self._pid or optimizer is not self._outermost:
            return
        self._outermost = None
        self.steps += 1
        if CHECKPOINT in sys.modules:
            self._watch_checkpoints()
        for order in self._orders:
            if order.step == self.steps:
                lines = lines_of_thread(threading.get_ident())
                status = RankStatus(THIS_RANK.rank, messages.COMPUTING, None, lines)
                self._watch_handler()
                self._terminate(status, order)

    def _on_order(self, status: RankStatus) -> None:
        """Send the signal because it is time. Runs on: the watchdog's thread."""
        for order in self._orders:
            if order.after is not None:
                self._terminate(status, order)

    def _terminate(self, status: RankStatus, order: Order) -> None:
        """Report what this rank does, and send it SIGTERM; once, as schedulers do."""
        if self._was_sent:
            return
        self._was_sent = True
        handler = self._own_getsignal(signal.SIGTERM)
        moment = Moment(
            what=messages.SIGNAL_CAME,
            clock=time.time(),
            steps=self.steps,
            words=_words_of_handler(handler),
            status=status,
            children=_number_of_children(),
            at_step=order.step is not None,
            whole_group=order.whole_group,
            watched=not callable(handler) or isinstance(handler, _WatchedHandler),
        )
        self.report(moment)
        if order.whole_group:
            os.killpg(0, signal.SIGTERM)
        else:
            os.kill(self._pid, signal.SIGTERM)

    # --- its handler ---

    def _watch_handler(self) -> None:
        """Watch a handler that is there already. Runs on: the main thread."""
        handler = self._own_getsignal(signal.SIGTERM)
        if callable(handler) and not isinstance(handler, _WatchedHandler):
            self._set_handler(signal.SIGTERM, handler)

    def _set_handler(self, number: int, handler: Any) -> Any:
        """In the place of signal.signal."""
        if number == signal.SIGTERM and callable(handler):
            handler = _WatchedHandler(handler, self)
        return _unwatched(self._own_signal(number, handler))

    def _get_handler(self, number: int) -> Any:
        """In the place of signal.getsignal."""
        return _unwatched(self._own_getsignal(number))

    # --- checkpoints ---

    def _watch_checkpoints(self) -> None:
        """Note what torch.distributed.checkpoint saves, once it is imported."""
        module = sys.modules.get(CHECKPOINT)
        if module is None or isinstance(getattr(module, "save", None), functools.partial):
            return
        for name, replacement in (("save", self._save_shards), ("async_save", self._begin_to_save)):
            original = getattr(module, name, None)
            if original is not None:  # None while it is being imported
                self._replace(module, name, functools.partial(replacement, original))

    def _save(
        self, original: Callable[..., Any], obj: Any, f: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """In the place of torch.save."""
        path = _path_of(f)
        if path and not path.endswith(SHARD):
            with self._saving(path):
                return original(obj, f, *args, **kwargs)
        return original(obj, f, *args, **kwargs)

    def _save_shards(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """In the place of torch.distributed.checkpoint.save."""
        with self._saving(_path_of_checkpoint(kwargs)):
            return original(*args, **kwargs)

    def _begin_to_save(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """In the place of torch.distributed.checkpoint.async_save: it ends in another thread."""
        saving = self._saving(_path_of_checkpoint(kwargs))
        saving.__enter__()
        found = original(*args, **kwargs)
        future = getattr(found, "upload_completion", found)
        future.add_done_callback(lambda done: saving.__exit__(type(done.exception()), None, None))
        return found

    def _saving(self, path: str) -> _Saving:
        return _Saving(self, path)

    # --- reports ---

    def report(self, moment: Moment) -> None:
        """Have a moment sent, and wait until it is; nothing in a process that a program forked."""
        if os.getpid() == self._pid:
            self._sender.send(moment)

    def note(self, what: str, **known: Any) -> None:
        """Report something that happens now."""
        self.report(Moment(what, time.time(), self.steps, **known))


class _Saving:
    """A save under way, whose begin and end are reported."""

    def __init__(self, preemption: _Preemption, path: str):
        self._preemption = preemption
        self._path = path

    def __enter__(self) -> None:
        self._preemption.note(messages.SAVE_BEGAN, words=self._path)

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind in (None, type(None)):
            self._preemption.note(messages.SAVE_ENDED, words=self._path)


class _WatchedHandler:
    """A handler of SIGTERM that reports when it runs.

    Args:
        own: the program's handler.
        preemption: where it reports.
    """

    def __init__(self, own: Callable[..., Any], preemption: _Preemption):
        self.own = own
        self._preemption = preemption

    def __call__(self, number: int, frame: Any) -> Any:
        lines = lines_of_thread(threading.get_ident())
        self._preemption.note(messages.HANDLER_BEGAN, lines=lines)
        try:
            value = self.own(number, frame)
        except BaseException as error:
            words = first_line(type(error).__name__, str(error))
            self._preemption.note(messages.HANDLER_ENDED, words=words)
            raise
        self._preemption.note(messages.HANDLER_ENDED)
        return value


class _Sender(SupervisedThread):
    """The thread that sends the reports of this rank, in their order."""

    def __init__(self) -> None:
        super().__init__("distlab-preemption")
        # its put may be called again in the middle of a put, by a handler of signals
        self._waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def send(self, moment: Moment) -> None:
        """Send a moment, and return when it is sent. Runs on: any thread."""
        is_sent = threading.Event()
        self._waiting.put((moment, is_sent))
        is_sent.wait(SENT_SECONDS)

    def stop(self) -> None:
        """End the thread when it has sent everything."""
        self._waiting.put(None)

    def serve(self) -> None:
        """Send what comes, until it is stopped."""
        while True:
            found = self._waiting.get()
            if found is None:
                return
            moment, is_sent = found
            PLUGINS.send(Answer(0, moment=moment))
            is_sent.set()

    def on_error(self, error: BaseException) -> None:
        """Say that reports are missing."""
        PLUGINS.send(Answer(0, error=f"{type(error).__name__}: {error}"))

    def on_end(self) -> None:
        """Nobody relies on the thread: a report that is not sent is waited for only so long."""


def _unwatched(handler: Any) -> Any:
    """The program's own handler."""
    if isinstance(handler, _WatchedHandler):
        return handler.own
    return handler


def _words_of_handler(handler: Any) -> str:
    """What handles a signal, as `Moment` has it: "" for nothing, or a name with its place."""
    if handler is None:
        return IN_C
    if handler == signal.SIG_IGN:
        return IGNORED
    if handler == signal.SIG_DFL:
        return ""
    function = _unwatched(handler)
    function = getattr(function, "__func__", function)
    name = getattr(function, "__name__", type(function).__name__)
    code = getattr(function, "__code__", None)
    if code is None or not is_learners(code.co_filename):
        return name
    return f"{name}, {line_of(code.co_filename, code.co_firstlineno, name).position}"


def _number_of_children() -> int:
    """How many child processes this one has, as far as the system says."""
    number = 0
    for path in glob.glob("/proc/self/task/*/children"):
        with open(path) as file:
            number += len(file.read().split())
    return number


def _path_of(f: Any) -> str:
    """The path to which torch.save writes; "" where it is no file."""
    if isinstance(f, (str, os.PathLike)):
        return os.path.abspath(os.fspath(f))
    name = getattr(f, "name", None)
    return os.path.abspath(name) if isinstance(name, str) else ""


def _path_of_checkpoint(given: dict[str, Any]) -> str:
    """The folder of a checkpoint, by the arguments of dcp's functions; "" where it has none."""
    place = given.get("checkpoint_id")
    if place is None:
        place = getattr(given.get("storage_writer"), "path", None)
    if place is None:
        return ""
    return os.path.abspath(os.fspath(place)) + os.sep
