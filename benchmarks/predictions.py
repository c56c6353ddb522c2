"""Predictions beside published measurements, as tables in benchmarks/README.md.

Run it with `python -m benchmarks.predictions`.

TorchTitan has published what its programs reach, and its source says what they do;
`distlab_course.pretraining` does the same. A device has one number that is calibrated, its
efficiency, by the first row of its table; all else follows.

A100: github.com/pytorch/torchtitan, docs/performance.md at 157a12c; 64 GPUs of 80 GB, FSDP, 8,192
tokens a sequence. H100: benchmarks/llama3_h100_202412_torchtitan.md and
asyncTP_llama3_h100_2025-06_torchtitan.md at 2887250; 96 GB of HBM2e at 2.4 TB/s, limited to 500 W,
and 400 Gb/s a GPU.

Two more tables are of programs that only resemble ours:

Llama 3's paper (arXiv 2407.21783, table 4): 80 GB at 700 W, 400 Gb/s a GPU. A stage has one layer,
as the bubbles say that are given for the pipeline. Published are FLOP/s, which count half of what
attention could see. Megatron-LM (arXiv 2205.05198, tables 3 and 5, "present work"): GPT on hosts of
8 A100 with 200 Gb/s a GPU; published are seconds. Larger models, with 280 and 512 micro-batches,
would take predict an hour.
"""

from __future__ import annotations

import functools
import os
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import distlab
from distlab import Device, Link, Network
from distlab_course.llama import SIZES, Size
from distlab_course.pretraining import train
from distlab_predict.prediction import Prediction

GIB = 1 << 30
# NCCL's kernels have some 16 of a GPU's 132 (108) multiprocessors
H100 = Device(
    "989 TFLOP/s", memory_bandwidth="2.4 TB/s", memory=95 * GIB, contention=16 / 132, spread=0.01
)
FLOAT8 = replace(H100, flops="1979 TFLOP/s", efficiency=0.6)
H100_80 = replace(H100, memory_bandwidth="3.35 TB/s", memory=79 * GIB)
A100 = Device(
    "312 TFLOP/s", memory_bandwidth="2.04 TB/s", memory=79 * GIB, contention=16 / 108, spread=0.01
)
SELENE = replace(A100, memory=80 * GIB)
# GPU to GPU in a host, and a host to the others
LINKS = {A100: ("300 GB/s", "50 GB/s"), SELENE: ("300 GB/s", "200 GB/s")}
H100_LINKS = "450 GB/s", "400 GB/s"
LLAMA2 = {
    "13B": Size(5120, 40, 40, 13824, kv_heads=40, vocabulary=32000),
    "70B": Size(8192, 80, 64, 28672, vocabulary=32000),
}
# a block of Llama has three matrices where GPT has two, which are longer
GPT = {
    "22B": Size(6144, 48, 64, 16384, kv_heads=64, vocabulary=51200),
    "175B": Size(12288, 96, 96, 32768, kv_heads=96, vocabulary=51200),
}


@dataclass(frozen=True)
class Row:
    """What was published of a program on some GPUs.

    Attributes:
        name: of the model, and what is special of it.
        device: the GPU.
        ranks: how many of them.
        size: of the model.
        tokens: a second, of each GPU; None if that was not published.
        memory: in GiB, or in words; None if that was not published.
        options: of `distlab_course.pretraining.train`.
    """

    name: str
    device: Device
    ranks: int
    size: Size
    tokens: float | None
    memory: float | str | None = None
    options: dict[str, Any] = field(default_factory=dict)


FULL = {"recompute": "full"}
EVERY_SECOND = {"recompute": "layer"}
NOTHING = {"recompute": "none"}
TENSOR = {"tensor": 8, "recompute": "full"}
SHORT = {"length": 4096}
HERD = {"tensor": 8, "pipeline": 16, "stages": 8, "recompute": "none", "steps": 1}
MEGATRON = {"tensor": 8, "length": 2048, "recompute": "none"}
DEEP = {"pipeline": 8, "stages": 3, "batch": 64, "microbatches": 64, "steps": 1}


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
    tokens = round(flops / of_a_token)
    return Row(f"405B, {name}", H100_80, ranks, SIZES["405B"], tokens, None, options)


