"""What has been published of training runs: steps that benchmarks/predictions.py predicts.

Plain data, with the source of each table. A device has one number that is calibrated, its
efficiency, by the first row of its table; all else follows.

TorchTitan's tables come with the source of their program, which `distlab_course.pretraining` does
over again. The programs of the others only resemble it:

- Llama 3's paper gives FLOP/s, which count half of what attention could see.
- Megatron-LM's GPT has two matrices in its feed-forward part, ours has three that are shorter.
- Megatron-Bridge hides what tensor parallelism gathers and scatters behind products by Transformer
  Engine's own kernels, where its configurations have it. `async_tensor=True` resembles that, as
  torch's compiler makes it. Its products add up the gradients of micro-batches, and weights in
  float8 are transposed once in a step, as `adds_in_products=True` does. Its configurations turn
  that off for FSDP (`gradient_accumulation_fusion`, scripts/performance/utils/helpers.py and
  configs at v0.2.0).
  Megatron-Bridge has a distributed optimizer (ZeRO-1), which gathers parameters in float8 and
  reduces gradients in bfloat16 once in a step, as `reshard=False` does, but for rows that are named
  FSDP (its scripts/performance/configs and recipes/utils, at 0fa501a). Its kernels are fused by
  hand and launched one by one. Some rows capture all kernels of a step, or of a layer, in CUDA
  graphs: 30B where 25.09 drops tokens ("cuda_graphs: true" at v0.1.0rc4) and in 26.08
  ("full_iteration"). Others capture attention and routers, and ours launches these. Each expert has
  products and casts of its own in bfloat16 and on Hopper, and on Blackwell up to 26.04: see
  `experts_apart.py`; from 26.06 on MXFP8 has one kernel for all (`cutedsl_fused_grouped_mlp` at
  v0.5.0). Its kernels send a token once to each rank, and on hosts of 8 once to
  each host, where its configurations say DeepEP or HybridEP (the same folder at v0.2.0 for 25.11
  and at v0.4.0 for 26.04, perf_recipes at v0.6.0 for 26.08; 25.09 has DeepEP on H100 alone, and
  never where it drops tokens). Elsewhere a token goes to each of its experts by an all-to-all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from distlab import Device, Network
from distlab_course.sizes import SIZES, Size

GIB = 1 << 30
DENSE = "dense"
FLOAT8 = "float8"
EXPERTS = "experts"


@dataclass(frozen=True)
class Row:
    """What was published of a program on some GPUs.

    Attributes:
        name: of the model, and what is special of it.
        ranks: how many GPUs.
        size: of the model.
        tokens: a second, of each GPU; None if that was not published.
        memory: what torch reserves, in GiB, or in words; None if that was not published.
        kind: DENSE, FLOAT8 or EXPERTS.
        compiled: whether torch.compile was used; "by hand" for kernels that were fused by hand, as
            of `distlab.predict`.
        captured: whether all kernels of a step are in a CUDA graph, so that no processor launches
            them.
        options: of `distlab_course.pretraining.train`.
    """

    name: str
    ranks: int
    size: Size
    tokens: float | None
    memory: float | str | None = None
    kind: str = DENSE
    compiled: bool | str = False
    captured: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PublishedTable:
    """Rows of one program on machines of one kind.

    Attributes:
        title: what they have in common.
        source: where they were published.
        device: the GPU.
        hosts: the machines, of which there are as many as a row needs.
        rows: the first one calibrates the device.
    """

    title: str
    source: str
    device: Device
    hosts: Network
    rows: list[Row]

    def machines(self, ranks: int) -> Network:
        """So many GPUs of these machines; fewer than a host has are in one."""
        (in_host,) = self.hosts.hosts
        if ranks <= in_host:
            return replace(self.hosts, hosts=[ranks])
        whole, left = divmod(ranks, in_host)
        hosts = [in_host] * whole
        if left:
            hosts.append(left)
        return replace(self.hosts, hosts=hosts)


@dataclass(frozen=True)
class Question:
    """How much quicker or slower a step is in the second row than in the first one.

    Attributes:
        text: in words.
        table: its title.
        first, second: the names of the rows.
    """

    text: str
    table: str
    first: str
    second: str


# --- machines ---

# Between the quickest and the slowest GPU of one kind lie 8 %, without outliers (Sinha et al.,
# SC22, arXiv 2208.11035), which are 5.4 standard deviations.
SPREAD = 0.015
H100_500W = Device.named("H100", memory_bandwidth="2.4 TB/s", memory="95 GiB", spread=SPREAD)
H100 = Device.named("H100", attention="cudnn", spread=SPREAD)
H200 = Device.named("H200", spread=SPREAD)
A100 = Device.named("A100", spread=SPREAD)
B200 = Device.named("B200", spread=SPREAD)
GB200 = Device.named("GB200", spread=SPREAD)
GB300 = Device.named("GB300", spread=SPREAD)

A100_HOSTS = Network.named("A100 hosts")
H100_HOSTS = Network.named("H100 hosts")
B200_HOSTS = Network.named("B200 hosts")
# 64 of a rack's 72 GPUs, as numbers of GPUs are powers of two
GB200_RACKS = Network.named("GB200 NVL72", hosts=[64], rails=64)
GB300_RACKS = Network.named("GB300 NVL72", hosts=[64], rails=64)
# --- TorchTitan ---

LLAMA2 = {
    "13B": Size(5120, 40, 40, 13824, kv_heads=40, vocabulary=32000),
    "70B": Size(8192, 80, 64, 28672, vocabulary=32000),
}
FULL = {"recompute": "full"}
EVERY_SECOND = {"recompute": "layer"}
NOTHING = {"recompute": "none"}
SHORT = {"length": 4096}
TWO = {"batch": 2}
ONE = {"batch": 1}
IN_FLOAT8 = {"float8": "yes"}
GATHERED_IN_FLOAT8 = {"float8": "gathered"}
# since 2025 TorchTitan compiles the loss as well (torchtitan/components/loss.py)
WITH_LOSS = {"compiles_loss": True}
TENSOR = {"tensor": 8, "recompute": "full"}
SMALL_TENSOR = {"tensor": 8, "batch": 12} | WITH_LOSS
LARGE_TENSOR = TENSOR | {"batch": 16} | WITH_LOSS
# As many micro-batches as the pipeline is long, as TorchTitan has it if nobody says a number
# (torchtitan/parallelisms/pipelining_utils.py at 9dec370). Bubbles say so too: 7 of 15 and 3.5 of
# 11.5 parts of a step make the interleaved pipeline 1.30 times as quick, and 1.28 were measured.
# Both had asynchronous tensor parallelism.
ASYNC = {"async_tensor": True}
PIPELINE = TENSOR | IN_FLOAT8 | ASYNC | {"pipeline": 8, "batch": 32, "steps": 1, "resumed": True}


def compiled(
    name: str,
    ranks: int,
    size: str,
    tokens: float,
    memory: float | None,
    options: Mapping[str, Any],
) -> Row:
    """A step whose blocks are compiled, each by itself, in float8 if its options say so."""
    kind = FLOAT8 if "float8" in options else DENSE
    return Row(
        name,
        ranks,
        SIZES[size],
        tokens,
        memory,
        kind,
        compiled=True,
        options={"compiles": True, **options},
    )


def long(name: str, tokens: float, memory: float, context: int) -> Row:
    """8B on 8 GPUs, of which some share a sequence of 32,768 tokens for each of them."""
    options = ONE | FULL | IN_FLOAT8 | {"length": 32768 * context, "context": context}
    return compiled(name, 8, "8B", tokens, memory, options)


TITAN_H100 = PublishedTable(
    "TorchTitan, H100",
    "github.com/pytorch/torchtitan, benchmarks/llama3_h100_202412_torchtitan.md and "
    "asyncTP_llama3_h100_2025-06_torchtitan.md at 2887250: 96 GB of HBM2e at 2.4 TB/s, limited to "
    "500 W, and 400 Gb/s a GPU",
    H100_500W,
    H100_HOSTS,
    [
        Row("8B on 8", 8, SIZES["8B"], 5762, 82.4, options=TWO),
        Row("8B on 128", 128, SIZES["8B"], 5605, 67.0, options=TWO),
        compiled("8B on 8, compiled", 8, "8B", 6667, 77.0, TWO),
        compiled("8B on 128, compiled", 128, "8B", 6514, 62.0, TWO),
        compiled("8B on 8, float8", 8, "8B", 8532, 76.8, TWO | IN_FLOAT8),
        compiled("8B on 128, float8", 128, "8B", 8380, 61.8, TWO | IN_FLOAT8),
        long("8B, 32,768 tokens, float8", 3890, 83.9, 1),
        long("8B, 65,536 tokens on 2, float8", 2540, 84.2, 2),
        long("8B, 131,072 tokens on 4, float8", 1071, 84.0, 4),
        long("8B, 262,144 tokens on 8, float8", 548, 84.5, 8),
        # these eight are of 2025
        compiled("8B, tensors on 8", 64, "8B", 4378, None, SMALL_TENSOR),
        compiled("8B, tensors on 8, async", 64, "8B", 4809.4, None, SMALL_TENSOR | ASYNC),
        compiled("8B, tensors on 8, float8", 64, "8B", 5078.1, None, SMALL_TENSOR | IN_FLOAT8),
        compiled(
            "8B, tensors on 8, float8, async",
            64,
            "8B",
            5570.1,
            None,
            SMALL_TENSOR | IN_FLOAT8 | ASYNC,
        ),
        compiled("70B, tensors on 8", 256, "70B", 597.3, None, LARGE_TENSOR),
        compiled("70B, tensors on 8, async", 256, "70B", 652.4, None, LARGE_TENSOR | ASYNC),
        compiled(
            "70B, tensors on 8, float8, 2025",
            256,
            "70B",
            809.8,
            None,
            LARGE_TENSOR | IN_FLOAT8,
        ),
        compiled(
            "70B, tensors on 8, float8, async, 2025",
            256,
            "70B",
            942.4,
            None,
            LARGE_TENSOR | IN_FLOAT8 | ASYNC,
        ),
        compiled(
            "70B, tensors on 8, float8", 256, "70B", 829, 71.9, TENSOR | IN_FLOAT8 | {"batch": 16}
        ),
        compiled(
            "70B, tensors on 8, float8, async",
            256,
            "70B",
            876,
            67.6,
            TENSOR | IN_FLOAT8 | ASYNC | {"batch": 16},
        ),
        compiled("405B, tensors on 8", 128, "405B", 109, None, TENSOR | TWO),
        compiled("405B, pipeline of 8, float8", 512, "405B", 100, 82.5, PIPELINE),
        compiled(
            "405B, interleaved pipeline of 8, float8",
            512,
            "405B",
            128,
            72.7,
            PIPELINE | {"stages": 2},
        ),
    ],
)
TITAN_H200 = PublishedTable(
    "TorchTitan, H200",
    "github.com/pytorch/torchtitan, benchmarks/llama3-8b_h200_202506_trainy-whitefiber.md",
    H200,
    H100_HOSTS,
    [
        compiled("8B on 32, float8", 32, "8B", 10938, 47.96, TWO | GATHERED_IN_FLOAT8 | WITH_LOSS),
        compiled("8B on 64, float8", 64, "8B", 10753, 46.97, TWO | GATHERED_IN_FLOAT8 | WITH_LOSS),
    ],
)
TITAN_A100 = PublishedTable(
    "TorchTitan, A100",
    "github.com/pytorch/torchtitan, docs/performance.md at 157a12c and 4d88a8a: 64 GPUs of 80 GB; "
    "its network is not named: 8 x 200 Gb/s are assumed, as Llama 2's paper has them",
    A100,
    A100_HOSTS,
    [
        Row("8B", 64, SIZES["8B"], 2973, options=ONE),
        Row("8B, every second block", 64, SIZES["8B"], 2904, options=ONE | EVERY_SECOND),
        Row("70B, all again", 64, SIZES["70B"], 331, options=ONE | FULL),
        Row("Llama 2 13B, nothing again", 64, LLAMA2["13B"], 2162, options=SHORT | NOTHING),
        Row("Llama 2 13B, every second", 64, LLAMA2["13B"], 1914, options=SHORT | EVERY_SECOND),
        Row("Llama 2 13B", 64, LLAMA2["13B"], 1904, options=SHORT),
        Row("Llama 2 70B, one sequence", 64, LLAMA2["70B"], 355, options=SHORT | ONE),
        Row("Llama 2 70B, all again", 64, LLAMA2["70B"], 353, options=SHORT | FULL),
        Row("Llama 2 70B", 64, LLAMA2["70B"], None, "too much", options=SHORT),
    ],
)

# --- papers ---

HERD = {"tensor": 8, "pipeline": 16, "stages": 8, "recompute": "none", "steps": 1, "resumed": True}
GPT = {
    "22B": Size(6144, 48, 64, 16384, kv_heads=64, vocabulary=51200),
    "175B": Size(12288, 96, 96, 32768, kv_heads=96, vocabulary=51200),
}
# Megatron fuses by hand what a compiler would
MEGATRON = {"tensor": 8, "length": 2048, "recompute": "none", "compiles": True}
DEEP = {"pipeline": 8, "stages": 3, "batch": 64, "microbatches": 64, "steps": 1, "resumed": True}


def herd(
    name: str, ranks: int, flops: float, sequences: int, length: int = 8192, context: int = 1
) -> Row:
    """405B on its pipeline of 16, with so many micro-batches of one sequence.

    Args:
        name: what is special of it.
        ranks: how many GPUs.
        flops: that each GPU reached, a second.
        sequences: in a step of one pipeline.
        length: of a sequence, in tokens.
        context: how many ranks share a sequence.
    """
    options = HERD | {
        "batch": sequences,
        "microbatches": sequences,
        "length": length,
        "context": context,
    }
    of_a_token = 6 * 404e9 + 6 * 126 * 16384 * length
    return Row(name, ranks, SIZES["405B"], round(flops / of_a_token), options=options)


LLAMA3_PAPER = PublishedTable(
    "Llama 3's paper, H100",
    "The Llama 3 Herd of Models, arXiv 2407.21783, table 4: 80 GB at 700 W, 400 Gb/s a GPU; one "
    "layer a stage, as the bubbles say that are given for the pipeline",
    H100,
    H100_HOSTS,
    [
        herd("405B, 32 micro-batches", 8192, 430e12, 32),
        herd("405B, 16 micro-batches", 16384, 400e12, 16),
        herd("405B, a context of 131,072 on 16", 16384, 380e12, 16, 131072, 16),
    ],
)
MEGATRON_LM = PublishedTable(
    "Megatron-LM, A100",
    "Reducing Activation Recomputation in Large Transformer Models, arXiv 2205.05198, tables 3 and "
    '5, "present work": hosts of 8 with 200 Gb/s a GPU; published are seconds',
    A100,
    A100_HOSTS,
    [
        Row(
            "GPT 22B, tensors on 8",
            8,
            GPT["22B"],
            931,
            compiled=True,
            options=MEGATRON | {"batch": 4},
        ),
        Row(
            "GPT 175B, a pipeline of 8",
            64,
            GPT["175B"],
            149,
            compiled=True,
            options=MEGATRON | DEEP,
        ),
    ],
)

# --- Megatron-Bridge ---

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
        "experts_apart": apart and SIZES[size].experts is not None,
        **layout,
    }
    options["adds_in_products"] = not options["reshard"]  # which FSDP has
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
        bridge("8B, FSDP", 8, "8B", 14451, 128, 1, 8192, reshard=True),
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
        bridge("8B", 8, "8B", 31508, 128, 2, 8192),
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

TABLES = (
    TITAN_H100,
    TITAN_H200,
    TITAN_A100,
    LLAMA3_PAPER,
    MEGATRON_LM,
    BRIDGE_H100,
    BRIDGE_B200,
    BRIDGE_GB200,
    BRIDGE_GB300,
)
QUESTIONS = (
    Question("8 to 128 GPUs", "TorchTitan, H100", "8B on 8", "8B on 128"),
    Question(
        "8 to 128 GPUs, compiled", "TorchTitan, H100", "8B on 8, compiled", "8B on 128, compiled"
    ),
    Question("8 to 128 GPUs, float8", "TorchTitan, H100", "8B on 8, float8", "8B on 128, float8"),
    Question("32 to 64 GPUs", "TorchTitan, H200", "8B on 32, float8", "8B on 64, float8"),
    Question(
        "8,192 to 16,384 GPUs",
        "Llama 3's paper, H100",
        "405B, 32 micro-batches",
        "405B, 16 micro-batches",
    ),
    Question(
        "three times as many sequences",
        "Megatron-Bridge, H100",
        "405B, 512 sequences",
        "405B, 1,536 sequences, 26.02",
    ),
)
