"""Communication hooks for DistributedDataParallel: how the gradients of a bucket become their average.

Called on every rank; plain PyTorch, so the same code runs under `torchrun`. Notebook 05 builds the core of it.
"""

# No `from __future__ import annotations` here: DDP compares the hook's annotations with the classes themselves.

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist

Hook = Callable[[Any, dist.GradBucket], torch.futures.Future[torch.Tensor]]


def averaging_hook(all_reduce: Callable[..., Any]) -> Hook:
    """A hook that averages each bucket with an all-reduce of one's own, while backward goes on.

        ddp.register_comm_hook(None, hooks.averaging_hook(distlab.algorithms.ALL_REDUCE["ring"]))

    The buckets are averaged one after the other, in the order in which they come, by a thread of the hook's own. An
    error in it is raised by backward.

    Runs on: every rank of the group (a rank that skips it hangs the rest). A hook serves one model.

    Args:
        all_reduce: called as all_reduce(tensor, group=group), with a flat tensor that it changes in place to the sum of
            all ranks'. The group is what was given to register_comm_hook as its state, None for the default one.

    Source: the hook's form is torch.distributed.algorithms.ddp_comm_hooks.default_hooks.allreduce_hook's.
    """
    thread = ThreadPoolExecutor(1, thread_name_prefix="averaging hook")

    def hook(group: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        flat, done, failed = bucket.buffer(), torch.futures.Future(), []

        def average() -> None:
            try:
                all_reduce(flat.div_(dist.get_world_size(group)), group=group)
            except BaseException as error:
                failed.append(error)
            done.set_result(None)

        def value(_: Any) -> torch.Tensor:
            if failed:  # DDP sees an error of a callback, and takes one that is set for a value
                raise failed[0]
            return flat

        thread.submit(average)
        return done.then(value)

    return hook
