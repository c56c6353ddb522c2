"""What a rank has its device do, as recorder.py notes it and timeline.py times it.

Plain data, which both processes use; needs no torch.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple

from distlab.wire.messages import Failure
from distlab.wire.source import Line
from distlab_predict.held import NOTHING, Held
from distlab_predict.launches import CALL, OPERATOR

# a queue of the device: a stream of the program, or that of a group
Stream = Hashable


# Kinds of kernels.
PRODUCT = "product"  # of matrices
GROUPED = "grouped"  # products of matrices, one for each group of rows
ATTENTION = "attention"
CONVOLUTION = "convolution"
BYTES = "bytes"  # it takes as long as its bytes need
UNKNOWN = "unknown"  # nobody knows its FLOPs

BY_HAND = "by hand"  # compiled, but each kernel is launched by the program
FETCH = "fetch"  # the name of a call: the copy engine copies from another rank's memory


@dataclass(frozen=True)
class Kernel:
    """The device computes.

    Attributes:
        after: indices of the nodes that must have ended.
        name: the operator's.
        flops: as torch's FlopCounterMode counts them: all of the scores, in causal attention, too.
        num_bytes: read and written.
        again: whether it repeats a part of the forward pass, as activation checkpointing does.
        kind: one of those above; "" for others whose FLOPs are known.
        shape: of a product (batch, m, n, k), where m x k is multiplied by k x n. Of grouped ones
            (groups, m, n, k), where m is the rows of all groups together. Of attention (batch,
            heads of queries, heads of keys, queries, keys, numbers of a head, 1 if causal). Of all
            others ().
        dtype: of what a product multiplies, as torch names it, "bfloat16". Of others that of the
            largest tensor that they read.
        line: of the program, "train.py:12", which called it; "" if none did.
        host: what the processor does from the launch of the node before until it has launched this
            one, in operators as launches.py counts them.
    """

    after: tuple[int, ...]
    name: str
    flops: int
    num_bytes: int
    again: bool = False
    kind: str = ""
    shape: tuple[int, ...] = ()
    dtype: str = ""
    line: str = ""
    host: float = OPERATOR


@dataclass(frozen=True)
class Call:
    """A collective, or a message, in the stream of its group.

    Attributes:
        after: indices of the nodes that must have ended.
        stream: the name of the group; of a message, its other end as well.
        name: as in collectives.py, or "send" or "recv", or FETCH, which no other rank waits for.
        members: ranks of the group.
        sent: bytes, as collectives.messages takes them; those of an all_to_all begin with what
            stays on the rank.
        peer: the rank at the other end of a message; None for a collective.
        line: of the program, "train.py:12", which called it; "" if none did.
        host: as of `Kernel`.
    """

    after: tuple[int, ...]
    stream: Stream
    name: str
    members: tuple[int, ...]
    sent: tuple[int, ...]
    peer: int | None = None
    line: str = ""
    host: float = CALL


Node = Kernel | Call


class Wait(NamedTuple):
    """The program reads a value of the device, as `loss.item()` does, and waits until it is there.

    Attributes:
        before: the index of the first node that is launched after it.
        ends: indices of the nodes that must have ended.
    """

    before: int
    ends: tuple[int, ...]


@dataclass(frozen=True)
class Branch:
    """A line that asks for a truth that only data decides, as a comparison of losses does.

    Attributes:
        line: of the program, "train.py:12".
        rank: that asked.
        stack: the learner's own lines that led there, outermost first.
    """

    line: str
    rank: int
    stack: tuple[Line, ...]


@dataclass(frozen=True)
class Recording:
    """What one rank has noted.

    Attributes:
        rank: which one.
        nodes: in the order in which the program called them.
        steps: by step, the index of its first node, and the number of nodes at its end.
        peak: bytes of memory at their most, by what they are: "parameters", "gradients",
            "optimizer", "activations", "unsharded parameters".
        printed: what the program has printed.
        held: more on its memory.
        assumed: in words, what follows from data that nobody has: "routing: balanced, assumed".
        warned: what the program has written to stderr.
        branches: where the program went one way because of data that nobody has.
        waits: of the program for its device, in their order.
    """

    rank: int
    nodes: list[Node]
    steps: list[tuple[int, int]]
    peak: dict[str, int]
    printed: str
    held: Held = NOTHING
    assumed: tuple[str, ...] = ()
    warned: str = ""
    branches: tuple[Branch, ...] = ()
    waits: tuple[Wait, ...] = ()


@dataclass(frozen=True)
class Run:
    """What to record.

    Attributes:
        header, buffers: of the program, for pickling.loads.
        world_size: the number of ranks that the program sees.
        ranks: which ranks to run; None to start at rank 0 and follow messages.
        max_roles: upper limit when following messages.
        environment: variables of the process that runs the program.
        folder: its working folder.
        path: where it finds modules.
        skew: how many times as many tokens as the mean the experts of a recorded rank get.
        compiled: whether its model is to be noted as torch.compile would make it; BY_HAND if its
            kernels are launched one by one.
        true: lines, "train.py:12", where a truth that only data decides is True; elsewhere it is
            False.
        repeats: whether micro-batches of a pipeline that are like others are left out, and what was
            noted of these is noted again.
    """

    header: bytes
    buffers: tuple[bytes, ...]
    world_size: int
    ranks: tuple[int, ...] | None
    max_roles: int
    environment: tuple[tuple[str, str], ...]
    folder: str
    path: tuple[str, ...]
    skew: float = 1.0
    compiled: bool | str = False
    true: tuple[str, ...] = ()
    repeats: bool = True


Outcome = Recording | Failure  # of a rank
Outcomes = list[Outcome]  # of the ranks of a run
