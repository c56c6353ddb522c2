"""`distlab.predict` and `predict.sweep`: what a program would do on many ranks, without them.

Called by the notebooks, on the kernel. The program itself runs in a process of its own, see
recording_process.py and recordings.py.
"""

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from distlab import arguments
from distlab.errors import ArgumentError, RankError
from distlab.simulated.devices import Device
from distlab.simulated.network import Network
from distlab_predict.branches import decided
from distlab_predict.interrupted import keeping
from distlab_predict.nodes import Outcomes, Run
from distlab_predict.planner import PLAN, Depth, Planner, at_once
from distlab_predict.plans import Plan
from distlab_predict.prediction import Prediction
from distlab_predict.predictions import Case, Predictions
from distlab_predict.recording_process import RecordingProcess, is_asked_soon
from distlab_predict.runs import (
    EXAMPLE,
    fingerprint,
    has_failed,
    prediction_of,
    print_again,
    run_of,
)

SWEEP = "Call distlab.predict.sweep(program, ranks=[8, 64], network=..., device=..., batch=[1, 2])."
# Programs whose notes are kept. An older one runs again when it is asked for, which takes longer
# and predicts the same.
MOST_KEPT = 64


class Predict:
    """What a training program would do on many ranks of machines that are not there.

    One rank runs the program's real code, with torch's sharding and its own order of calls, on
    tensors that have shapes and no data; then what it called is timed on the described machines.
    Where ranks send messages, as the stages of a pipeline do, one rank of each role runs. Asked
    again about other machines, a program does not run again.

    The program runs ahead of its device, as with GPUs, as far as its processor can launch kernels,
    which a device by name knows (`host=` of Device); on a simulated cluster it waits for its
    messages, and a step that exchanges messages in several groups, or runs several stages on a
    rank, may take longer there.

    Runs on: the notebook's kernel; the program in a process of its own, started by one that waits
    for the next call.

    Args:
        program: called with (rank, world_size), as by Cluster.run: makes the model, shards it, and
            takes a step of an optimizer, or better two, as the first one has no prefetched
            parameters. The last step counts. A value that it prints is "(no data)", and a
            checkpoint is not written. Where it compares a loss, it runs once with each answer, and
            the prediction names the line.
        ranks: the size of the world.
        network: of the machines; its hosts, if it has any, have so many ranks in all.
        device: what each rank computes on.
        roles: ranks that run; the others do what the last one of these before them does. None: rank
            0, the ranks that it sends messages to, and so on.
        tokens: of all ranks together in a step, for `tokens_per_second`.
        skew: of a mixture of experts. Which experts tokens choose is data, so a prediction assumes
            that each expert gets as many, and says so. With 1.5, the experts of the predicted rank
            get one and a half times as many as the mean of all ranks that share its experts, in
            every layer, and the others wait for it.
        compiled: whether the program is predicted as torch.compile makes it: fewer kernels, and
            less that is kept for the backward pass. That is what it gives to torch.compile, or, if
            it gives nothing, its model and its loss. Without, all is predicted as it is written.
            "by hand": as many kernels, of a library whose authors have fused them. The program
            launches each as it does an operator, which takes longer than the compiler's wrapper.

    Raises:
        ArgumentError: an argument breaks its rule, or the program's ranks would wait for each other
            forever.
        RankError: the program raised, or its step needs the value of a tensor; the message has the
            line.
    """

    def __init__(self, recorder: RecordingProcess) -> None:
        self._recorder = recorder
        # what the last programs have noted, by fingerprint: on other machines they need not run
        # again
        self._kept: dict[bytes, Outcomes] = {}

    def __repr__(self) -> str:
        return "<distlab.predict>"

    def __reduce__(self) -> str:
        # pickle looks this name up in this module, so that a function that uses it finds the one
        # of its own process
        return "predict"

    def __call__(
        self,
        program: Callable[[int, int], Any],
        ranks: int,
        network: Network,
        device: Device,
        *,
        roles: Sequence[int] | None = None,
        tokens: int | None = None,
        skew: float = 1.0,
        compiled: bool | str = False,
    ) -> Prediction:
        """Predict a step of a program; the arguments are described above."""
        _check(program, ranks, network, device, roles)
        if tokens is not None:
            arguments.whole_number("tokens", tokens, 1)
        run = run_of(program, ranks, roles, skew, compiled)
        (outcomes,) = self._outcomes([run])
        print_again(outcomes)
        return prediction_of(run, outcomes, network, device, tokens)

    def sweep(
        self,
        program: Callable[..., Any],
        ranks: Sequence[int],
        network: Network | Callable[[int], Network],
        device: Device,
        *,
        roles: Sequence[int] | None = None,
        tokens: Callable[..., int] | None = None,
        skew: float = 1.0,
        compiled: bool | str = False,
        **choices: Sequence[Any],
    ) -> Predictions:
        """Predict a program on several numbers of ranks, with each of its choices.

        It shows where the program stops to scale, and which choice is best.

        Runs on: the notebook's kernel; the programs in processes of their own, as many at once as
        there are cores.

        Args:
            program: called with (rank, world_size, **choice), otherwise as for `predict`.
            ranks: sizes of the world.
            network: of the machines, or a function of the number of ranks.
            device, roles, skew, compiled: as for `predict`.
            tokens: a function of (ranks, **choice): of all ranks together in a step.
            choices: values for arguments of the program, such as batch=[1, 2, 4]. Where the program
                raises, as with a mesh that does not divide the ranks, the table says why.

        Raises:
            ArgumentError: an argument breaks its rule.
            KeyboardInterrupt: a person stopped it; its `partial` has the cases so far.
        """
        _check_sweep(ranks, choices, tokens)
        networks = _networks(network, ranks)
        for number in ranks:
            _check(program, number, networks[number], device, roles)
        wanted = []
        for number in ranks:
            for choice in _each_choice(choices):
                run = run_of(functools.partial(program, **choice), number, roles, skew, compiled)
                in_step = _tokens_in_step(tokens, number, choice)
                wanted.append(_Wanted(number, choice, networks[number], run, in_step))
        cases: list[Case] = []
        with keeping(lambda: Predictions(cases), lambda: len(cases), "case"):
            for begin in range(0, len(wanted), at_once()):
                some = wanted[begin : begin + at_once()]
                outcomes = self._outcomes([one.run for one in some])
                for one, noted in zip(some, outcomes, strict=True):
                    print_again(noted)
                    cases.append(one.case(noted, device))
        return Predictions(cases)

    def plan(
        self,
        program: Callable[..., Any],
        ranks: int,
        network: Network,
        device: Device,
        *,
        roles: Sequence[int] | None = None,
        skew: float = 1.0,
        compiled: bool | str = False,
        tokens: int | Callable[..., int] | None = None,
        allowed: Callable[..., bool | str] | None = None,
        depth: str | None = None,
        period: int | Callable[..., int] = 2,
        **choices: Sequence[Any],
    ) -> Plan:
        """Find the best layout of a program on so many ranks, and say why it is the best.

        Not every combination of the choices is predicted. One that cannot divide or fit, or cannot
        be the best, is left out, and the plan says why. Progress is shown while it runs.

        Runs on: the notebook's kernel; the programs in processes of their own, as many at once as
        there are cores.

        Args:
            program: called with (rank, world_size, **choice), otherwise as for `predict`. It is
                cheap to refuse a choice: raise before the model is made.
            ranks, network, device, roles, skew, compiled: as for `predict`.
            tokens: of all ranks together in a step, or a function of (ranks, **choice).
            allowed: a function of (ranks, **choice) that returns True, or why this choice is not to
                be tried; None to try all.
            depth: the name of the argument that says how many layers the model has. Then each
                choice is predicted with two small numbers of layers, and continued to its own,
                since each further layer needs as much as the one before. None to predict it whole.
            period: how many layers make no difference in balance: of a pipeline, its stages. Also
                a function of (ranks, **choice).
            choices: values for arguments of the program, such as tensor=[1, 2, 4, 8]. With `depth`,
                one of them is for its argument, such as layers=[80].

        Raises:
            ArgumentError: an argument breaks its rule.
            KeyboardInterrupt: a person stopped it; its `partial` is the plan so far.
        """
        _check(program, ranks, network, device, roles)
        _check_plan(choices, tokens)
        wanted_depth = _depth_of(depth, period, choices)
        if allowed is not None and not callable(allowed):
            rule = "a function of the number of ranks and the choice"
            arguments.refuse("allowed", rule, allowed, PLAN, wrong_type=True)

        def predicted(some: Sequence[dict[str, Any]]) -> list[Prediction | str]:
            wanted = []
            for choice in some:
                run = run_of(functools.partial(program, **choice), ranks, roles, skew, compiled)
                in_step = _tokens_in_step(tokens, ranks, choice)
                wanted.append(_Wanted(ranks, choice, network, run, in_step))
            outcomes = self._outcomes([one.run for one in wanted])
            answers: list[Prediction | str] = []
            for one, noted in zip(wanted, outcomes, strict=True):
                case = one.case(noted, device)
                answers.append(case.prediction or case.why)
            return answers

        planner = Planner(ranks, choices, allowed, wanted_depth, predicted, device.memory)
        return planner.plan(network, device)

    def _outcomes(self, runs: Sequence[Run]) -> list[Outcomes]:
        """What the ranks of each run have noted, now or before."""
        fingerprints = [fingerprint(run) for run in runs]
        wanted = dict(zip(fingerprints, runs, strict=True))
        new = {key: run for key, run in wanted.items() if key not in self._kept}
        if new:
            record = self._recorder.record
            for (key, run), noted in zip(new.items(), record(list(new.values())), strict=True):
                self._kept[key] = decided(run, noted, record)
        outcomes = {key: self._kept[key] for key in wanted}
        for key, found in outcomes.items():
            if has_failed(found):
                del self._kept[key]  # what raised may have had another reason
        too_old = list(self._kept)[:-MOST_KEPT]
        for key in too_old:
            del self._kept[key]
        return [outcomes[key] for key in fingerprints]


