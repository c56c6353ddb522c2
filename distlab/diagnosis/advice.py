"""What to do about errors that learners meet, by the words of torch, Python and the system.

No process is asked. Runs on the notebook's kernel, called by starting.py and processes.py, and by
failures.py, endings.py and joining.py beside it.
"""

import re

from distlab.wire.messages import Failure

# what torch and Python raise on a rank, as a pattern for "kind: message", and what to do about it;
# the first that fits counts
ADVICE = {
    (
        r"Could not resolve the process group|is not initialized in the world group map|"
        r"Group <[^<>]*> is not registered"
    ): (
        "This belongs to a process group that has since been rebuilt or destroyed. Make it "
        "again: a device mesh with mesh = init_device_mesh(...), a group with "
        "dist.new_group(...), and every model or DTensor that is on them."
    ),
    # torch's mark of a group that the rank is not in
    r"Invalid process group|[Gg]roup -100": (
        "This rank is not in that group. Make the call only on members of the group."
    ),
    r"Pair is not": (
        "With gloo a rank cannot send to itself or receive from itself: copy the tensor with "
        "copy_()."
    ),
    r"No backend type associated with device type": (
        "This group's backend takes no tensors on that device or, if it is a Python class, "
        "has no method for this call: move the tensors with to(...), or add the method."
    ),
    (
        r"ProcessExitedException: process \d+ terminated with exit code 1$|"
        r"Can't (pickle|get) (<func|local)"
    ): (
        "A new process imports its function from a file, so write it into one with %%writefile "
        "work.py, and import it from there."
    ),
    r"Mesh should not be bigger than default world size": (
        "The sizes of a mesh must multiply to the number of ranks: init_device_mesh('cpu', "
        "(world_size,)), or (2, world_size // 2)."
    ),
    (
        r"support for cuda dev|with CUDA enabled|'_cuda_|requires CUDA|NCCL built in|"
        r"access accelerator|No CUDA GPUs|NVIDIA driver|device_ids and output_device|"
        r"driver version is insufficient|no CUDA-capable"
    ): (
        "Here the device is the CPU: write device='cpu' and init_device_mesh('cpu', ...), and "
        "leave out torch.cuda, .cuda() and device_ids."
    ),
    r"FSDP needs a non-CPU": (
        "Write FullyShardedDataParallel(..., device_id=torch.device('cpu')), or fully_shard(...)."
    ),
    (
        r"outputShape\[0\] \* worldSize == inputShape\[0\]|"
        r"invalid output tensor list at index 0 \(expected length"
    ): (
        "The larger tensor of this call must be exactly world_size times as long as the "
        "smaller one, so cut it or pad it."
    ),
    r"asyncio.run\(\) cannot be called from a running": (
        "Cells already run in an event loop, so write await main() instead of asyncio.run(main())."
    ),
    r"RPC has not been initialized": (
        "Call rpc.init_rpc(...) on every rank, and again after a cell that was freed."
    ),
    r"expect_autograd_hooks_": (
        "DDP(static_graph=True) expects each backward pass to be like the first. Run the first "
        "outside of no_sync(), or leave out static_graph."
    ),
    r"got mixed torch.Tensor and DTensor": (
        "A DTensor can be combined only with DTensors on the same mesh. Make the other tensor a "
        "DTensor with distribute_tensor(t, mesh, [Replicate()]), or take this rank's part of the "
        "DTensor with to_local()."
    ),
    r"initialize the default process group twice": (
        "There is a process group already, which this program or an earlier cell has made: leave "
        "init_process_group out, or call dist.destroy_process_group() first."
    ),
    r"raw_input was called|EOF when reading a line": (
        "Ranks have no keyboard. Call input() in a cell without %%px, and send the answer to the "
        'ranks with cluster.push({"name": value}).'
    ),
    r"No space left on device": (
        "A file system is full. It is /dev/shm if a DataLoader has workers or processes share "
        "tensors (num_workers=0 needs none of it, and docker run --shm-size=1g gives more). "
        "Otherwise it is a disk."
    ),
    r"'NoneType' object has no attribute 'wait'": (
        "A call returns a Work to wait for only with async_op=True."
    ),
}
# what Python, C++ and libraries of threads say when the system refuses a process or a thread
NO_MORE_PROCESSES = re.compile(
    r"can't start new thread|RuntimeError: Resource temporarily unavailable|"
    r"unavailable \(src/thread|could not be forked|Thread creation failed|"
    r"pthread_create failed|BlockingIOError: .*Resource temporarily unavailable"
)
END_SOME_PROCESSES = (
    "This machine, or your container, allows no more processes and threads. End some, use "
    "fewer ranks, or raise the limit (`ulimit -u 4096` in the shell that starts Python or "
    "Jupyter, or docker run --pids-limit 1024)."
)
CALLED_WITHOUT_RANK = re.compile(r"\(\) (takes \d+ positional|missing \d+ required positional)")
RANK_AND_WORLD_SIZE = (
    "cluster.run(fn, *args) calls fn(rank, world_size, *args): the function's first two "
    "parameters are the rank and the number of ranks."
)


def advice_for(failed: Failure) -> str:
    """What to do about an exception of a rank, if that is known; "" otherwise."""
    # where no line of the learner's ran, the call itself was wrong
    is_call_itself = failed.kind == "TypeError" and not failed.lines
    if is_call_itself and CALLED_WITHOUT_RANK.search(failed.message):
        return RANK_AND_WORLD_SIZE
    text = f"{failed.kind}: {failed.message}"
    for pattern, words in ADVICE.items():
        if re.search(pattern, text):
            return words
    # the same kind is raised by a read that would have to wait
    if failed.kind == "BlockingIOError" and "fork" not in failed.traceback:
        return ""
    return on_limit_of_processes(text)


def on_limit_of_processes(words: str) -> str:
    """What to do if the system has refused a process or a thread, by these words; "" otherwise."""
    return END_SOME_PROCESSES if NO_MORE_PROCESSES.search(words) else ""
