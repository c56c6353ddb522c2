"""Training runs that NVIDIA's Megatron-Bridge has published.

Plain data for published.py. `distlab_course.pretraining` only resembles its programs.

Megatron-Bridge hides what tensor parallelism gathers and scatters behind products by Transformer
Engine's own kernels, where its configurations have it. `async_tensor=True` resembles that, as
torch's compiler makes it. Its products add up the gradients of micro-batches, and weights in float8
are transposed once in a step, as `adds_in_products=True` does. Its configurations turn that off for
FSDP (`gradient_accumulation_fusion`, scripts/performance/utils/helpers.py and configs at v0.2.0).

Megatron-Bridge has a distributed optimizer (ZeRO-1), which gathers parameters in float8 and reduces
gradients in bfloat16 once in a step, as `reshard=False` does, but for rows that are named FSDP (its
scripts/performance/configs and recipes/utils, at 0fa501a). Its kernels are fused by hand and
launched one by one. Some rows capture all kernels of a step, or of a layer, in CUDA graphs: 30B
where 25.09 drops tokens ("cuda_graphs: true" at v0.1.0rc4) and in 26.08 ("full_iteration"). Others
capture attention and routers, and ours launches these. Each expert has products and casts of its
own in bfloat16 and on Hopper, and on Blackwell up to 26.04: see `experts_apart.py`; from 26.06 on
MXFP8 has one kernel for all (`cutedsl_fused_grouped_mlp` at v0.5.0). Its kernels send a token once
to each rank, and on hosts of 8 once to each host, where its configurations say DeepEP or HybridEP
(the same folder at v0.2.0 for 25.11 and at v0.4.0 for 26.04, perf_recipes at v0.6.0 for 26.08;
25.09 has DeepEP on H100 alone, and never where it drops tokens). Elsewhere a token goes to each of
its experts by an all-to-all.

What is computed again is as in the workload_base_configs of v0.2.0: five blocks of 8B on H100, and
of DeepSeek-V3 what makes queries, keys and values of short vectors ("mla_up_proj"), but on GB300.
There it is what is between the two halves of an expert ("moe_act"), and on H100 also the three
layers without experts ("mlp"): ours keep these.
"""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.published_rows import (
    B200,
    B200_HOSTS,
    EXPERTS,
    FLOAT8,
    GB200,
    GB200_RACKS,
    GB300,
    GB300_RACKS,
    H100,
    H100_HOSTS,
    PublishedTable,
    Row,
)
from distlab_course.engine import Engine
from distlab_course.sizes import SIZES

# Each expert computes as many rows as it has room for, as ours do whose tokens are spread evenly.
DROPPED = ", tokens dropped, 25.09"
ONCE_A_HOST: dict[str, Any] = {"dispatch": "hosts", "expert": 16}
ONCE_A_RANK: dict[str, Any] = {"dispatch": "ranks", "expert": 8}
PAIRS_OF_30B = {"pipeline": 2, "stages": 24, "expert": 8}
PIPELINE_OF_235B = {"pipeline": 8, "stages": 2, "expert": 8}
DEEP_70B = {"tensor": 4, "pipeline": 8, "stages": 5, "async_tensor": True}
DEEP_405B = {"tensor": 8, "pipeline": 8, "context": 2, "stages": 8, "async_tensor": True}
BRIDGE = (
    "github.com/NVIDIA-NeMo/Megatron-Bridge, docs/performance-summary-archive.md at 0a25f911, "
    "25.11, but for rows that name another release (26.08: docs/performance-summary.md); experts "
    "are chosen evenly, and no token is dropped but where a row says so"
)