_recorder = RecordingProcess()
predict = Predict(_recorder)
if is_asked_soon():
    _recorder.begin()


# --- what is asked for ---


@dataclass(frozen=True)
class _Wanted:
    """A case of a sweep that is to be predicted.

    Attributes:
        ranks: how many.
        choice: arguments of the program.
        network: of so many ranks.
        run: of the program with this choice.
        tokens: of all ranks together in a step; None if that is not known.
    """

    ranks: int
    choice: dict[str, Any]
    network: Network
    run: Run
    tokens: int | None

    def case(self, noted: Outcomes, device: Device) -> Case:
        """The prediction for what its ranks have noted, or the reason why there is none."""
        try:
            step = prediction_of(self.run, noted, self.network, device, self.tokens)
            # only now, as a layout that cannot be may have none
            if self.tokens is not None:
                _check_tokens(self.tokens, self.ranks, self.choice)
        except (ArgumentError, RankError) as error:
            return Case(self.ranks, self.choice, None, str(error))
        return Case(self.ranks, self.choice, step)


def _each_choice(choices: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Each choice of a value for each name; the last name changes fastest."""
    found = []
    for values in itertools.product(*choices.values()):
        found.append(dict(zip(choices, values, strict=True)))
    return found


def _networks(
    network: Network | Callable[[int], Network], ranks: Sequence[int]
) -> dict[int, Network]:
    """The network of each number of ranks."""
    if callable(network):
        return {number: network(number) for number in ranks}
    return dict.fromkeys(ranks, network)


def _check_sweep(ranks: Any, choices: Mapping[str, Any], tokens: Any) -> None:
    _check_choices({"ranks": ranks, **choices}, SWEEP)
    for number in ranks:
        arguments.whole_number("each of ranks", number, 1, advice=SWEEP)
    if tokens is not None and not callable(tokens):
        rule = "a function of the number of ranks and the choice"
        arguments.refuse("tokens", rule, tokens, SWEEP, wrong_type=True)


def _check_plan(choices: Mapping[str, Any], tokens: Any) -> None:
    if not choices:
        arguments.wrong(
            f"A plan needs values for an argument of the program to choose from. {PLAN}"
        )
    _check_choices(choices, PLAN)
    for name, values in choices.items():
        if len({repr(value) for value in values}) < len(values):
            arguments.refuse(name, "a list of different values", values, PLAN)
    if tokens is not None and not callable(tokens):
        arguments.whole_number("tokens", tokens, 1)


def _check_choices(choices: Mapping[str, Any], advice: str) -> None:
    for name, value in choices.items():
        if isinstance(value, str) or not isinstance(value, Sequence) or not value:
            arguments.refuse(name, "a list of values", value, advice, wrong_type=True)


def _tokens_in_step(
    tokens: int | Callable[..., int] | None, ranks: int, choice: Mapping[str, Any]
) -> int | None:
    """The tokens of a step with this choice; asked before the program runs, which takes longer."""
    if not callable(tokens):
        return tokens
    found = tokens(ranks, **choice)
    if not isinstance(found, int):
        _check_tokens(found, ranks, choice)
    return found


def _check_tokens(found: Any, ranks: int, choice: Mapping[str, Any]) -> None:
    words = ", ".join(f"{name}={value!r}" for name, value in {"ranks": ranks, **choice}.items())
    advice = "It is how many all ranks together have in a step."
    arguments.whole_number(f"tokens({words})", found, 1, advice=advice)


def _depth_of(
    name: str | None, period: int | Callable[..., int], choices: Mapping[str, Sequence[Any]]
) -> Depth | None:
    """How a model is predicted with fewer layers; None to predict it whole."""
    if name is None:
        return None
    if name not in choices:
        rule = f"the name of a choice ({', '.join(choices)})"
        arguments.refuse("depth", rule, name, "For example: depth='layers', layers=[80].")
    for layers in choices[name]:
        arguments.whole_number(name, layers, 1)
    if callable(period):
        return Depth(name, period)
    return Depth(name, lambda ranks, **choice: period)


def _check(program: Any, ranks: Any, network: Any, device: Any, roles: Any) -> None:
    if not callable(program):
        rule = "a function of (rank, world_size)"
        arguments.refuse("program", rule, program, EXAMPLE, wrong_type=True)
    arguments.whole_number("ranks", ranks, 1)
    arguments.instance("network", network, Network, EXAMPLE)
    arguments.instance("device", device, Device, EXAMPLE)
    network.check_size(ranks)
    if roles is not None:
        arguments.ranks("roles", roles, ranks, "For example: roles=[0, 8].")
