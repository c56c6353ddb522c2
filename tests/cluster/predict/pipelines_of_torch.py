"""The pipelines that torch's own compiler makes of a block, without running any: as a program.

Its arguments are numbers of sequences; it prints JSON, a list for each. Tried with torch 2.13.
"""

import copy
import json
import sys
from collections import Counter

import torch
import torch.distributed as dist
from functorch.compile import min_cut_rematerialization_partition
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes import joint_graph, micro_pipeline_tp
from torch._inductor.fx_passes.post_grad import view_to_reshape
from torch.distributed import _symmetric_memory
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from distlab_course.dividing import split
from distlab_course.llama import Llama
from tests.cluster.predict.test_micro_pipelined import BLOCK, PLACES, RANKS

FUSED = ("fused_all_gather_matmul", "fused_matmul_reduce_scatter")


def main():
    dist.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    torch.distributed.is_nccl_available = lambda: True  # or torch makes no pipelines
    mesh = init_device_mesh("cpu", (RANKS,), mesh_dim_names=("tensor",))
    print(json.dumps([pipelines(mesh, int(sequences)) for sequences in sys.argv[1:]]))


def pipelines(mesh, sequences):
    """How often the compiler makes each of FUSED in a block's passes over so many sequences."""
    torch._dynamo.reset()
    model = Llama(BLOCK)
    split(model, mesh)
    (block,) = model.blocks.values()
    found = Counter()

    def count(graph, _):
        changed = copy.deepcopy(graph)
        view_to_reshape(changed)
        with _symmetric_memory._test_mode():
            micro_pipeline_tp.micro_pipeline_tp_pass(changed.graph)
        for node in changed.graph.nodes:
            found.update(name for name in FUSED if name in str(node.target))
        return graph.forward

    def partition(graph, *args, **kwargs):
        joint_graph.joint_graph_passes(graph, torch.device("cpu"))
        return min_cut_rematerialization_partition(graph, *args, **kwargs)

    backend = aot_autograd(
        fw_compiler=count,
        bw_compiler=count,
        partition_fn=partition,
        decompositions=select_decomp_table(),
    )
    block.forward = torch.compile(block.forward, backend=backend)
    part = torch.randn(sequences, PLACES // RANKS, BLOCK.width, requires_grad=True)
    result = block(part)
    result.backward(torch.ones_like(result))
    return [found[name] for name in FUSED]


if __name__ == "__main__":
    main()
