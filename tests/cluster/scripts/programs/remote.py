"""Remote calls without a process group."""

import os

import torch
import torch.distributed.rpc as rpc

rank = int(os.environ["RANK"])
rpc.init_rpc(f"worker{rank}", rank=rank, world_size=int(os.environ["WORLD_SIZE"]))
if rank == 0:
    print(rpc.rpc_sync("worker1", torch.add, args=(torch.ones(2), 1)).tolist())
rpc.shutdown()
