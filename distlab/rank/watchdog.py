"""The watchdog: one thread on each rank, which frees the main thread when the notebook orders it.

Runs on every rank, started by group.py. While the main thread waits inside gloo no Python code runs
on it, so that neither KeyboardInterrupt nor gloo's own abort reaches it. This thread shuts down
gloo's TCP sockets: the blocked call raises at once. If the main thread waits in a store instead, it
loses its connection to that. The group is then broken and must be rebuilt; variables stay. Every
TCP connection that the process has opened since the group was built is shut down, a learner's own
to a database as well: to spare one that gloo waits on would make a rank unfreeable, and nothing
tells the two apart for certain.

The notebook's `ControlChannel` asks what the main thread is doing; status.py has the answer. It
also carries orders: `FREE`, which frees a rank that communicates and leaves others alone,
`FREE_WAITING`, which also spares one that makes progress, and `COME_BACK`, which also interrupts
one that computes, but not one that is just reporting an exception. The thread needs Python's lock
for all that: a rank whose compiled code holds it does not answer.

An exception does not end the thread: the notebook is told of it in a line. Where the thread ends
all the same, because its connection has ended, the notebook sees that, and replaces the rank.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from types import FrameType, ModuleType
from typing import Any

from distlab.compat.ipython import current_shell
from distlab.debugger.console import CONSOLE
from distlab.rank import around_cells, serving, status
from distlab.rank.collector import COLLECTOR
from distlab.rank.connections import Connections
from distlab.rank.frames import is_executing, is_importing, is_in_cell, outwards
from distlab.rank.freeing import free
from distlab.rank.log import LOG
from distlab.rank.plugins import PLUGINS
from distlab.rank.this_rank import THIS_RANK
from distlab.rank.threads import name_of_wait, system_threads, thread_that_waits
from distlab.supervised import SupervisedThread
from distlab.wire import messages
from distlab.wire.channel import hello, read_available
from distlab.wire.codec import from_json, to_json
from distlab.wire.messages import Answer, Query, RankStatus
from distlab.wire.namespace import namespace_of_cells
from distlab.wire.rendezvous import used_megabytes

# what the main thread gets from this one: a signal that a learner's program does not use, if the
# system has one
INTERRUPT = signal.SIGRTMIN + 8 if hasattr(signal, "SIGRTMIN") else signal.SIGUSR2
# names in the namespace of cells that the learner has not defined
GIVEN = {"rank", "world_size", "In", "Out", "exit", "quit", "open", "get_ipython"}


def watch(thread: Watchdog) -> None:
    """Start the thread.

    Runs on: a rank, on its main thread, when its group is built.
    """
    PLUGINS.send = thread.send
    CONSOLE.send = thread.send
    os.register_at_fork(after_in_child=LOG.begin_child)
    handlers = {INTERRUPT: thread.interrupt, signal.SIGINT: thread.interrupt}
    if current_shell() is None:
        serving.restore_around_calls(handlers, at_end=LOG.end_cell)
    else:
        around_cells.restore_around_cells(handlers, at_end=LOG.end_cell)
    thread.start()


def running() -> Watchdog | None:
    """The thread of this process, if it runs and is connected."""
    for thread in threading.enumerate():
        if isinstance(thread, Watchdog) and thread.connected:
            return thread
    return None


class Watchdog(SupervisedThread):
    """The thread: reads the control channel, and acts on what arrives, until the notebook is gone.

    It is made before the group is built and the store connected to. Threads that are there already
    are neither the learner's nor gloo's; later connections are shut down when the rank is freed.

    Attributes:
        connections: the later connections.
        connected: whether anything can still be received from the notebook.
    """

    def __init__(self, meeting: Any):
        super().__init__("distlab-watchdog")
        self.connected = True
        *address, token = meeting.channel
        self._channel = socket.create_connection(address)
        self._channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._channel.sendall(hello(token, THIS_RANK.rank))
        self._received = b""
        self.connections = Connections(meeting.port)
        # this thread is the main one; in a forked process, main_thread().native_id is its parent's
        self._infrastructure_tids = system_threads() - {threading.get_native_id()}
        self._main = threading.get_ident()
        self._loop = asyncio._get_running_loop()
        self._acting = threading.Lock()  # while an order is carried out
        self._sending = threading.Lock()  # a line is written as a whole, from whichever thread

    def serve(self) -> None:
        """Serve until the notebook is gone, or nothing can be received from it any more."""
        arrivals = _watched(self._channel)
        while self.connected:
            arrivals.poll()  # no name of Python's own: a cell may have replaced them all
            self._act()

    def on_error(self, error: BaseException) -> None:
        """Tell the notebook of an exception that no question was to blame for."""
        self.send(Answer(0, error=_in_a_line(error)))

    def on_end(self) -> None:
        """Close the connection: the notebook sees that, and replaces the rank."""
        with self._acting:
            self.connected = False
            self._channel.close()

    def _act(self) -> None:
        """Do what has arrived, with Python's own names, and without a collection of garbage."""
        # A collection while a frame object is made for another thread lets that thread run on and
        # leave the frame: Python 3.10 and 3.11, which collect at any allocation, then read freed
        # memory (SIGSEGV).
        with self._acting:
            around_cells.restore_builtins()
            with COLLECTOR.paused():
                self._receive()

    def settle(self) -> None:
        """Return once every order has been carried out.

        One that was meant for an old call must not break a new group.

        Runs on: a rank, on its main thread, before a group is built.
        """
        while True:
            with self._acting:
                if not self.connected or not _watched(self._channel).poll(0):
                    return
            time.sleep(0.001)

    def interrupt(self, number: int, frame: Any) -> None:
        """The handler of SIGINT: a KeyboardInterrupt where it does no harm, nothing elsewhere.

        A cell whose coroutine waits in the event loop is cancelled, as is another task of the
        learner's that computes: a KeyboardInterrupt of a task would end the loop, and the engine
        with it.
        """
        around_cells.restore_builtins()  # the cell that ends here may have replaced them
        if interruptible(frame):
            raise KeyboardInterrupt if is_in_cell(frame) else asyncio.CancelledError
        cell = around_cells.awaiting()
        if cell is not None:
            cell.get_loop().call_soon_threadsafe(cell.cancel)

    def _receive(self) -> None:
        """Do what the notebook orders on the channel, or answer."""
        received = read_available(self._channel, 4096)
        if not received:
            self.connected = False
            return
        *lines, self._received = (self._received + received).split(b"\n")
        for line in lines:
            try:
                self._obey(from_json(line))
            except Exception as error:
                self.on_error(error)

    def _obey(self, query: Query) -> None:
        """Carry out an order, or answer a question.

        A frame or a socket may go away while it is looked at. So one exception is no reason to give
        up; after a second one, the answer says why there is none.
        """
        if query.want == messages.TYPED:
            CONSOLE.receive(query.line)
            return
        try:
            line = to_json(self._answer(query))
        except Exception:
            try:
                line = to_json(self._answer(query))
            except Exception as error:
                line = to_json(Answer(query.number, error=_in_a_line(error)))
        self._send_line(line)

    def send(self, message: Any) -> None:
        """Send the notebook a message. Runs on: any thread."""
        self._send_line(to_json(message))

    def _send_line(self, line: str) -> None:
        with self._sending, contextlib.suppress(OSError):
            self._channel.sendall(line.encode() + b"\n")

    def _answer(self, query: Query) -> Answer:
        """The answer to a question; for an order, which is carried out first, an empty one."""
        number = query.number
        if query.want == messages.CLOCK:
            return Answer(number, clock=time.time_ns())
        if query.want == messages.MEMORY:
            return Answer(number, megabytes=used_megabytes())
        if query.want == messages.STATUS:
            return Answer(number, status=self._status())
        if query.want == messages.VARIABLES:
            return Answer(number, variables=variables())
        if query.want == messages.NAMES:
            names = tuple(name for name in namespace_of_cells() if isinstance(name, str))
            return Answer(number, variables=names)
        if query.want == messages.PREEMPT:
            PLUGINS.preempt(self._status())
            return Answer(number)
        self._bring_back(query.want)
        return Answer(number)

    def _status(self) -> RankStatus:
        traffic = self.connections.traffic
        return status.summary(self._main, self._infrastructure_tids, traffic, self._loop)

    def _bring_back(self, order: str) -> None:
        """Free this rank if it communicates; interrupt it if it computes and that is ordered.

        Also interrupt one that stays in a wait of the learner's own: its loop, in distlab.waiting,
        may never look whether it was freed.
        """
        thread = thread_that_waits(self._main)
        call = LOG.waiting_in.get(thread)
        if name_of_wait(thread):
            free(thread, self.connections, gently=order == messages.FREE_WAITING)
            waits_by_hand = call is not None and call.kind == messages.WAITING
            if not waits_by_hand or LOG.waiting_in.get(thread) is not call:
                return
        if order == messages.COME_BACK:
            self._interrupt_main()

    def _interrupt_main(self) -> None:
        """Interrupt the code of a cell on the main thread, unless that would do harm."""
        frame = sys._current_frames().get(self._main)
        if around_cells.awaiting() is not None or interruptible(frame):
            signal.pthread_kill(self._main, INTERRUPT)


