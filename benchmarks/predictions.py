"""Predictions beside published measurements: `python -m benchmarks.predictions`, a table for benchmarks/README.md.

TorchTitan has published what its programs reach, and its source says what they do; `distlab_course.pretraining` does
the same. A device has one number that is calibrated, its efficiency, by the first row of its table; all else follows.

A100: github.com/pytorch/torchtitan, docs/performance.md at 157a12c; 64 GPUs of 80 GB, FSDP, 8,192 tokens a sequence.
H100: benchmarks/llama3_h100_202412_torchtitan.md and asyncTP_llama3_h100_2025-06_torchtitan.md at 2887250; 96 GB of
HBM2e at 2.4 TB/s, limited to 500 W, and 400 Gb/s a GPU.
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
from distlab.predicted.prediction import Prediction
from distlab_course.llama import SIZES, Size
from distlab_course.pretraining import train

GIB = 1 << 30
# NCCL's kernels have some 16 of a GPU's 132 (108) multiprocessors
H100 = Device("989 TFLOP/s", memory_bandwidth="2.4 TB/s", memory=95 * GIB, contention=16 / 132, spread=0.01)
FLOAT8 = replace(H100, flops="1979 TFLOP/s", efficiency=0.6)
A100 = Device("312 TFLOP/s", memory_bandwidth="2.04 TB/s", memory=79 * GIB, contention=16 / 108, spread=0.01)
LLAMA2 = {
    "13B": Size(5120, 40, 40, 13824, kv_heads=40, words=32000),
    "70B": Size(8192, 80, 64, 28672, words=32000),
}


@dataclass(frozen=True)
class Row:
    """What was published: tokens a second of each GPU, and memory in GiB, where it is."""

    name: str
    device: Device
    ranks: int
    size: Size
    tokens: float | None
    memory: float | str | None = None
    options: dict[str, Any] = field(default_factory=dict)


FULL, TENSOR = {"recompute": "full"}, {"tensor": 8, "recompute": "full"}
SHORT = {"length": 4096}
# the first row of each table calibrates its device
TABLES = {
    "H100": [
        Row("8B", H100, 8, SIZES["8B"], 5762, 82.4),
        Row("8B", H100, 128, SIZES["8B"], 5605, 67.0),
    ],
    "H100, compiled": [
        Row("8B", H100, 8, SIZES["8B"], 6667, 77.0),
        Row("8B", H100, 128, SIZES["8B"], 6514, 62.0),
        Row("8B, tensors on 8", H100, 64, SIZES["8B"], 4378, None, {"tensor": 8, "batch": 12}),
        Row("70B, tensors on 8, all again", H100, 256, SIZES["70B"], 597, None, TENSOR | {"batch": 16}),
        Row("405B, tensors on 8, all again", H100, 128, SIZES["405B"], 109, None, TENSOR),
    ],
    "A100": [
        Row("8B", A100, 64, SIZES["8B"], 2973, None, {"batch": 1}),
        Row("8B, every second block", A100, 64, SIZES["8B"], 2904, None, {"batch": 1, "recompute": "layer"}),
        Row("70B, all again", A100, 64, SIZES["70B"], 331, None, FULL | {"batch": 1}),
        Row("Llama 2 13B, nothing again", A100, 64, LLAMA2["13B"], 2162, None, SHORT | {"recompute": "none"}),
        Row("Llama 2 13B, every second block", A100, 64, LLAMA2["13B"], 1914, None, SHORT | {"recompute": "layer"}),
        Row("Llama 2 13B", A100, 64, LLAMA2["13B"], 1904, None, SHORT),
        Row("Llama 2 70B, one sequence", A100, 64, LLAMA2["70B"], 355, None, SHORT | {"batch": 1}),
        Row("Llama 2 70B, all again", A100, 64, LLAMA2["70B"], 353, None, SHORT | FULL),
        Row("Llama 2 70B", A100, 64, LLAMA2["70B"], None, "too much", SHORT),
    ],
}


def machines(row: Row) -> Network:
    """Hosts of eight, whose GPUs have a port of 400 Gb/s each (H100), or share one, as we assume (A100)."""
    inside, between = ("300 GB/s", "50 GB/s") if row.device is A100 else ("450 GB/s", "400 GB/s")
    return Network(hosts=[8] * (row.ranks // 8), inside=Link("3 us", inside), between=Link("5 us", between))


def predicted(row: Row, device: Device) -> Prediction:
    """A step of a row's program on its machines."""
    options = {"batch": 2, "length": 8192} | row.options
    program = functools.partial(train, size=row.size, **options)
    sequences = options["batch"] * row.ranks // options.get("tensor", 1) // options.get("pipeline", 1)
    return distlab.predict(program, row.ranks, machines(row), device, tokens=sequences * options["length"])


def beside(published: float | str | None, predicted: float, digits: int) -> str:
    """Cells: what was published, what is predicted, and by how much that is off."""
    off = f"{predicted / published - 1:+.1%}" if isinstance(published, float | int) else ""
    return f" {'' if published is None else published} | {predicted:,.{digits}f} | {off} |"


def table(title: str, rows: list[Row]) -> str:
    """Markdown: what was published, and what is predicted."""
    lines = [
        f"| {title} | GPUs | tokens/s of each | predicted | off | GiB | predicted | off |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    device, name = rows[0].device, f"{rows[0].name} (calibrates)"
    for row in rows:
        step = predicted(row, device)
        if row is rows[0]:
            device = step.calibrated(step.tokens / row.ranks / row.tokens)
            step = replace(step, device=device)
        speed = beside(row.tokens, step.tokens_per_second, 0)
        memory = beside(row.memory, sum(step.memory.values()) / GIB, 1)
        lines.append(f"| {name if row is rows[0] else row.name} | {row.ranks} |{speed}{memory}")
        print(lines[-1], flush=True)
    return "\n".join([*lines, "", f"Efficiency: {device.efficiency:.2f}."])


def timed(row: Row) -> tuple[Prediction, float]:
    """A prediction, and how long this machine took for it."""
    began = time.perf_counter()
    step = predicted(row, row.device)
    return step, time.perf_counter() - began


def interleaving() -> str:
    """Sentences: how much quicker 405B is with interleaved stages, and how long predictions take."""
    options = TENSOR | {"pipeline": 8, "batch": 32, "steps": 1}
    rows = [Row("", FLOAT8, 512, SIZES["405B"], None, None, options | {"stages": stages}) for stages in (1, 2)]
    (one, took), (two, _) = map(timed, rows)
    _, short = timed(Row("", H100, 1024, SIZES["8B"], None, None, {"steps": 1}))
    ratio = one.seconds / two.seconds
    return (
        "405B on 512 GPUs in float8, with tensors on 8 and a pipeline of 8: two interleaved stages on each GPU are "
        f"{ratio:.2f} times as quick as one by prediction, and 1.28 times by measurement ({ratio / 1.28 - 1:+.1%}).\n"
        f"The first of these predictions took {took:.0f} s on {os.cpu_count()} cores, and one of 8B on 1,024 GPUs "
        f"{short:.0f} s."
    )


def main() -> None:
    text = "\n\n".join([*(table(title, rows) for title, rows in TABLES.items()), interleaving()])
    readme = Path(__file__).with_name("README.md")
    marks = "<!-- predictions -->", "<!-- /predictions -->"
    before, rest = readme.read_text().split(marks[0])
    readme.write_text(f"{before}{marks[0]}\n\n{text}\n\n{marks[1]}{rest.split(marks[1])[1]}")


if __name__ == "__main__":
    main()
