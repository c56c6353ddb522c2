"""What has been published of training runs: steps that benchmarks/predictions.py predicts.

Plain data, with the source of each table.
TorchTitan's tables come with the source of their program, which `distlab_course.pretraining` does
over again. The programs of the others only resemble it:

- Llama 3's paper gives FLOP/s, which count half of what attention could see.
- Megatron-LM's GPT has two matrices in its feed-forward part, ours has three that are shorter.
- Of Megatron-Bridge's, published_megatron_bridge.py says how they differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.published_megatron_bridge import (
    BRIDGE_B200,
    BRIDGE_GB200,
    BRIDGE_GB300,
    BRIDGE_H100,
)
from benchmarks.published_rows import (
    A100,
    A100_HOSTS,
    DENSE,
    FLOAT8,
    H100,
    H100_500W,
    H100_HOSTS,
    H200,
    PublishedTable,
    Question,
    Row,
)
from distlab_course.sizes import SIZES, Size

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
