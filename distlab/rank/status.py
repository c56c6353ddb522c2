"""Reports what this rank's threads are doing, as the watchdog's thread sees it: idle, computing, or
waiting in a call.

Runs on every rank, when the notebook asks. Everything is read from outside: the Python frames of
the threads, the log, /proc. A proof of a deadlock relies on it: what looks idle need not be
finished, because a thread that sleeps, a timer or a task of an event loop may still send.
"""

import asyncio
import contextlib
import inspect
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NamedTuple

import torch.distributed as dist

from distlab.compat import ipyparallel, ipython, torch_rpc
from distlab.compat import torch as private
from distlab.debugger.console import PERSON
from distlab.rank import around_cells
from distlab.rank.log import LOG, MOST_KINDS, Note
from distlab.rank.membership import members_of
from distlab.rank.raised import describe_failure
from distlab.rank.records import record_of
from distlab.rank.rpc import AGENT
from distlab.rank.this_rank import THIS_RANK
from distlab.wire import messages
from distlab.wire.messages import CallRecord, MessageCount, RankStatus
from distlab.wire.source import Line, is_learners, line_of

DDP, DDP_HELPERS = private.DDP_MODULE, "torch.distributed.utils"
DDP_CONSTRUCTOR = "DistributedDataParallel"
CELLS = {ipython.CELL, ipyparallel.CALL}
# modules whose threads do nothing until they get work; zmq's is there when this rank has sent a
# large value
_POOLS, _QUEUES = "concurrent.futures.thread", "multiprocessing.queues"
WAITING_FOR_WORK = (_POOLS, _QUEUES, "tqdm._monitor", ipython.HISTORY, "zmq.utils.garbage")
BUSY_IN_A_POOL = (_POOLS, "run")
GLOO_LOOP = "gloo_tcp_loop"  # gloo's name for its thread that reads from sockets
ROUND_NANOSECONDS = 5_000_000


class Traffic(NamedTuple):
    """Bytes in the connections of this rank.

    Attributes:
        moved: that were sent and have arrived, since each was opened.
        unread: that have arrived and wait to be read.
        unsent: that the other end has not received yet.
    """

    moved: int = 0
    unread: int = 0
    unsent: int = 0


def summary(
    main: int, ours: set[int], traffic: Callable[[], Traffic], loop: Any = None
) -> RankStatus:
    """What this rank is doing.

    Args:
        main: identifier of the main thread.
        ours: system numbers of threads that were there before the group, and so are not the
            learner's and not gloo's.
        traffic: what moves through gloo's sockets; called only if it matters.
        loop: the event loop on which cells run.
    """
    ours = ours | {
        thread.native_id for thread in threading.enumerate() if thread.name.startswith("distlab-")
    }
    thread = waiter(main)
    note, op = LOG.waiting_in.get(thread), communication(thread)
    first, of_main = next(frames(thread), None), next(frames(main), None)
    at = (id(first), first.f_lasti) if first else ()
    executes, imports = executing(of_main), importing(of_main)
    # a frame keeps its variables alive, and what follows takes long on a busy machine
    del first, of_main
    # whose coroutine waits until the event loop continues it
    cell = None if executes else around_cells.awaiting()
    begun = executes or cell is not None
    # which also looks at exceptions
    running = thread != main or begun or PERSON.asked or PERSON.is_open
    call = None
    if running and op:
        call = _what_is_known(thread, op) if note is None else record_of(note)
    doing = messages.COMMUNICATING if call else messages.COMPUTING if running else messages.IDLE
    # while the main thread is in a call, the event loop continues nothing; one task may wait by
    # hand, and another run
    loop_stands = executes and call is not None and call.kind != messages.WAITING
    # one that computes moves; to ask more would take long: Python's lock is given back at every
    # system call
    bytes_now = Traffic() if doing == messages.COMPUTING else traffic()
    rounds = None if doing == messages.COMPUTING else loop_rounds(ours)
    serving = _serving()
    passes = LOG.passes.of_cell(LOG.cells if begun else LOG.cells - 1)
    still = rounds is not None and torch_rpc.threads_at_work() == len(serving)
    return RankStatus(
        rank=THIS_RANK.rank,
        doing=doing,
        call=call,
        lines=(thread == main and _lines_of_coroutine(cell)) or _lines(thread) or _lines(main),
        idle=not begun,
        awaiting=cell is not None,
        sleeping=doing == messages.COMPUTING and thread == main and _sleeps(_lines(main)),
        paused=PERSON.asked,
        importing=imports,
        groups=dist.get_pg_count(),
        made=tuple(LOG.new_groups),
        passes=passes.forward,
        averaging_passes=passes.averaging,
        backward_passes=passes.backward,
        history=() if doing == messages.COMPUTING else _history(),
        traffic=tuple(_traffic()),
        more_traffic=len(LOG.traffic) > MOST_KINDS,
        # a call that is noted may wait in a loop of Python's, whose frames come and go; its end
        # would be noted
        fingerprint=(*(at if call and note is None else ()), LOG.activity, bytes_now.moved),
        is_quiescent=still
        and not others_may_act(main, ours)
        and not timer_is_set()
        and (loop_stands or not plans(loop)),
        unread=bytes_now.unread,
        unsent=bytes_now.unsent,
        gloo_wakeups=rounds or (),
        threads=AGENT.threads if AGENT.workers else 0,
        serving=serving,
        abandoned=tuple(record_of(note) for note in LOG.abandoned()),
        pending=tuple(record_of(note) for note in LOG.pending()),
        more_unwaited=LOG.more_unwaited,
        destroyed=record_of(LOG.destroyed) if LOG.destroyed else None,
        other_threads=tuple(
            _thread(other, LOG.waiting_in[other])
            for other in waiting_threads()
            if other not in (main, thread)
        ),
    )


