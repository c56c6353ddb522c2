"""How long predictions take, in seconds and beside `import torch`, each in a new Python process.

Seconds count from the question: a script has imported `predict`, which starts the process that
records, and then the program with its torch, and asks at once.

Run it with `python -m benchmarks.recording`, or with names of predictions behind it; --write puts
its table into benchmarks/README.md. On a machine that does something else it says little.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from typing import Any, NamedTuple

import psutil

from benchmarks.harness import seconds_of, write
from distlab import Device, Network
from distlab_course.pretraining import train
from distlab_course.sizes import SIZES

PLAN = "plan of 256 layouts of 70B"
RANKS_OF_PLAN = 512
SEQUENCES = 2  # on each rank that is alone, or on ranks that share a model
LENGTH = 8192
SAMPLING_SECONDS = 0.5
SECONDS_BETWEEN_CELLS = 10
SCRIPT = """
from distlab import predict
from benchmarks.recording import answer
answer({name!r})
"""


class Step(NamedTuple):
    """A step to predict.

    Attributes:
        ranks: how many GPUs.
        options: of `train`.
        compiled: whether it is predicted as a compiled program.
        limit: seconds that it should take at most.
        ahead: whether a notebook has imported `predict` in a cell some seconds before.
    """

    ranks: int
    options: dict[str, Any]
    compiled: bool
    limit: float
    ahead: bool = False


SMALL = {"size": SIZES["8B"], "batch": 2, "length": 8192}
STEPS = {
    "8B": Step(1024, SMALL, False, 5),
    "8B, in a notebook": Step(1024, SMALL, False, 5, ahead=True),
    "405B, pipeline of 8, compiled, float8": Step(
        512,
        {
            "size": SIZES["405B"],
            "tensor": 8,
            "pipeline": 8,
            "batch": 32,
            "length": 8192,
            "recompute": "full",
            "compiles": True,
            "float8": "yes",
            "steps": 1,
            "resumed": True,
        },
        True,
        60,
    ),
    "671B, experts on 64, pipeline of 16": Step(
        1024,
        {
            "size": SIZES["DeepSeek-V3"],
            "pipeline": 16,
            "expert": 64,
            "batch": 16,
            "microbatches": 16,
            "length": 4096,
            "recompute": "full",
            "steps": 1,
            "resumed": True,
        },
        False,
        120,
    ),
}


class Took(NamedTuple):
    """What a prediction took.

    Attributes:
        first: seconds from the first question of a process until the step's seconds were known.
        whole: until the table was there.
        again: for the same question once more.
    """

    first: float
    whole: float
    again: float


# --- in the process that predicts ---


def _machines(ranks: int) -> tuple[Network, Device]:
    return Network.named("H100 hosts", hosts=[8] * (ranks // 8)), Device.named("H100")


def predict(step: Step) -> Took:
    """Predict a step, as the first question of this process."""
    import distlab

    program = functools.partial(train, **step.options)
    if step.ahead:
        time.sleep(SECONDS_BETWEEN_CELLS)
    machines = _machines(step.ranks)
    ask = functools.partial(distlab.predict, program, step.ranks, *machines, compiled=step.compiled)
    began = time.perf_counter()
    prediction = ask()
    assert prediction.seconds > 0
    first = time.perf_counter() - began
    assert str(prediction)
    whole = time.perf_counter() - began
    return Took(first, whole, seconds_of(ask))


def plan() -> Took:
    """Search for a plan, likewise."""
    from distlab import predict

    ask = functools.partial(
        predict.plan,
        _layers_of_70b,
        RANKS_OF_PLAN,
        *_machines(RANKS_OF_PLAN),
        depth="layers",
        period=lambda ranks, pipeline, stages, **_: max(2, pipeline * stages),
        allowed=_allowed,
        tokens=lambda ranks, tensor, **_: SEQUENCES * LENGTH * ranks // tensor,
        layers=[SIZES["70B"].layers],
        tensor=[1, 2, 4, 8],
        pipeline=[1, 2, 4, 8],
        stages=[1, 2],
        recompute=["none", "op", "layer", "full"],
        reshard=[False, True],
    )
    began = time.perf_counter()
    found = ask()
    first = time.perf_counter() - began
    assert str(found)
    whole = time.perf_counter() - began
    return Took(first, whole, seconds_of(ask))


def _allowed(ranks: int, tensor: int, pipeline: int, stages: int, **_: Any) -> bool | str:
    if stages > 1 and pipeline == 1:
        return "Only a rank of a pipeline has more than one stage."
    return True


def _layers_of_70b(rank: int, world_size: int, layers: int, pipeline: int, **choice: Any) -> None:
    """A step of so many blocks with two micro-batches for each rank of a pipeline."""
    train(
        rank,
        world_size,
        size=replace(SIZES["70B"], layers=layers),
        pipeline=pipeline,
        batch=SEQUENCES * pipeline,
        microbatches=SEQUENCES * pipeline,
        length=LENGTH,
        steps=1,
        resumed=True,
        **choice,
    )


def answer(name: str) -> None:
    """Print what a prediction, or the plan, has taken."""
    print(json.dumps(plan() if name == PLAN else predict(STEPS[name])))


# --- in the process that measures ---


def measured(name: str) -> tuple[Took, int]:
    """What a prediction takes in a new process, and the most memory that it has, in bytes."""
    command = [sys.executable, "-c", SCRIPT.format(name=name)]
    most = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        own = psutil.Process(process.pid)
        while process.poll() is None:
            most = max(most, _memory_of(own))
            time.sleep(SAMPLING_SECONDS)
        lines = process.stdout.read().splitlines()
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with status {process.returncode}")
    return Took(*json.loads(lines[-1])), most


def _memory_of(process: psutil.Process) -> int:
    """The memory of a process and its children; what they share counts once."""
    total = 0
    for one in (process, *process.children(recursive=True)):
        try:
            total += one.memory_full_info().pss
        except psutil.Error:  # it has ended meanwhile
            continue
    return total


def row(name: str, torch: float) -> str:
    """Measure a prediction: a row of the table.

    Args:
        torch: seconds of a new process that imports torch.
    """
    ranks, limit = RANKS_OF_PLAN, ""
    if name != PLAN:
        ranks, limit = STEPS[name].ranks, f"{STEPS[name].limit:g} s"
    took, memory = measured(name)
    seconds = " | ".join(f"{one:.1f} s" for one in took)
    return (
        f"| {name} | {ranks:,} | {limit} | {seconds} | {took.first / torch:.0f} | "
        f"{memory / 1e9:.1f} GB |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recording", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(map(repr, [*STEPS, PLAN]))}")
    parser.add_argument("--write", action="store_true", help="into benchmarks/README.md")
    chosen = parser.parse_args()
    load, *_ = os.getloadavg()
    command = [sys.executable, "-c", "import torch"]
    torch = seconds_of(functools.partial(subprocess.run, command, check=True))
    lines = [
        f"On {os.cpu_count()} cores; the load before was {load:.1f}.",
        "",
        "| prediction | GPUs | to be within | its seconds | its table | asked again "
        "| times import torch | memory |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    print("\n".join(lines), flush=True)
    for name in chosen.names or [*STEPS, PLAN]:
        lines.append(row(name, torch))
        print(lines[-1], flush=True)
    if chosen.write:
        write("recording", "\n".join(lines))


if __name__ == "__main__":
    main()
