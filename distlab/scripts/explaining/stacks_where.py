"""Where a process is: in which call of torch.distributed, and at which line of its program.

Pure functions over stacks; run by `distlab explain` in its own process, called by stacks_report.py.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import sys
from collections.abc import Iterable, Sequence

from distlab.scripts.explaining.stacks import Frame, Stack, Thread
from distlab.wire import messages
from distlab.wire.messages import CallRecord, RankStatus
from distlab.wire.source import Line, is_learners, name_of_function

PACKAGES = re.compile(r".*/(?:site|dist)-packages/")
DISTRIBUTED = "torch/distributed/"
COLLECTIVES = "torch/distributed/distributed_c10d.py"
DDP = "torch/nn/parallel/distributed.py"
AGENT = "torch/distributed/elastic/agent/"
# what lies between a call and what makes it, and is neither
BETWEEN = ("torch/distributed/c10d_logger.py", "torch/distributed/elastic/")
WRAPPERS = ("wrapper", "inner_func", "decorator")
BACKWARD = "torch/autograd/"
MESSAGES = {"send": "dst", "isend": "dst", "recv": "src", "irecv": "src"}


def status_of(rank: int, stack: Stack) -> RankStatus:
    """What a stack shows of a rank, as far as that goes.

    The call has neither a group nor members, because no stack shows them.
    """
    main = stack.main
    if main is None:
        return RankStatus(rank, messages.SILENT)
    own = _status_of_thread(rank, main)
    others = []
    for thread in stack.threads:
        if thread is not main and _call_in(thread.frames):
            others.append(_status_of_thread(rank, thread))
    return RankStatus(
        rank,
        own.doing,
        call=own.call,
        lines=own.lines,
        sleeping=own.sleeping,
        other_threads=tuple(others),
    )


def is_agent(stack: Stack) -> bool:
    """Whether it is the stack of torchrun itself, which starts ranks and is none."""
    main = stack.main
    if main is None:
        return False
    return any(short_name(frame.file).startswith(AGENT) for frame in main.frames)


def innermost_values(stack: Stack) -> dict[str, int]:
    """The whole numbers among the variables of the program's functions, the innermost ones first.

    Empty where the tool has not shown any.
    """
    found: dict[str, int] = {}
    main = stack.main
    frames = main.frames if main else []
    for frame in frames:
        if not is_of_program(frame):
            continue
        for name, text in frame.values.items():
            if re.fullmatch(r"-?\d+", text):
                found.setdefault(name, int(text))
    return found


def _status_of_thread(rank: int, thread: Thread) -> RankStatus:
    """What one thread is doing."""
    lines = _lines_of_program(thread.frames)
    call = _call_in(thread.frames)
    if call is not None:
        frame, op = call
        record = _record(op, frame, lines)
        return RankStatus(rank, messages.COMMUNICATING, call=record, lines=lines)
    if thread.state.startswith("active"):
        return RankStatus(rank, messages.COMPUTING, lines=lines)
    return RankStatus(rank, messages.OUTSIDE, lines=lines)


def _record(op: str, frame: Frame, lines: tuple[Line, ...]) -> CallRecord:
    """The call as a record: with its peer and tag where the tool shows arguments."""
    end = MESSAGES.get(op, "")
    peer = frame.values.get(end, "")
    if not peer.isdigit():
        return CallRecord(op, messages.OTHER, lines=lines)
    tag = frame.values.get("tag", "")
    return CallRecord(
        op,
        messages.MESSAGE,
        lines=lines,
        is_send=end == "dst",
        peer=int(peer),
        tag=int(tag) if tag.isdigit() else 0,
    )


def _call_in(frames: Sequence[Frame]) -> tuple[Frame, str] | None:
    """The call of torch.distributed that a thread is in, and its name as a program has it.

    Only what lies above the program's innermost line counts; None if there is no such call.
    """
    inner = []
    for frame in frames:
        if is_of_program(frame):
            break
        inner.append(frame)
    if not inner or not _is_of_torch(inner[0]):
        return None  # such as an import, or a file that is read
    named = [frame for frame in inner if _may_be_the_call(frame)]
    public = [frame for frame in named if not frame.name.startswith("_")]
    for frame in reversed(public):  # the outermost: all_gather_object, and not its all_gather
        if short_name(frame.file) == COLLECTIVES:
            return frame, frame.name
    if public:
        return public[-1], public[-1].name
    return _call_of_ddp(inner) or _other_call(inner, named)


def _call_of_ddp(inner: Sequence[Frame]) -> tuple[Frame, str] | None:
    """DDP's own waits, in its constructor and before a forward pass."""
    for frame in inner:
        if short_name(frame.file) != DDP:
            continue
        if frame.name == "__init__":
            return frame, "DistributedDataParallel"
        if frame is inner[0] or short_name(inner[0].file).startswith(DISTRIBUTED):
            return frame, messages.DDP_FORWARD
    return None


def _other_call(inner: Sequence[Frame], named: Sequence[Frame]) -> tuple[Frame, str] | None:
    """A private function of torch.distributed; or backward, where DDP's hooks communicate."""
    if named:
        return named[-1], named[-1].name
    if short_name(inner[0].file).startswith(BACKWARD):
        return inner[-1], inner[-1].name
    return None


def _may_be_the_call(frame: Frame) -> bool:
    """Whether a frame is of torch.distributed, and does not merely stand between."""
    name = short_name(frame.file)
    if not name.startswith(DISTRIBUTED) or name.startswith(BETWEEN):
        return False
    return frame.name not in WRAPPERS


def _lines_of_program(frames: Iterable[Frame]) -> tuple[Line, ...]:
    """The program's lines, outermost first."""
    lines = []
    for frame in frames:
        if is_of_program(frame):
            function = name_of_function(frame.name)
            lines.append(Line(frame.number, "", function, frame.file))
    return tuple(reversed(lines))


def short_name(file: str) -> str:
    """A file as py-spy names it, without the folder of its package: "torch/_tensor.py"."""
    return PACKAGES.sub("", file.replace("\\", "/"))


def is_of_program(frame: Frame) -> bool:
    """Whether a frame is of the person's program, and not of Python or of an installed package."""
    if frame.file.startswith("<") or not frame.file.endswith((".py", ".ipynb")):
        return frame.file.startswith("<ipython-input")
    if os.path.isabs(frame.file):
        return is_learners(frame.file) and not PACKAGES.match(frame.file) and not _is_python(frame)
    top = frame.file.partition("/")[0].removesuffix(".py")
    return not _is_installed(top)


def _is_python(frame: Frame) -> bool:
    """Whether a file is of another Python's library than the one that runs this."""
    return re.search(r"/lib/python3\.\d+/", frame.file) is not None


def _is_of_torch(frame: Frame) -> bool:
    """Whether a frame is torch's, or compiled code below it."""
    if frame.file.startswith("<"):  # Python's own, such as an import
        return False
    return short_name(frame.file).startswith("torch/") or not frame.file.endswith(".py")


@functools.cache
def _is_installed(top: str) -> bool:
    """Whether a name is one of Python's modules or of an installed package, and not a program's."""
    if top in sys.stdlib_module_names or top == "torch":
        return True
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return False
    return spec is not None and PACKAGES.match(spec.origin or "") is not None