def _serving() -> tuple[RankStatus, ...]:
    """What this rank is running for others, by remote calls."""
    serving = list(AGENT.serving.items())
    return tuple(
        _thread(t, LOG.waiting_in.get(t), caller=one.caller, function=one.function)
        for t, one in serving
    )


def _thread(thread: int, note: Note | None, **served: Any) -> RankStatus:
    """What a thread other than the main one is doing; for whom, if it has a caller."""
    doing = messages.COMPUTING if note is None else messages.COMMUNICATING
    return RankStatus(
        THIS_RANK.rank, doing, record_of(note) if note else None, _lines(thread), **served
    )


def _what_is_known(thread: int, op: str) -> CallRecord:
    """Who takes part in a wait that no call of a group explains, and whether it may end by itself.

    All may, except what C++ sends for a model in training.
    """
    everyone = tuple(range(THIS_RANK.world_size))
    may_end = any(members_of(name)[1] for name in list(private.GROUP_NAMES.values()))
    in_training = op in ("backward", DDP_CONSTRUCTOR, messages.DDP_FORWARD) and os.path.isdir(
        "/proc/self/task"
    )
    return CallRecord(op, messages.OTHER, everyone, may_end or not in_training)


def _history() -> tuple[CallRecord, ...]:
    """The newest collectives of every group; asynchronous ones let a rank be many ahead of the
    others.

    Only the last one of each group has its lines, which a report may need of a rank that has
    finished.
    """
    return tuple(
        record_of(note, with_lines=is_last)
        for notes in list(LOG.collectives.values())
        for is_last, note in _with_last(list(notes))
    )


def _with_last(notes: list[Note]) -> Iterator[tuple[bool, Note]]:
    """Each note, and whether it is the last."""
    for place, note in enumerate(notes, 1):
        yield place == len(notes), note


def _traffic() -> Iterator[MessageCount]:
    """How many messages of each kind were begun; of the newest kinds."""
    for key, count in list(LOG.traffic.items())[-MOST_KINDS:]:
        is_send, group, place, tag = key
        members = members_of(group)[0] or LOG.members.get(group, ())
        peer = dict(enumerate(members)).get(place)
        dropped = LOG.dropped.get(key, [])
        yield MessageCount(is_send, group, peer, tag, count, len(dropped), min(dropped, default=0))


def _sleeps(lines: tuple[Line, ...]) -> bool:
    """Whether the main thread waits for a timer alone, as Linux sees it; where it does not say, by
    the line's text.
    """
    text = lines[-1].text if lines else ""
    # a coroutine's sleep is awaited, or just being continued
    says_sleep = "sleep(" in text and "await " not in text
    with contextlib.suppress(OSError), open(f"/proc/self/task/{os.getpid()}/wchan") as place:
        seen = place.read()
        if sys.version_info < (3, 11) and ("poll" in seen or "select" in seen):
            return says_sleep  # time.sleep of Python 3.10 is a select of no file
        if seen not in ("", "0"):
            return "nanosleep" in seen
    return says_sleep


