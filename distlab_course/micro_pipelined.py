"""Asynchronous tensor parallelism, of which the switches are private in torch.

Called by pretraining.py, on ranks with GPUs, or in predict's process. As in TorchTitan
(torchtitan/distributed/tensor_parallel.py).
"""

import warnings

import torch.distributed as dist
from torch.distributed import _symmetric_memory


def pipeline_products(group: dist.ProcessGroup) -> None:
    """Have torch.compile gather, multiply and scatter in parts, on the ranks of this group.

    Args:
        group: of ranks whose GPUs are joined by NVLink.
    """
    from torch._inductor import config  # it takes a second to import

    config._micro_pipeline_tp = True
    with warnings.catch_warnings():
        # torch calls it needless, and its compiler still looks for it
        warnings.simplefilter("ignore", FutureWarning)
        _symmetric_memory.enable_symm_mem_for_group(group.group_name)