def _watched(channel: socket.socket) -> select.poll:
    """What sees that something has arrived; each thread needs its own.

    A descriptor may have any number, which select does not allow.
    """
    arrivals = select.poll()
    arrivals.register(channel, select.POLLIN)
    return arrivals


def _in_a_line(error: BaseException) -> str:
    """An exception of distlab's own, for the notebook: what it is, and where it was raised."""
    *_, frame = traceback.extract_tb(error.__traceback__)
    words = " ".join(str(error).split())
    where = f"{os.path.basename(frame.filename)}, line {frame.lineno}"
    return f"{type(error).__name__}: {words} ({where})"


def variables() -> tuple[str, ...]:
    """Names that the learner has defined on this rank, modules left out."""
    defined = dict(sys.modules["__main__"].__dict__)  # a cell may define more meanwhile
    names = [name for name, value in defined.items() if _is_variable(name, value)]
    return tuple(sorted(names))


def _is_variable(name: Any, value: Any) -> bool:
    """Whether a name in the namespace of cells is a variable of the learner's."""
    if not isinstance(name, str) or isinstance(value, ModuleType):
        return False
    return not name.startswith("_") and name not in GIVEN


def interruptible(frame: FrameType | None) -> bool:
    """Whether a KeyboardInterrupt may be raised in this frame, as code of a cell or of a call runs.

    It must not hit what the engine does between two of them, or a message is lost and the rank
    waits forever; nor the report of an exception, which would be lost with it; nor an import. The
    notebook orders the interrupt again until the rank has come back.

    Runs on: a rank, in any thread.
    """
    if not is_executing(frame) or is_importing(frame):
        return False
    is_settling = any(outer.f_code is Watchdog.settle.__code__ for outer in outwards(frame))
    return not is_settling