# the first row of each table calibrates its device
TABLES = {
    "H100": [
        Row("8B", H100, 8, SIZES["8B"], 5762, 82.4),
        Row("8B", H100, 128, SIZES["8B"], 5605, 67.0),
    ],
    "H100, compiled": [
        Row("8B", H100, 8, SIZES["8B"], 6667, 77.0),
        Row("8B", H100, 128, SIZES["8B"], 6514, 62.0),
        Row("8B, tensors on 8", H100, 64, SIZES["8B"], 4378, options={"tensor": 8, "batch": 12}),
        Row(
            "70B, tensors on 8, all again",
            H100,
            256,
            SIZES["70B"],
            597,
            options=TENSOR | {"batch": 16},
        ),
        Row("405B, tensors on 8, all again", H100, 128, SIZES["405B"], 109, options=TENSOR),
    ],
    "A100": [
        Row("8B", A100, 64, SIZES["8B"], 2973, options={"batch": 1}),
        Row(
            "8B, every second block",
            A100,
            64,
            SIZES["8B"],
            2904,
            options={"batch": 1} | EVERY_SECOND,
        ),
        Row("70B, all again", A100, 64, SIZES["70B"], 331, options=FULL | {"batch": 1}),
        Row("Llama 2 13B, nothing again", A100, 64, LLAMA2["13B"], 2162, options=SHORT | NOTHING),
        Row(
            "Llama 2 13B, every second block",
            A100,
            64,
            LLAMA2["13B"],
            1914,
            options=SHORT | EVERY_SECOND,
        ),
        Row("Llama 2 13B", A100, 64, LLAMA2["13B"], 1904, options=SHORT),
        Row(
            "Llama 2 70B, one sequence", A100, 64, LLAMA2["70B"], 355, options=SHORT | {"batch": 1}
        ),
        Row("Llama 2 70B, all again", A100, 64, LLAMA2["70B"], 353, options=SHORT | FULL),
        Row("Llama 2 70B", A100, 64, LLAMA2["70B"], None, "too much", SHORT),
    ],
    "H100, Llama 3's paper": [
        herd("32 micro-batches", 8192, 430e12, 32),
        herd("16 micro-batches", 16384, 400e12, 16),
        herd("16 micro-batches, a context of 131,072 on 16", 16384, 380e12, 16, 131072, 16),
    ],
    "A100, Megatron-LM": [
        Row("GPT 22B, tensors on 8", SELENE, 8, GPT["22B"], 931, options=MEGATRON | {"batch": 4}),
        Row("GPT 175B, a pipeline of 8", SELENE, 64, GPT["175B"], 149, options=MEGATRON | DEEP),
    ],
}


def machines(row: Row) -> Network:
    """Hosts of eight GPUs with a port of 400 or 200 Gb/s each, or one for all.

    That they share one is what we assume of the A100.
    """
    inside, between = LINKS.get(row.device, H100_LINKS)
    hosts = [8] * (row.ranks // 8)
    return Network(hosts=hosts, inside=Link("3 us", inside), between=Link("5 us", between))


def predicted(row: Row, device: Device) -> Prediction:
    """A step of a row's program on its machines."""
    options = {"batch": 2, "length": 8192} | row.options
    program = functools.partial(train, size=row.size, **options)
    sequences = options["batch"] * row.ranks
    for dimension in ("tensor", "pipeline", "context"):
        sequences //= options.get(dimension, 1)
    return distlab.predict(
        program, row.ranks, machines(row), device, tokens=sequences * options["length"]
    )


def beside(published: float | str | None, predicted: float, digits: int) -> str:
    """Cells: what was published, what is predicted, and by how much that is off."""
    off = ""
    if isinstance(published, float | int):
        off = f"{predicted / published - 1:+.1%}"
    known = "" if published is None else published
    return f" {known} | {predicted:,.{digits}f} | {off} |"


def table(title: str, rows: list[Row]) -> str:
    """Markdown: what was published, and what is predicted."""
    lines = [
        f"| {title} | GPUs | tokens/s of each | predicted | off | GiB | predicted | off |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    first, *others = rows
    guess = predicted(first, first.device)
    device = guess.calibrated(guess.tokens / first.ranks / first.tokens)
    calibrated = replace(guess, device=device)
    lines.append(line_of(f"{first.name} (calibrates)", first, calibrated))
    for row in others:
        lines.append(line_of(row.name, row, predicted(row, device)))
    return "\n".join([*lines, "", f"Efficiency: {device.efficiency:.2f}."])


def line_of(name: str, row: Row, step: Prediction) -> str:
    """A line of a table, which is printed at once, as the next one may take minutes."""
    speed = beside(row.tokens, step.tokens_per_second, 0)
    memory = beside(row.memory, step.reserved / GIB, 1)
    line = f"| {name} | {row.ranks} |{speed}{memory}"
    print(line, flush=True)
    return line


def timed(row: Row) -> tuple[Prediction, float]:
    """A prediction, and how long this machine took for it."""
    began = time.perf_counter()
    step = predicted(row, row.device)
    return step, time.perf_counter() - began


def interleaving() -> str:
    """How much quicker 405B is with interleaved stages, and how long predictions take."""
    options = TENSOR | {"pipeline": 8, "batch": 32, "steps": 1}
    rows = [
        Row("", FLOAT8, 512, SIZES["405B"], None, None, options | {"stages": stages})
        for stages in (1, 2)
    ]
    one, took = timed(rows[0])
    two, _ = timed(rows[1])
    _, short = timed(Row("", H100, 1024, SIZES["8B"], None, None, {"steps": 1}))
    ratio = one.seconds / two.seconds
    return (
        "405B on 512 GPUs in float8, with tensors on 8 and a pipeline of 8: "
        f"two interleaved stages on each GPU are {ratio:.2f} times as quick as one by "
        f"prediction, and 1.28 times by measurement ({ratio / 1.28 - 1:+.1%}).\n"
        f"The first of these predictions took {took:.0f} s on {os.cpu_count()} cores, "
        f"and one of 8B on 1,024 GPUs {short:.0f} s."
    )


def main() -> None:
    """Write the tables into README.md, between their marks."""
    # as TorchTitan's run_llama_train.sh sets it, at 9dec370
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    tables = [table(title, rows) for title, rows in TABLES.items()]
    text = "\n\n".join([*tables, interleaving()])
    readme = Path(__file__).with_name("README.md")
    begin, end = "<!-- predictions -->", "<!-- /predictions -->"
    before, rest = readme.read_text().split(begin)
    _, after = rest.split(end)
    readme.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}")


if __name__ == "__main__":
    main()
