"""Where a rank computes: on its own GPU, on a shared one, or on the CPU. It is decided only here.

Called on the ranks, and by the process that starts them; it needs only torch, and the same code
runs under `torchrun`.
"""

import os

import torch
import torch.distributed as dist

from distlab.arguments import whole_number


def device_for(rank: int) -> torch.device:
    """The device of a rank: its own GPU if there is one for each rank, or a shared GPU.

    `backend_for` names the backend: nccl if each rank has its own GPU, otherwise gloo, which also
    takes CUDA tensors.

        model = model.to(distlab.device_for(rank))

    Runs on: anywhere; no rank waits for another.

    Args:
        rank: in the world. Its place on its machine is LOCAL_RANK, and the number of ranks there is
            LOCAL_WORLD_SIZE, which the cluster and torchrun set; without it, the size of the world.

    Returns:
        cuda:0, cuda:1, ..., or cpu where there is no GPU.

    Raises:
        ArgumentError: `rank` is not a whole number of 0 or more.
    """
    whole_number("rank", rank, 0)
    gpus = torch.cuda.device_count()
    if not gpus:
        return torch.device("cpu")
    return torch.device("cuda", _number_on_machine(rank) % gpus)


def _number_on_machine(rank: int) -> int:
    """The place of a rank among those of its machine, from 0."""
    if os.environ.get("RANK") == str(rank):  # this process is the rank
        return int(os.environ.get("LOCAL_RANK", rank))
    return rank % _ranks_here()


def _ranks_here() -> int:
    """The number of ranks on a machine; without LOCAL_WORLD_SIZE, the size of the world."""
    given = os.environ.get("LOCAL_WORLD_SIZE")
    if given:
        return int(given)
    return dist.get_world_size() if dist.is_initialized() else 1


def backend_for(ranks_here: int) -> str:
    """The backend for that many ranks on this machine: "nccl" with a GPU for each, else "gloo".

    Runs on: anywhere.

    Raises:
        ArgumentError: `ranks_here` is not a whole number of 1 or more.
    """
    whole_number("ranks_here", ranks_here, 1)
    return "gloo" if why_not_nccl(ranks_here) else "nccl"


def why_not_nccl(n: int) -> str | None:
    """Why nccl cannot serve `n` ranks on this machine, in a sentence or two; None where it can.

    Runs on: anywhere. Asking takes no GPU memory.
    """
    gpus = torch.cuda.device_count()
    seen = f"{gpus} GPU{'' if gpus == 1 else 's'}"
    if not dist.is_nccl_available():
        return f"This torch was built without nccl, and sees {seen}."
    if not gpus:
        return "There is no GPU here, and nccl only moves data that is on GPUs."
    if gpus < n:
        return f"nccl refuses two ranks on one GPU. {n} ranks need {n} GPUs, but torch sees {seen}."
    return None
