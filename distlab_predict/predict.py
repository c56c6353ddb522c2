"""`predict` and `predict.sweep`: what a program would do on many ranks of machines that are not
there.

Runs on the notebook's kernel. The program itself runs in a process of its own (recorder.py),
started by the first prediction, which waits for the next ones with torch imported.
"""

import functools
import hashlib
import itertools
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing.connection import Pipe
from typing import Any

from distlab import arguments
from distlab.diagnosis.failures import failure, rank_error
from distlab.errors import ArgumentError, ClusterError, RankError
from distlab.launch import fork_server
from distlab.simulated.network import Device, Network
from distlab.wire.messages import Failure
from distlab.wire.pickling import pack, pickle_module_by_value
from distlab_predict.nodes import Outcomes, Run
from distlab_predict.prediction import Case, Prediction, Predictions

EXAMPLE = 'Call distlab.predict(program, ranks=1024, network=Network("5 us", "50 GB/s"), device=Device("989 TFLOP/s")).'
SWEEP = "Call distlab.predict.sweep(program, ranks=[8, 64], network=..., device=..., batch=[1, 2])."
MOST_ROLES = 64  # that are found by following messages
# programs whose notes are kept; an older one runs again when it is asked for: later, never wrong
MOST_KEPT = 64
# what the last programs have noted, by fingerprint: on other machines they need not run again
KEPT: dict[bytes, Outcomes] = {}


def predict(
    program: Callable[[int, int], Any],
    ranks: int,
    network: Network,
    device: Device,
    *,
    roles: Sequence[int] | None = None,
    tokens: int | None = None,
) -> Prediction:
    """What a training program would do on many ranks of machines that are not there.

    One rank runs the program's real code, with torch's sharding and its own order of calls, on
    tensors that have shapes and no data; then what it called is timed on the described machines.
    Where ranks send messages, as the stages of a pipeline do, one rank of each role runs. Asked
    again about other machines, a program does not run again.

    The program runs ahead of its device, as with GPUs; on a simulated cluster it waits for its
    messages, and a step that exchanges messages in several groups, or runs several stages on a
    rank, may take longer there.

    Runs on: the notebook's kernel; the program in a process of its own, started by one that waits
    for the next call.

    Args:
        program: called with (rank, world_size), as by Cluster.run: makes the model, shards it, and
            takes a step of an optimizer, or better two, as the first one has no prefetched
            parameters. The last step counts. A value that it prints is "(no data)", and a
            checkpoint is not written.
        ranks: the size of the world.
        network: of the machines; its hosts, if it has any, have so many ranks in all.
        device: what each rank computes on.
        roles: ranks that run; the others do what the last one of these before them does. None: rank
            0, the ranks that it sends messages to, and so on.
        tokens: of all ranks together in a step, for `tokens_per_second`.

    Raises:
        ArgumentError: an argument breaks its rule, or the program's ranks would wait for each other
            forever.
        RankError: the program raised, or needs the value of a tensor; the message has the line.
    """
    _check(program, ranks, network, device, roles)
    if tokens is not None:
        arguments.whole_number("tokens", tokens, 1)
    run = _run_of(program, ranks, roles)
    return _prediction(run, _outcomes([run])[0], network, device, tokens)


def sweep(
    program: Callable[..., Any],
    ranks: Sequence[int],
    network: Network | Callable[[int], Network],
    device: Device,
    *,
    roles: Sequence[int] | None = None,
    tokens: Callable[..., int] | None = None,
    **choices: Sequence[Any],
) -> Predictions:
    """Predict a program on several numbers of ranks, with each of its choices: where it stops to
    scale, what is best.

    Runs on: the notebook's kernel; the programs in processes of their own, as many at once as there
    are cores.

    Args:
        program: called with (rank, world_size, **choice), otherwise as for `predict`.
        ranks: sizes of the world.
        network: of the machines, or a function of the number of ranks.
        device, roles: as for `predict`.
        tokens: a function of (ranks, **choice): of all ranks together in a step.
        choices: values for arguments of the program, such as batch=[1, 2, 4]. Where the program
            raises, as with a mesh that does not divide the ranks, the table says why.

    Raises:
        ArgumentError: an argument breaks its rule.
    """
    for name, values in {"ranks": ranks, **choices}.items():
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            arguments.refuse(name, "a list of values", values, SWEEP, wrong_type=True)
    if tokens is not None and not callable(tokens):
        arguments.refuse(
            "tokens",
            "a function of the number of ranks and the choice",
            tokens,
            SWEEP,
            wrong_type=True,
        )
    networks = {number: network(number) if callable(network) else network for number in ranks}
    for number in ranks:
        _check(program, number, networks[number], device, roles)
    chosen = itertools.product(ranks, *choices.values())
    cases = [(number, dict(zip(choices, values, strict=True))) for number, *values in chosen]
    runs = [
        _run_of(functools.partial(program, **choice), number, roles) for number, choice in cases
    ]
    found = []
    for run, outcomes, (number, choice) in zip(runs, _outcomes(runs), cases, strict=True):
        try:
            each = tokens and tokens(number, **choice)
            found.append(
                Case(number, choice, _prediction(run, outcomes, networks[number], device, each))
            )
        except (ArgumentError, RankError) as error:
            found.append(Case(number, choice, None, str(error)))
    return Predictions(found)


