"""Findings that say what cannot be compared.

Runs where a comparison is judged, called by judge.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from distlab.comparison.findings import Cause, Finding
from distlab.comparison.judging.forward_passes import training_passes, training_rows
from distlab.comparison.judging.pairs import Numbers
from distlab.comparison.judging.tolerances import COARSE, Tolerances, exceeds
from distlab.comparison.judging.wholes import World, stepped
from distlab.comparison.judging.wording import different, listed, name_list, number
from distlab.comparison.records import RankRecord
from distlab.words import rank_list

BLIND = 0.5  # a share of the gradient: if rounding explains so much, nothing is seen
CHANGED = 1e-2  # a share of the gradient that rounding never changes, unless types are coarse
CHANGED_IF_COARSE = 0.3
# with one of these it is said already why nothing can be seen
NOTHING_TO_SEE = {Cause.UNREPEATABLE, Cause.NO_STEP, Cause.NOTHING_MOVED, Cause.NOT_SEEN}
SEED_IT = (
    "Seed what the program draws, torch.manual_seed(0), and let neither rows nor parameters depend "
    "on time."
)


def find_hindrances(numbers: Numbers, left_out: Mapping[str, tuple[int, ...]]) -> list[Finding]:
    """What makes a comparison of this world impossible, or incomplete.

    Args:
        numbers: of the world and of the reference.
        left_out: shapes of parameters that could not be put together, by name.
    """
    unrepeatable = _find_unrepeatable(numbers)
    return [
        *unrepeatable,
        *_find_no_step(numbers.world, numbers.reference),
        *([] if unrepeatable else _find_other_beginning(numbers)),
        *_find_local_statistics(numbers.world, numbers.reference),
        *_find_not_seen(numbers, left_out),
        *_find_idle(numbers.world),
        *_find_equal_losses(numbers.world),
    ]


def _find_no_step(world: World, reference: World) -> list[Finding]:
    """No optimizer stepped, in one process or on the ranks."""
    if not reference.steps:
        sentence = "No optimizer stepped in one process."
        details = ("What is looked at is step() of an optimizer of torch.optim.",)
        return [Finding(Cause.NO_STEP, sentence, details, 0, hinders=True)]
    still = [rank for rank in range(world.size) if not world.records[rank].steps]
    if world.steps:
        return []  # some ranks stepped: the others' replicas, if they have any, are not equal
    sentence = f"No optimizer stepped on {rank_list(still)}, and one did in one process."
    return [Finding(Cause.NO_STEP, sentence, (), world.size, ranks=tuple(still))]


def find_no_step_on_ranks(world: World) -> list[Finding]:
    """No optimizer stepped on any rank, where ranks are compared with each other."""
    if world.steps:
        return []
    details = ("What is looked at is step() of an optimizer of torch.optim.",)
    return [Finding(Cause.NO_STEP, "No optimizer stepped.", details, world.size, hinders=True)]


def strangers_of_ranks(world: World) -> Finding:
    """Some parameters are in no module, so that ranks cannot be compared with each other."""
    sentence = (
        "The optimizers have parameters of no module that was called, and without one process it "
        "is not known whether they are replicas of each other."
    )
    details = ("distlab.compare(train, worlds=(1, 2)) compares them with one process.",)
    return Finding(Cause.NOT_SEEN, sentence, details, world.size, hinders=True)


# --- one process alone ---


def _find_unrepeatable(numbers: Numbers) -> list[Finding]:
    """The reference does something else each time, and not because of rounding."""
    reference = numbers.reference
    perturbed = numbers.tolerances.perturbed
    names = []
    for name, copies in reference.initial.items():
        value = copies.whole("value")
        for other in perturbed:
            again = other.initial[name].whole("value") if name in other.initial else None
            if value is None or again is None or len(value.sums) != len(again.sums):
                continue
            bound = 4 * numbers.tolerances.of_initial(name)
            if name not in names and exceeds((value - again).norm, bound):
                names.append(name)
    why = ""
    if names:
        why = f"{name_list(names)} began with other values"
    elif any(len(other.steps) != len(reference.steps) for other in perturbed):
        counts = listed([str(len(one.steps)) for one in (reference, *perturbed)])
        why = f"it made {counts} steps"
    elif _rows_are_others(reference, perturbed) and _is_changed(numbers.tolerances):
        why = "its rows are others each time, as without a seed"
    if not why:
        return []
    return [
        Finding(
            Cause.UNREPEATABLE,
            f"One process alone does not do the same twice: {why}.",
            (SEED_IT,),
            0,
            parameters=tuple(names),
            hinders=True,
        )
    ]


def _rows_are_others(reference: World, perturbed: Sequence[World]) -> bool:
    """Whether the rows of the first runs are not the same."""
    plain = _rows(reference)
    return any(_rows(other) != plain for other in perturbed)


def _rows(world: World) -> Counter[bytes]:
    rows: Counter[bytes] = Counter()
    for record in world.records:
        rows.update(training_rows(record))
    return rows


def _is_changed(tolerances: Tolerances) -> bool:
    """Whether the perturbed runs have changed the first gradients by more than rounding does."""
    reference = tolerances.reference
    squares = 0.0
    changed = 0.0
    for name, copies in reference.steps[0].items() if reference.steps else ():
        gradient = copies.whole("gradient")
        if gradient is None:
            continue
        squares += gradient.norm**2
        largest = 0.0
        for other in tolerances.perturbed:
            is_there = bool(other.steps) and name in other.steps[0]
            again = other.steps[0][name].whole("gradient") if is_there else None
            if again is not None:
                largest = max(largest, (again - gradient).norm)
        changed += largest**2
    share = CHANGED_IF_COARSE if tolerances.epsilon > COARSE else CHANGED
    return changed > share**2 * squares


# --- the ranks ---


def _find_other_beginning(numbers: Numbers) -> list[Finding]:
    """The replicas are equal, but begin with other values than one process."""
    names = []
    of_optimizers = stepped(numbers.world)
    for name, copies in numbers.world.initial.items():
        if name not in of_optimizers:
            continue
        expected = numbers.reference.initial.get(name)
        right = None if expected is None else expected.whole("value")
        value = copies.whole("value") if copies.is_complete else None
        if right is None or value is None:
            continue
        bound = numbers.tolerances.of_initial(name)
        if exceeds((value - right).norm, bound) and not exceeds(copies.spread("value"), bound):
            names.append(name)
    if not names:
        return []
    what = "All parameters" if len(names) == len(of_optimizers) else name_list(names)
    verb = "begins" if len(names) == 1 else "begin"
    return [
        Finding(
            Cause.OTHER_INITIAL,
            f"{what} {verb} with other values than in one process.",
            (
                "Make the model with the same seed in every world, torch.manual_seed(0), and "
                "shard it afterwards.",
            ),
            numbers.world.size,
            parameters=tuple(names),
            hinders=True,
        )
    ]


def _find_idle(world: World) -> list[Finding]:
    """One rank does all of the work, and the others nothing."""
    busy = []
    for rank, record in enumerate(world.records):
        if record.steps or record.forwards or record.backwards:
            busy.append(rank)
    if len(busy) != 1 or world.size == 1 or world.is_model_parallel:
        return []
    sentence = f"The ranks do not divide the work: rank {busy[0]} does it all, and others nothing."
    return [Finding(Cause.UNDIVIDED, sentence, (), world.size, ranks=tuple(busy), hinders=True)]


def _find_equal_losses(world: World) -> list[Finding]:
    """Where no module has rows, equal losses tell that every rank does all of the work."""
    if world.size == 1 or world.is_model_parallel:
        return []
    if any(forward.rows for record in world.records for forward in record.forwards):
        return []
    losses = [[one.loss for one in record.backwards] for record in world.records]
    first, *others = losses
    if not first or None in first or any(other != first for other in others):
        return []
    sentence = (
        "The ranks do not divide the work: no module was called whose rows could be looked at, "
        "and all ranks have the same losses, bit for bit."
    )
    return [Finding(Cause.UNDIVIDED, sentence, (), world.size, hinders=True)]


def _find_local_statistics(world: World, reference: World) -> list[Finding]:
    """Batch normalisation sees the rows of one rank only."""
    names = list(dict.fromkeys(name for one in world.records for name in one.local_statistics))
    if not names or world.size == reference.size:
        return []
    return [
        Finding(
            Cause.LOCAL_STATISTICS,
            f"BatchNorm normalises by the rows of each rank alone: {name_list(names)}.",
            (
                "Its mean and variance are not those of the whole batch, so no gradient is that "
                "of one process. To compare, use nn.SyncBatchNorm.convert_sync_batchnorm(model), "
                "or nn.GroupNorm in its place.",
            ),
            world.size,
            hinders=True,
        )
    ]


def _find_not_seen(numbers: Numbers, left_out: Mapping[str, tuple[int, ...]]) -> list[Finding]:
    """What could not be looked at."""
    world = numbers.world
    sentences: list[str] = _modes(world)
    for record in [*numbers.reference.records, *world.records]:
        sentences += record.unseen
    sentences += _stepped_in_one_world(numbers, left_out)
    if left_out:
        sentences.append(_left_out_words(numbers, left_out))
    cut = (
        [name for name in numbers.world.steps[0] if _is_incomplete(world, name)]
        if (world.steps)
        else []
    )
    if cut:
        verb = "is" if len(cut) == 1 else "are"
        sentences.append(f"{name_list(cut)} {verb} not whole: no rank stepped some of its parts.")
    findings = []
    for sentence in dict.fromkeys(sentences):
        findings.append(Finding(Cause.NOT_SEEN, sentence, (), world.size, hinders=True))
    return findings


def _stepped_in_one_world(numbers: Numbers, left_out: Mapping[str, tuple[int, ...]]) -> list[str]:
    """The first step in which one world steps parameters that the other one does not."""
    for step in range(numbers.steps):
        expected = numbers.reference.steps[step]
        found = numbers.world.steps[step]
        missing = [name for name in expected if name not in found and name not in left_out]
        more = [name for name in found if name not in expected and name not in left_out]
        sentences = []
        if missing:
            verb = "is" if len(missing) == 1 else "are"
            sentences.append(
                f"{name_list(missing)} {verb} stepped by no rank in step {step}, at least not "
                "under this name."
            )
        if more:
            verb = "is" if len(more) == 1 else "are"
            sentences.append(
                f"{name_list(more)} {verb} stepped by ranks in step {step}, and not in one process."
            )
        if sentences:
            return sentences
    return []


def _left_out_words(numbers: Numbers, left_out: Mapping[str, tuple[int, ...]]) -> str:
    """That parameters have other shapes than in one process, or parts that do not fit."""
    names = list(left_out)
    first = names[0]
    right = numbers.reference.initial.get(first)
    if right is None or right.shape == left_out[first]:
        verb = "is" if len(names) == 1 else "are"
        return f"{name_list(names)} {verb} in parts that do not make a whole."
    verb = "has another shape" if len(names) == 1 else "have other shapes"
    return (
        f"{name_list(names)} {verb} than in one process, and it is not known which part each rank "
        f"has: {list(left_out[first])} instead of {list(right.shape)} for {first}."
    )


def _modes(world: World) -> list[str]:
    """That some ranks train in evaluation mode, and others do not."""
    modes = {}
    for rank, record in enumerate(world.records):
        passes = []
        for step in range(len(record.steps)):
            passes += training_passes(record, step)
        if passes:
            modes[rank] = any(one.training for one in passes)
    evaluating = [rank for rank, is_training in modes.items() if not is_training]
    if not evaluating or len(evaluating) == len(modes):
        return []
    return [f"Some ranks train in evaluation mode, without model.train(): {rank_list(evaluating)}."]


def _is_incomplete(world: World, name: str) -> bool:
    return not world.steps[0][name].is_complete


def find_blindness(numbers: Numbers, known: Sequence[Finding]) -> list[Finding]:
    """Rounding explains so much that nothing can be seen, or nothing is there to be seen."""
    explained = {finding.cause for finding in known} & NOTHING_TO_SEE
    if not numbers.steps or explained:
        return []
    if not any(numbers.gradients(step) for step in range(numbers.steps)):
        sentence = "No parameter has a gradient that could be compared."
        return [Finding(Cause.NOT_SEEN, sentence, (), numbers.world.size, hinders=True)]
    step = first_blind_step(numbers)
    if step is None:
        return []
    share = number(numbers.vagueness(step))
    sentence = (
        f"Rounding alone explains {share} of the norm of the gradient in step {step}, so no "
        f"mistake could be seen{' from there on' if step else ''}."
    )
    details = ("Compare in float32, in fewer steps, or without what makes the program sensitive.",)
    return [Finding(Cause.NOT_SEEN, sentence, details, 0, step, hinders=True)]


def first_blind_step(numbers: Numbers) -> int | None:
    """The first step in which rounding explains as much as a mistake would change.

    Gradients that vanish, as at the end of a training, are no such thing: values are then known
    well.
    """
    for step in range(numbers.steps):
        if numbers.vagueness(step) > BLIND and (step == 0 or _values_are_vague(numbers, step)):
            return step
    return None


def _values_are_vague(numbers: Numbers, step: int) -> bool:
    """Whether rounding explains much of the way that the parameters have gone."""
    bounds = 0.0
    ways = 0.0
    for name, pair in numbers.values(step).items():
        copies = numbers.reference.initial.get(name)
        begin = None if copies is None else copies.whole("value")
        if begin is not None:
            bounds += pair.bound**2
            ways += (pair.expected - begin).norm ** 2
    return bounds > BLIND**2 * ways


# --- what excuses numbers that nothing else explains ---


def excuse(world: World, reference: World) -> Finding | None:
    """Why other numbers prove no mistake: random numbers, or gradients that are compressed."""
    drawn = different(line for one in _records(world, reference) for line in one.draws)
    if any(record.draws for record in _records(world, reference)):
        return Finding(
            Cause.NOT_SEEN,
            "Random numbers are drawn in training, and the ranks draw others than one process.",
            ("Give each row its own numbers, drawn with the data; or leave them out to compare.",),
            world.size,
            lines=drawn,
            hinders=True,
        )
    hooks = [record.compression for record in world.records if record.compression]
    if hooks:
        return Finding(
            Cause.NOT_SEEN,
            f"The communication hook {hooks[0]} changes the gradients.",
            ("Compare without register_comm_hook().",),
            world.size,
            hinders=True,
        )
    return None


def _records(world: World, reference: World) -> list[RankRecord]:
    return [*reference.records, *world.records]
