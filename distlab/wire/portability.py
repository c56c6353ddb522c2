"""What one rank has seen of its calls, for the question whether they would work on NCCL.

Written by rank/portability.py on every rank, read on the notebook's kernel by diagnosis/.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from distlab.wire.recorded import GroupKey
from distlab.wire.source import Line


@dataclass(frozen=True)
class SeenCall:
    """What calls of a process group have in common that are counted as one.

    Attributes:
        op: the function that the program called.
        method: of ProcessGroup.
        group: its group.
        line: the program's line; None if there is none.
        file: of the line, because two lines are equal in different files.
        is_direct: whether the program's line calls torch.distributed itself, and no library.
        devices: of its tensors, such as "cpu" and "cuda:0".
        dtypes: of its tensors.
        is_sparse: whether one of its tensors is sparse.
        reduce_op: how it reduces; "" if it does not.
        names_device: of a barrier, whether it or its group was given a device.
        is_first: whether it is the first call of its group on this rank.
        thread: 0 for the rank's main thread, and a number of its own for each other one.
        is_left: whether it returned at once, and nobody has waited for it.
    """

    op: str
    method: str
    group: GroupKey
    line: Line | None = None
    file: str = ""
    is_direct: bool = True
    devices: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    is_sparse: bool = False
    reduce_op: str = ""
    names_device: bool = False
    is_first: bool = False
    thread: int = 0
    is_left: bool = False


@dataclass(frozen=True)
class SeenCollective:
    """One collective, in the order in which a rank began them.

    Attributes:
        group: its group.
        number: among the collectives of its group that were seen, from 1.
        line: the program's line; None if there is none.
    """

    group: GroupKey
    number: int
    line: Line | None


@dataclass(frozen=True)
class SeenMessage:
    """One message, in the order in which a rank began them.

    Attributes:
        is_send: whether this rank sends it.
        group: its group.
        peer: the rank at the other end.
        tag: its tag.
        batch: the number of the batch_isend_irecv that it belongs to; 0 for none.
        line: the program's line; None if there is none.
    """

    is_send: bool
    group: GroupKey
    peer: int
    tag: int
    batch: int
    line: Line | None


@dataclass
class Seen:
    """All that one rank has seen.

    Attributes:
        calls: how often each call was made.
        collectives: in their order, where the rank is in several groups.
        messages: in their order.
        nccl_groups: those for which the program named NCCL.
        has_gpu: whether the rank has a GPU.
        gpus: by device, such as "cuda:0", what tells the GPU from all others, also where each rank
            has one of its own by that name.
        host: the name of its machine.
        is_whole: whether nothing was left out because there was too much.
    """

    calls: dict[SeenCall, int] = field(default_factory=dict)
    collectives: list[SeenCollective] = field(default_factory=list)
    messages: list[SeenMessage] = field(default_factory=list)
    nccl_groups: tuple[GroupKey, ...] = ()
    has_gpu: bool = False
    gpus: dict[str, str] = field(default_factory=dict)
    host: str = ""
    is_whole: bool = True