def bridge(
    name: str,
    ranks: int,
    size: str,
    tokens: float,
    sequences: int,
    micro: int,
    length: int,
    *,
    float8: bool = True,
    captured: bool = False,
    apart: bool = True,
    dispatch: str = "experts",
    blocks_again: int = 0,
    long_again: bool = True,
    **layout: int,
) -> Row:
    """A row of Megatron-Bridge.

    Args:
        name: of the model, and what is special of it.
        ranks: how many GPUs.
        size: of the model, in SIZES.
        tokens: a second, of each GPU.
        sequences: in a step of all GPUs.
        micro: sequences of a micro-batch.
        length: of a sequence, in tokens.
        float8: whether products are in float8.
        captured: whether all kernels of a step are in a CUDA graph.
        apart: whether experts, if there are any, compute one after another.
        dispatch: as of `pretraining.train`.
        blocks_again: whose forward passes are computed again for the backward pass.
        long_again: whether so are the long vectors of latent attention, if there are any.
        layout: sizes of dimensions and `reshard`, as of `pretraining.train`.
    """
    replicas = ranks
    for dimension in ("tensor", "pipeline", "context"):
        replicas //= layout.get(dimension, 1)
    batch = sequences // replicas
    options: dict[str, Any] = {
        "batch": batch,
        "microbatches": batch // micro,
        "length": length,
        "recompute": "none",
        "steps": 1,
        "resumed": True,
        "reshard": False,
        "reduce_dtype": torch.bfloat16,
        "dispatch": dispatch,
        **layout,
    }
    options["engine"] = Engine(
        adds_in_products=not options["reshard"],  # which FSDP has
        experts_apart=apart and SIZES[size].experts is not None,
        casts_once=True,
        gathers_again=layout.get("tensor", 1) > 1,
        repeats_keys=False,
        recomputes_blocks=blocks_again,
        recomputes_long=long_again and SIZES[size].latent is not None,
    )
    if float8:
        options["float8"] = "gathered"
    kind = EXPERTS if SIZES[size].experts else FLOAT8
    return Row(
        name,
        ranks,
        SIZES[size],
        tokens,
        kind=kind,
        compiled="by hand",
        captured=captured,
        options=options,
    )


