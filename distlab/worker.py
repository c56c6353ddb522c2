"""What a rank does: join, leave and rebuild the process group, run a function, tell what it returned or raised.

Runs on every rank, called by cluster.py from the notebook through ipyparallel. It needs torch, cloudpickle (by way
of payload.py) and the standard library, and puts its number where torchrun puts it: into RANK and WORLD_SIZE.
"""

from __future__ import annotations

import os
import re
import sys
import traceback
from datetime import timedelta
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

from distlab import calls, payload, sentinel
from distlab.devices import device_for
from distlab.source import is_learners, line_of

_TORCH_DISTRIBUTED = os.path.join("torch", "distributed")
# what gloo, and distlab.algorithms.segment, say on a rank whose peer did not come, or went away
WAITED = re.compile(
    r"Timed out waiting|Connection (closed|reset|refused)|Broken pipe|pair closure|Read error|Write error|Socket closed"
    r"|through (shared memory|MPI)"
)


def join(rank: int, meeting: Any) -> dict[str, Any]:
    """Become rank `rank` of the group that meets at `meeting`, and define the names of a %%px cell.

    Runs on: every rank of the group (a rank that skips it hangs the rest until the timeout).

    Returns:
        what the notebook shows of this rank: pid, threads.
    """
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(meeting.world_size), LOCAL_RANK=str(rank))
    os.environ.update(LOCAL_WORLD_SIZE=str(meeting.world_size))
    os.environ.pop("PYTHONSAFEPATH", None)  # meant for the start of this process, not for programs that it starts
    calls.NOTES.rank, calls.NOTES.world_size = rank, meeting.world_size
    calls.install()
    before = sentinel.sockets(), sentinel.threads()
    build(rank, meeting)
    sentinel.watch(before, meeting)
    _namespace().update(rank=rank, world_size=meeting.world_size, torch=torch, dist=dist)
    return {"rank": dist.get_rank(), "pid": os.getpid(), "threads": torch.get_num_threads()}


def build(rank: int, meeting: Any) -> None:
    """Build the default process group, by the init method that the meeting names.

    Runs on: every rank of the group.
    """
    limit = timedelta(seconds=meeting.timeout)
    # dist.new_group does not inherit the world's timeout but takes this one, which is half an hour
    dist.distributed_c10d.default_pg_timeout = limit
    where: dict[str, Any] = {"rank": rank, "world_size": meeting.world_size}
    if meeting.init_method == "file":
        where["init_method"] = f"file://{meeting.path}"
    else:
        if meeting.init_method == "env":
            os.environ.update(MASTER_ADDR=meeting.host, MASTER_PORT=str(meeting.port))
        # the store serves already, and its keys are new each time, because used ones hold stale addresses
        where["store"] = dist.PrefixStore(meeting.prefix, sentinel.connect(meeting.host, meeting.port))
    if "mpi4py.MPI" in sys.modules:  # ipyparallel's engine has imported it, because mpiexec started it
        from distlab import mpi_backend, mpi_work

        mpi_backend.register()
        calls.install_on(mpi_backend.Group, mpi_work.Work)
    if meeting.backend == "nccl":  # objects and barriers travel by way of the current GPU, which is 0 at first
        torch.cuda.set_device(device_for(rank))
    before = sentinel.threads()
    dist.init_process_group(meeting.backend, timeout=limit, **where)
    if meeting.backend == "gloo":  # the first thread that a group starts is the one that reads from sockets
        calls.NOTES.loops = calls.NOTES.loops & before | set(sorted(sentinel.threads() - before)[:1])


def rebuild(rank: int, meeting: Any) -> int:
    """Leave the group, whatever state it is in, and build it anew. Variables stay.

    Runs on: every rank of the group.

    Returns:
        the number of subgroups that went with the old group.
    """
    sentinel.settle()
    end_checks()
    subgroups = leave()
    build(rank, meeting)
    return subgroups


def settle() -> None:
    """Answer when every signal that has come has been acted on; an answer means that this rank is idle."""
    sentinel.settle()


def leave() -> int:
    """Destroy the default group and its subgroups; return how many subgroups there were.

    Runs on: any rank; it waits for nobody.
    """
    if not dist.is_initialized():
        # groups are numbered; a learner's init_process_group that failed has used a number up, on this rank alone
        dist.distributed_c10d._world.group_count = 0
        calls.NOTES.forget()
        return 0
    subgroups = len(dist.distributed_c10d._world.pg_map) - 1
    dist.destroy_process_group()
    calls.NOTES.forget()
    return subgroups


