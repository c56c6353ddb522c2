"""What is recorded for a prediction, and the prediction of what was recorded.

Called by predict.py, on the notebook's kernel.
"""

import hashlib
import math
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from distlab import arguments
from distlab.diagnosis.failures import rank_error
from distlab.diagnosis.readable import made_readable
from distlab.errors import ArgumentError
from distlab.simulated.network import Device, Network
from distlab.wire.messages import Failure
from distlab.wire.pickling import pack, pickle_module_by_value
from distlab_predict.nodes import BY_HAND, Outcomes, Recording, Run
from distlab_predict.prediction import Prediction

EXAMPLE = (
    'Call distlab.predict(program, ranks=1024, network=Network("5 us", "50 GB/s"), '
    'device=Device("989 TFLOP/s")).'
)
MOST_ROLES = 64  # that are found by following messages


def run_of(
    program: Callable[..., Any],
    ranks: int,
    roles: Sequence[int] | None,
    skew: float,
    compiled: bool | str,
) -> Run:
    """What to record, in this process's environment, folder and path."""
    if isinstance(skew, bool) or not isinstance(skew, (int, float)) or not 1 <= skew < math.inf:
        rule = "a number of at least 1"
        arguments.refuse("skew", rule, skew, "For balanced experts: skew=1.0.")
    arguments.one_of("compiled", compiled, (True, False, BY_HAND))
    pickle_module_by_value(program)
    header, buffers = pack(program, "program")
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}  # the program finds a CPU everywhere
    return Run(
        header=header,
        buffers=tuple(bytes(buffer) for buffer in buffers),
        world_size=ranks,
        ranks=None if roles is None else tuple(roles),
        max_roles=MOST_ROLES + 1,
        environment=tuple(environment.items()),
        folder=os.getcwd(),
        path=tuple(sys.path),
        skew=skew,
        compiled=compiled,
    )


def has_failed(outcomes: Outcomes) -> bool:
    return any(isinstance(outcome, Failure) for outcome in outcomes)


def fingerprint(run: Run) -> bytes:
    """A digest that tells a run from all others, and keeps none of its program's data alive."""
    without_program = replace(run, header=b"", buffers=())
    digest = hashlib.sha256(repr(without_program).encode())
    for part in (run.header, *run.buffers):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.digest()


def prediction_of(
    run: Run, outcomes: Outcomes, network: Network, device: Device, tokens: int | None
) -> Prediction:
    """What the noted calls take on these machines.

    Raises:
        ArgumentError: the program takes no step, has too many roles, or its ranks wait forever.
        RankError: the program raised.
    """
    failures = [made_readable(outcome) for outcome in outcomes if isinstance(outcome, Failure)]
    if failures:
        raise rank_error(failures, [one.rank for one in failures], False, "")
    recordings = [outcome for outcome in outcomes if isinstance(outcome, Recording)]
    if run.ranks is None and len(recordings) > MOST_ROLES:
        raise ArgumentError(
            f"program must have at most {MOST_ROLES} ranks that send each other messages, if roles "
            "is not given. Where all ranks do the same, call predict(..., roles=[0])."
        )
    if not all(recording.steps for recording in recordings):
        raise ArgumentError(
            "program must take a step: call a module, and an optimizer's step(). " + EXAMPLE
        )
    prediction = Prediction(run.world_size, network, device, recordings, tokens)
    _ = prediction.times  # asked for now, so that what cannot be timed raises here
    return prediction


def print_again(outcomes: Outcomes) -> None:
    """Write what the program has written as its first rank; nothing if one has raised."""
    first, *_ = outcomes
    if isinstance(first, Recording) and not has_failed(outcomes):
        sys.stdout.write(first.printed)
        sys.stderr.write(first.warned)