BRIDGE_H100 = PublishedTable(
    "Megatron-Bridge, H100",
    BRIDGE,
    H100,
    H100_HOSTS,
    [
        bridge("8B, FSDP", 8, "8B", 14451, 128, 1, 8192, reshard=True, blocks_again=5),
        bridge("70B, 128 sequences", 64, "70B", 1602, 128, 1, 8192, **DEEP_70B),
        bridge("70B, 256 sequences, 26.02", 64, "70B", 1621, 256, 1, 8192, **DEEP_70B),
        bridge("405B, 512 sequences", 1024, "405B", 292, 512, 1, 8192, **DEEP_405B),
        bridge("405B, 1,536 sequences, 26.02", 1024, "405B", 311, 1536, 1, 8192, **DEEP_405B),
        bridge("Qwen3 30B", 16, "Qwen3-30B-A3B", 5275, 512, 2, 4096, **PAIRS_OF_30B),
        bridge(f"Qwen3 30B{DROPPED}", 16, "Qwen3-30B-A3B", 10494, 512, 2, 4096, **PAIRS_OF_30B),
        bridge("Qwen3 30B, 26.04", 16, "Qwen3-30B-A3B", 8960, 1024, 1, 4096, **ONCE_A_HOST),
        bridge(
            "Qwen3 235B",
            256,
            "Qwen3-235B-A22B",
            1575,
            2048,
            1,
            4096,
            tensor=2,
            pipeline=8,
            stages=4,
            expert=32,
        ),
        bridge(
            "DeepSeek-V3",
            1024,
            "DeepSeek-V3",
            1297,
            8192,
            1,
            4096,
            dispatch="hosts",
            tensor=2,
            pipeline=8,
            stages=4,
            expert=64,
        ),
    ],
)
BRIDGE_B200 = PublishedTable(
    "Megatron-Bridge, B200",
    BRIDGE,
    B200,
    B200_HOSTS,
    [
        bridge("8B", 8, "8B", 30624, 128, 2, 8192, captured=True),
        bridge("405B", 128, "405B", 661, 64, 1, 8192, **{**DEEP_405B, "tensor": 4}),
        bridge("DeepSeek-V3", 256, "DeepSeek-V3", 2139, 2048, 1, 4096, pipeline=16, expert=8),
        bridge(
            f"DeepSeek-V3{DROPPED}",
            256,
            "DeepSeek-V3",
            2265,
            2048,
            1,
            4096,
            pipeline=16,
            expert=8,
        ),
        bridge("Qwen3 30B", 8, "Qwen3-30B-A3B", 9299, 512, 1, 4096, expert=8),
        bridge(
            f"Qwen3 30B{DROPPED}",
            8,
            "Qwen3-30B-A3B",
            18066,
            512,
            1,
            4096,
            captured=True,
            expert=8,
        ),
        bridge("Qwen3 30B, 26.04", 8, "Qwen3-30B-A3B", 27136, 512, 4, 4096, **ONCE_A_RANK),
        bridge("Qwen3 235B", 64, "Qwen3-235B-A22B", 3269, 1024, 1, 4096, **PIPELINE_OF_235B),
        bridge(
            f"Qwen3 235B{DROPPED}",
            64,
            "Qwen3-235B-A22B",
            4104,
            1024,
            1,
            4096,
            **PIPELINE_OF_235B,
        ),
    ],
)
BRIDGE_GB200 = PublishedTable(
    "Megatron-Bridge, GB200",
    BRIDGE,
    GB200,
    GB200_RACKS,
    [
        bridge("8B", 8, "8B", 31508, 128, 2, 8192, captured=True),
        bridge("70B, FSDP", 64, "70B", 4312, 256, 2, 8192, reshard=True),
        bridge("70B, FSDP, 26.02", 64, "70B", 4040, 256, 2, 8192, reshard=True),
        bridge(
            "405B",
            256,
            "405B",
            813,
            1536,
            1,
            8192,
            tensor=4,
            pipeline=16,
            stages=4,
            async_tensor=True,
        ),
        bridge(
            "DeepSeek-V3, bfloat16",
            256,
            "DeepSeek-V3",
            3139,
            4096,
            1,
            4096,
            float8=False,
            dispatch="ranks",
            pipeline=4,
            stages=4,
            expert=64,
        ),
        bridge("Qwen3 30B", 8, "Qwen3-30B-A3B", 23766, 512, 4, 4096, **ONCE_A_RANK),
        bridge(
            f"Qwen3 30B{DROPPED}",
            8,
            "Qwen3-30B-A3B",
            22775,
            512,
            4,
            4096,
            captured=True,
            expert=8,
        ),
        bridge(
            "Qwen3 30B, 26.08",
            8,
            "Qwen3-30B-A3B",
            39936,
            512,
            4,
            4096,
            captured=True,
            apart=False,
            **ONCE_A_RANK,
        ),
        bridge(
            "Qwen3 235B, bfloat16",
            256,
            "Qwen3-235B-A22B",
            4916,
            8192,
            1,
            4096,
            float8=False,
            dispatch="ranks",
            pipeline=8,
            stages=3,
            expert=32,
        ),
    ],
)
BRIDGE_GB300 = PublishedTable(
    "Megatron-Bridge, GB300",
    BRIDGE,
    GB300,
    GB300_RACKS,
    [
        bridge("8B", 8, "8B", 37556, 128, 2, 8192, captured=True),
        bridge("70B, FSDP", 64, "70B", 4520, 256, 2, 8192, reshard=True),
        bridge("70B, FSDP, 26.02", 64, "70B", 5003, 256, 2, 8192, reshard=True),
        bridge(
            "405B",
            256,
            "405B",
            999,
            1536,
            1,
            8192,
            tensor=2,
            pipeline=8,
            context=2,
            stages=4,
            async_tensor=True,
        ),
        bridge(
            "DeepSeek-V3, bfloat16",
            256,
            "DeepSeek-V3",
            3848,
            4096,
            1,
            4096,
            float8=False,
            dispatch="ranks",
            long_again=False,
            pipeline=2,
            stages=4,
            expert=32,
        ),
        bridge("Qwen3 30B", 8, "Qwen3-30B-A3B", 28934, 512, 4, 4096, **ONCE_A_RANK),
        bridge(
            "Qwen3 235B, bfloat16",
            256,
            "Qwen3-235B-A22B",
            6131,
            8192,
            2,
            4096,
            float8=False,
            dispatch="ranks",
            pipeline=4,
            stages=12,
            expert=16,
        ),
    ],
)