def begin_checks(token: str, host: str, port: int, limit: float) -> None:
    """Compare the arguments of calls between the ranks from now on; see checked.Checker for the arguments."""
    from distlab.checked import Checker

    calls.NOTES.checker = Checker(token, host, port, limit)


def end_checks() -> None:
    """Compare no more; what was begun and still waits for the other ranks is made unchecked."""
    checker, calls.NOTES.checker = calls.NOTES.checker, None
    if checker is not None:
        checker.close()


def checked_call(checks: tuple[str, str, int, float], header: bytes, buffers: list[Any]) -> list[Any]:
    """As `call`, with the arguments of its communication calls compared between the ranks.

    Runs on: a rank.
    """
    begin_checks(*checks)
    try:
        return call(header, buffers)
    finally:
        end_checks()


def call(header: bytes, buffers: list[Any]) -> list[Any]:
    """Call the function in the payload as fn(rank, world_size, *args, **kwargs).

    Names that the function uses come from the notebook; those that the notebook does not have, from this rank.

    Runs on: a rank.

    Returns:
        ["value", header, *buffers], or ["error", failure as a dict].
    """
    rank, world_size = calls.NOTES.rank, calls.NOTES.world_size
    try:
        fn, args, kwargs = payload.loads(header, buffers)
        lend_names(fn)
        value = fn(rank, world_size, *args, **kwargs)
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        return ["error", describe_failure(error)]
    try:
        header, buffers = payload.dumps(value)
    except Exception as error:
        return ["unsendable", type(value).__qualname__, f"{type(error).__name__}: {error}"]
    return ["value", header, *buffers]


def push(header: bytes, buffers: list[Any]) -> None:
    """Define the names of the payload, a dict, on this rank."""
    _namespace().update(payload.loads(header, buffers))


def pull(names: list[str]) -> list[Any]:
    """The values of `names` as ["value", header, *buffers], or ["missing", name] for the first that is not defined."""
    namespace = _namespace()
    values = []
    for name in names:
        if name not in namespace:
            return ["missing", name]
        values.append(namespace[name])
    try:
        header, buffers = payload.dumps(values)
    except Exception as error:
        return ["unsendable", ", ".join(names), f"{type(error).__name__}: {error}"]
    return ["value", header, *buffers]


def last_failure() -> dict[str, Any] | None:
    """The failure of the cell that ran last on this rank; None when it did not fail."""
    error = getattr(sys, "last_value", None)
    return None if error is None else describe_failure(error)


def describe_failure(error: BaseException) -> dict[str, Any]:
    """An exception as plain values: kind, message, the learner's own lines, the whole traceback.

    Returns:
        a dict with kind, message, traceback, communicated (it came out of torch.distributed), consequence (it waited
        for a peer) and lines: each a tuple of
        file, number, source text ("" when only the notebook has it), function name, and whether a cell of this rank.
    """
    stack = traceback.extract_tb(error.__traceback__, limit=200)
    frames = [frame for frame in stack if is_learners(frame.filename)]
    communicated = any(_TORCH_DISTRIBUTED in frame.filename for frame in stack)
    communicated = communicated or any(
        words in str(error) for words in ("gloo", "through shared memory", "through MPI")
    )
    lines = [line_of(f.filename, f.lineno or 0, f.name) for f in frames]
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        where = line_of(error.filename, error.lineno, "<module>")
        lines.append((*where[:2], (error.text or "").strip(), *where[3:]))
    message = "".join(traceback.format_exception_only(type(error), error)).strip()
    kind = type(error).__name__
    message = str(error) if not isinstance(error, SyntaxError) else (error.msg or message)
    return {
        "kind": kind,
        "message": message,
        "lines": lines,
        "traceback": "".join(traceback.format_exception(type(error), error, error.__traceback__)),
        "consequence": communicated and isinstance(error, RuntimeError) and bool(WAITED.search(message)),
        "communicated": communicated,
    }


def _namespace() -> dict[str, Any]:
    """Where %%px cells run: the rank's __main__."""
    return sys.modules["__main__"].__dict__


def lend_names(fn: Any) -> None:
    """Give a function that came by value the names of this rank that its notebook did not have."""
    fn = getattr(fn, "func", fn)
    own = getattr(getattr(fn, "__func__", fn), "__globals__", None)
    if own is None:
        return
    home: ModuleType | None = sys.modules.get(own.get("__name__", ""))
    if home is None or home.__dict__ is not own:
        for name, value in _namespace().items():
            own.setdefault(name, value)
