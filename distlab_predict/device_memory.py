"""What of a device's memory a program takes up: what torch reserves, and what else is there.

Called by prediction.py, on the notebook's kernel. A device without a name stands for anything, so
there only the program's own storages count. On a named GPU three more things do, as nvidia-smi
sees them:

Fragmentation: what torch's caching allocator reserves and no storage uses; see allocator.py.

The CUDA context, with torch's kernels: 0.47 to 0.92 GiB with torch 2.1 on an A100
(github.com/stas00/ml-engineering, training/performance, "Preloaded CUDA kernels memory usage"),
depending on how many kernels a program loads. The middle is taken.

NCCL's buffers, by communicator: for each channel and neighbour 10 MiB to receive (4 MiB for the
protocol Simple, 4.7 for LL128, 0.5 for LL, rounded) and 2 MiB to send (github.com/NVIDIA/nccl,
init.cc and transport/p2p.cc; issue 1685 lists these sizes). A ring and a tree have two neighbours,
in 24 channels within a host and 16 between hosts, which is 576 and 384 MiB. Measured were 544 MiB
with 2 GPUs, 688 MiB with 4 (issue 964), and 737 MiB (ml-engineering, what is free again after a
group of 2 is destroyed). Messages have 32 channels, which peers share if they are more than 8; 8
GPUs that exchange messages need 2.6 GiB by this rule, and 3.3 GiB by issue 1685. Those between
hosts share their buffers.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from distlab.simulated.network import Network
from distlab_predict.held import FRAGMENTATION
from distlab_predict.nodes import PRODUCT, Call, Kernel, Recording

if TYPE_CHECKING:
    from distlab_predict.prediction import Prediction

MEBIBYTE = 1 << 20
CONTEXT = "CUDA context"
NCCL = "NCCL's buffers"
WORKSPACES = "cuBLAS's workspaces"
OUTSIDE = (CONTEXT, NCCL)  # of what torch reserves

CONTEXT_BYTES = 700 * MEBIBYTE
# Hopper's; one for the thread of the forward pass, and one for that of the backward pass, as torch
# has a handle for each (ATen/cuda/CublasHandlePool.cpp)
WORKSPACE_BYTES = 2 * 32 * MEBIBYTE
NEIGHBOUR_BYTES = 12 * MEBIBYTE
NEIGHBOURS = 2
CHANNELS_IN_HOST = 24
CHANNELS_BETWEEN_HOSTS = 16
MESSAGE_CHANNELS = 32
PEERS_AT_ONCE = 8  # that messages' channels serve, NCCL_MAX_DEV_WORK_P2P_PER_BATCH


@dataclass(frozen=True)
class Use:
    """What a rank takes of its device's memory.

    Attributes:
        recording: what the rank has noted.
        sizes: bytes by what they are.
        reserved: bytes that torch reserves, as torch.cuda.max_memory_reserved has them.
        needed: bytes of all that is there, if torch gave back in time what it keeps for later.
    """

    recording: Recording
    sizes: dict[str, int]
    reserved: int
    needed: int

    @property
    def total(self) -> int:
        """Bytes of all that is there."""
        return sum(self.sizes.values())


def uses_of(prediction: Prediction) -> list[Use]:
    """What each recorded rank takes."""
    uses = []
    for recording in prediction.recordings:
        if prediction.device.name:
            uses.append(_use_of_gpu(recording, prediction.network))
        else:
            uses.append(_use(recording))
    return uses


def _use(recording: Recording) -> Use:
    """What a rank takes of a device that has no name: what its storages need."""
    storages = sum(recording.peak.values())
    reserved = max(storages, recording.held.reserved)
    return Use(recording, recording.peak, reserved, storages)


def _use_of_gpu(recording: Recording, network: Network) -> Use:
    """What a rank takes of a GPU."""
    plain = _use(recording)
    sizes = dict(recording.peak)
    unused = plain.reserved - plain.total
    has_products = any(
        isinstance(node, Kernel) and node.kind == PRODUCT for node in recording.nodes
    )
    workspaces = WORKSPACE_BYTES if has_products else 0
    outside = {CONTEXT: CONTEXT_BYTES, NCCL: nccl_bytes(recording, network)}
    for kind, size in {FRAGMENTATION: unused, WORKSPACES: workspaces, **outside}.items():
        if size:
            sizes[kind] = size
    needed = recording.held.needed + workspaces + sum(outside.values())
    return Use(recording, sizes, plain.reserved + workspaces, needed)


def nccl_bytes(recording: Recording, network: Network) -> int:
    """Bytes of NCCL's buffers in the memory of a rank, of all communicators that it uses."""
    collective: set[tuple[int, ...]] = set()
    peers: defaultdict[tuple[int, ...], set[int]] = defaultdict(set)
    for node in recording.nodes:
        if not isinstance(node, Call) or len(node.members) == 1:
            continue
        if node.peer is not None:
            peers[node.members].add(node.peer)
        elif node.name == "all_to_all":
            peers[node.members].update(node.members)
        else:
            collective.add(node.members)
    found = 0
    for members in collective:
        in_host = network.host_of(min(members)) == network.host_of(max(members))
        channels = CHANNELS_IN_HOST if in_host else CHANNELS_BETWEEN_HOSTS
        found += NEIGHBOURS * channels * NEIGHBOUR_BYTES
    own_host = network.host_of(recording.rank)
    for members, others in peers.items():
        rounds = -(-len(members) // PEERS_AT_ONCE)
        channels = max(1, MESSAGE_CHANNELS // rounds)
        near = [one for one in others if network.host_of(one) == own_host]
        found += len(set(near) - {recording.rank}) * channels * NEIGHBOUR_BYTES
    return found