predict.sweep = sweep


def _check(program: Any, ranks: Any, network: Any, device: Any, roles: Any) -> None:
    if not callable(program):
        arguments.refuse(
            "program", "a function of (rank, world_size)", program, EXAMPLE, wrong_type=True
        )
    arguments.whole_number("ranks", ranks, 1)
    for name, value, kind in (("network", network, Network), ("device", device, Device)):
        arguments.instance(name, value, kind, EXAMPLE)
    network.check_size(ranks)
    if roles is not None:
        arguments.ranks("roles", roles, ranks, "For example: roles=[0, 8].")


def _run_of(program: Callable[..., Any], ranks: int, roles: Sequence[int] | None) -> Run:
    pickle_module_by_value(program)
    header, buffers = pack(program, "program")
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}  # the program finds a CPU everywhere
    place = tuple(environment.items()), os.getcwd(), tuple(sys.path)
    return Run(
        header, tuple(map(bytes, buffers)), ranks, roles and tuple(roles), MOST_ROLES + 1, *place
    )


def _fingerprint(run: Run) -> bytes:
    """What tells a run from all others, without keeping its program's data alive."""
    digest = hashlib.sha256(repr(replace(run, header=b"", buffers=())).encode())
    for part in (run.header, *run.buffers):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.digest()


def _outcomes(runs: Sequence[Run]) -> list[Outcomes]:
    """What the ranks of each run have noted, now or before."""
    fingerprints = [_fingerprint(run) for run in runs]
    wanted = dict(zip(fingerprints, runs, strict=True))
    new = {fingerprint: run for fingerprint, run in wanted.items() if fingerprint not in KEPT}
    if new:
        KEPT.update(zip(new, RECORDER.record(list(new.values())), strict=True))
    outcomes = {fingerprint: KEPT[fingerprint] for fingerprint in wanted}
    for fingerprint, found in outcomes.items():
        if any(isinstance(outcome, Failure) for outcome in found):
            del KEPT[fingerprint]  # what raised may have had another reason
    for fingerprint in list(KEPT)[:-MOST_KEPT]:
        del KEPT[fingerprint]
    return [outcomes[fingerprint] for fingerprint in fingerprints]


def _prediction(
    run: Run, outcomes: Outcomes, network: Network, device: Device, tokens: int | None
) -> Prediction:
    """What the noted calls take on these machines."""
    failures = [failure(outcome) for outcome in outcomes if isinstance(outcome, Failure)]
    if failures:
        raise rank_error(failures, [one.rank for one in failures], False, "")
    sys.stdout.write("".join(outcome.printed for outcome in outcomes[:1]))
    if run.ranks is None and len(outcomes) > MOST_ROLES:
        roles_are = f"program must have at most {MOST_ROLES} ranks that send each other messages, if roles is not given"
        raise ArgumentError(
            f"{roles_are}. Where all ranks do the same, call predict(..., roles=[0])."
        )
    if not all(recording.steps for recording in outcomes):
        raise ArgumentError(
            "program must take a step: call a module, and an optimizer's step(). " + EXAMPLE
        )
    prediction = Prediction(run.world_size, network, device, outcomes, tokens)
    prediction.times  # noqa: B018 - so that what cannot be timed is said here
    return prediction


# --- the process that records ---


class Recorder:
    """One for all predictions of a notebook; it ends with the notebook, and after five idle
    minutes.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen | None = None

    def record(self, runs: Sequence[Run]) -> list[Outcomes]:
        """What the ranks of these runs note."""
        if self._process is None or self._process.poll() is not None:
            self.stop()
            self._start()
        try:
            self._connection.send(runs)
            return self._connection.recv()
        except (EOFError, OSError) as error:
            code = self._process.wait()
            self._errors.seek(0)
            words = self._errors.read().decode(errors="replace")[-2000:]
            raise ClusterError(f"The program's process ended ({code}):\n{words}") from error
        except BaseException:
            self.stop()
            raise

    def _start(self) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process lives
        self._connection, its_end = Pipe()
        command = [*fork_server.command("distlab_predict.recorder"), str(its_end.fileno())]
        ends = {"stdin": subprocess.DEVNULL, "stdout": self._errors, "stderr": self._errors}
        self._process = subprocess.Popen(command, pass_fds=[its_end.fileno()], **ends)
        its_end.close()

    def stop(self) -> None:
        """End it, with what it records."""
        process, self._process = self._process, None
        if process is not None:
            with process:
                process.kill()


RECORDER = Recorder()