def _lines_of_coroutine(task: asyncio.Task[Any] | None) -> tuple[Line, ...]:
    """The learner's lines at which a task waits, outermost first; none without a task."""
    lines, coroutine = [], task and task.get_coro()
    while inspect.iscoroutine(coroutine):
        frame = coroutine.cr_frame
        if frame is not None and is_learners(frame.f_code.co_filename):
            lines.append(line_of(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        coroutine = coroutine.cr_await
    return tuple(lines)


def _lines(thread: int) -> tuple[Line, ...]:
    """The learner's lines that a thread is in, outermost first."""
    learners = [frame for frame in frames(thread) if is_learners(frame.f_code.co_filename)]
    return tuple(
        line_of(f.f_code.co_filename, f.f_lineno or 0, f.f_code.co_name) for f in reversed(learners)
    )


# --- the threads ---


def outwards(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame, and those that it was called from."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def frames(thread: int) -> Iterator[FrameType]:
    """The Python frames of a thread, innermost first."""
    return outwards(sys._current_frames().get(thread))


def place(frame: FrameType) -> tuple[str, str]:
    """The module and the function that a frame runs; a learner's function may have any name."""
    return frame.f_globals.get("__name__", ""), frame.f_code.co_name


def communication(thread: int) -> str:
    """The name of what the thread waits in if it is inside torch.distributed or a backward pass;
    else "".
    """
    note = LOG.waiting_in.get(thread)
    if note is not None:
        return note.op or note.method
    # such as torch._dynamo, whose modules have names like those below
    if importing(next(frames(thread), None)):
        return ""
    found, innermost = "", ""
    for frame in frames(thread):
        module, function = place(frame)
        if not module.startswith("distlab."):  # a wrapper of distlab's is not what the thread is in
            innermost = innermost or module
        if module == private.C10D_MODULE:
            found = function
        elif module == DDP and innermost in (DDP, DDP_HELPERS):  # not in the model that it calls
            found = messages.DDP_FORWARD if function == "forward" else DDP_CONSTRUCTOR
        elif module.startswith("torch.autograd") and not found:
            found = "backward"
        elif module.startswith(private.DTENSOR_MODULE):
            found = function
        elif module.startswith("torch.distributed") and not found:
            found = function if module == private.FUNCTIONAL_MODULE else module.rsplit(".", 1)[1]
        elif not module.startswith(("torch.", "distlab.")):
            break
    return found


def executing(frame: FrameType | None) -> bool:
    """Whether this frame, or one that it was called from, is code of a cell or of a call of the
    notebook.

    A coroutine or a callback of the learner's that the event loop runs counts, too. What the engine
    does around that code, such as unpacking a message or reporting an exception, does not.
    """
    inner, learners = None, False
    for outer in outwards(frame):
        where = place(outer)
        if outer.f_code is describe_failure.__code__ or where in ipython.SHOW_ERROR:
            return False
        if where in CELLS:
            # the code that exec runs
            return inner is not None and inner.f_code.co_name.startswith("<")
        if where == ipython.LOOP_STEP:
            return learners and not place(inner)[0].startswith(ipython.OF_THE_ENGINE)
        learners = learners or is_learners(outer.f_code.co_filename)
        inner = outer
    return False


def in_cell(frame: FrameType | None) -> bool:
    """Whether this frame was called from a cell or a call, and not from the event loop for a task
    beside it.
    """
    return any(place(outer) in CELLS for outer in outwards(frame))


def importing(frame: FrameType | None) -> bool:
    """Whether a library is being imported, which must not be interrupted: half imported, it would
    stay broken.

    A module of the learner's own may be: it may compute or communicate for as long as it likes.
    """
    imported = ""
    for outer in outwards(frame):
        if not outer.f_code.co_filename.startswith("<frozen importlib."):
            imported = outer.f_code.co_filename
        elif not is_learners(imported):
            return True
    return False


def waiting_threads() -> list[int]:
    """The threads that wait in a call of the log, except those that serve remote calls, which are
    reported apart.
    """
    # without the frames: this one would keep all the others alive
    running = {*sys._current_frames()}
    waiting = [
        thread for thread, note in list(LOG.waiting_in.items()) if note and thread in running
    ]
    return [thread for thread in waiting if thread not in AGENT.serving]


def waiter(main: int) -> int:
    """The thread that this rank waits with: the main one, or another one while that is idle or
    waits for a thread.
    """
    if communication(main):
        return main
    running, waiting = sys._current_frames().get(main), waiting_threads()
    return (
        waiting[0] if waiting and (not executing(running) or _waits_for_a_thread(running)) else main
    )


def _waits_for_a_thread(frame: FrameType | None) -> bool:
    """Whether the main thread waits without a limit in join, result or get, which only another
    thread can end.
    """
    if frame is None or frame.f_globals.get("__name__") != "threading":
        return False
    return frame.f_locals.get("timeout", -1) in (None, -1)


def system_threads() -> set[int]:
    """The system's numbers of the threads of this process; none if /proc is missing."""
    return (
        {int(name) for name in os.listdir("/proc/self/task")}
        if os.path.isdir("/proc/self/task")
        else set()
    )


def loop_rounds(ours: set[int]) -> tuple[int, ...] | None:
    """How often each of gloo's threads that read from sockets has run; None while another thread
    runs or wants to run.

    One that finds nothing sleeps; one that finds a message that it must not take busy-waits, and
    every few milliseconds of that count as a round.

    Args:
        ours: system numbers of threads that are not the learner's and not gloo's.
    """
    found = []
    for task in system_threads():
        with contextlib.suppress(OSError), open(f"/proc/self/task/{task}/status") as file:
            fields = dict(line.split(":", 1) for line in file)
            if fields["Name"].strip() == GLOO_LOOP:
                with open(f"/proc/self/task/{task}/schedstat") as times:
                    computed = int(times.read().split()[0]) // ROUND_NANOSECONDS
                found.append(int(fields["voluntary_ctxt_switches"]) + computed)
            elif task not in ours and fields["State"].split()[0] in ("R", "D"):
                return None
    return tuple(found)


# --- what may happen by itself ---


def others_may_act(main: int, ours: set[int]) -> bool:
    """Whether a thread other than the main one may still communicate, or help something that does.

    One that is not running the learner's code may run some later, as a timer does; only one that
    waits for work, or in a call of the log, is known not to. C++ starts threads, too, which
    `threading` does not know, and which have frames when they run Python.

    Args:
        main: identifier of the main thread.
        ours: system numbers of threads that are not the learner's and not gloo's.
    """
    harmless = {
        main,
        *(thread.ident for thread in threading.enumerate() if thread.native_id in ours),
    }
    running = sys._current_frames()
    del running[threading.get_ident()]  # a frame that holds itself would keep all the others alive
    for ident, innermost in running.items():
        if ident in harmless or LOG.waiting_in.get(ident):
            continue
        stack = list(outwards(innermost))
        waits_for_work = any(
            place(f)[0] in WAITING_FOR_WORK for f in stack
        ) and BUSY_IN_A_POOL not in map(place, stack)
        if any(is_learners(frame.f_code.co_filename) for frame in stack) or not waits_for_work:
            return True
    return False


def timer_is_set() -> bool:
    """Whether a timer of this process will interrupt the main thread, whatever that does."""
    return signal.getitimer(signal.ITIMER_REAL)[0] > 0


def plans(loop: asyncio.AbstractEventLoop | None) -> bool:
    """Whether the event loop of cells will continue a task of the learner's, or call a function at
    a time.
    """
    if loop is None:
        return False
    # private: what the loop will call
    handles = [*getattr(loop, "_scheduled", ()), *getattr(loop, "_ready", ())]
    calls = [getattr(handle, "_callback", None) for handle in handles if not handle.cancelled()]
    tasks = [task.get_coro() for task in asyncio.all_tasks(loop)]
    return any(map(_awaits_learners, tasks)) or any(map(_is_learners_function, calls))


def _is_learners_function(function: Any) -> bool:
    """Whether a function, or what a partial one or a method calls, is the learner's."""
    function = getattr(function, "func", function)
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return code is not None and is_learners(code.co_filename)


def _awaits_learners(coroutine: Any) -> bool:
    """Whether a coroutine, or one that it awaits, is the learner's."""
    if not inspect.iscoroutine(coroutine):
        return False
    return is_learners(coroutine.cr_code.co_filename) or _awaits_learners(coroutine.cr_await)
