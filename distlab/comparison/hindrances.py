"""Findings that say what cannot be compared, and numbers that are not finite.

Runs where a comparison is judged, called by judging.py.
"""

from __future__ import annotations

from distlab.comparison.findings import Cause, Finding
from distlab.comparison.tolerances import Tolerances, exceeds
from distlab.comparison.wholes import World
from distlab.comparison.wording import name_list
from distlab.words import rank_list

# hooks that round, which the tolerance knows
ROUNDING_HOOKS = ("fp16", "bf16")


def find_hindrances(world: World, reference: World, tolerances: Tolerances) -> list[Finding]:
    """What makes a comparison of this world impossible, or incomplete."""
    return [
        *_no_step(world, reference),
        *_unrepeatable(reference, tolerances),
        *_other_beginning(world, reference, tolerances),
        *_local_statistics(world, reference),
        *_not_seen(world, reference),
    ]


def _no_step(world: World, reference: World) -> list[Finding]:
    """No optimizer stepped, in one process or on some ranks."""
    if not reference.steps:
        sentence = "No optimizer stepped in one process."
        details = ("step() of an optimizer of torch.optim is what is looked at.",)
        return [Finding(Cause.NO_STEP, sentence, details, 0, hinders=True)]
    still = [rank for rank in range(world.size) if not world.records[rank].steps]
    if not still:
        return []
    sentence = f"No optimizer stepped on {rank_list(still)}."
    return [Finding(Cause.NO_STEP, sentence, (), world.size, ranks=tuple(still), hinders=True)]


def _unrepeatable(reference: World, tolerances: Tolerances) -> list[Finding]:
    """One process begins with other values each time."""
    names = []
    for other in tolerances.perturbed:
        for name, copies in reference.initial.items():
            value = copies.whole("value")
            again = other.initial[name].whole("value") if name in other.initial else None
            if value is None or again is None:
                continue
            if exceeds((value - again).norm, 4 * tolerances.of_initial(name)):
                names.append(name)
    if not names:
        return []
    sentence = (
        "One process alone does not do the same twice: "
        f"{name_list(list(dict.fromkeys(names)))} began with other values."
    )
    details = (
        "Seed what the program draws, torch.manual_seed(0), and let nothing depend on time.",
    )
    return [
        Finding(Cause.UNREPEATABLE, sentence, details, 0, parameters=tuple(names), hinders=True)
    ]


def _other_beginning(world: World, reference: World, tolerances: Tolerances) -> list[Finding]:
    """The replicas are equal, but begin with other values than one process."""
    names = []
    for name, copies in world.initial.items():
        expected = reference.initial.get(name)
        right = None if expected is None else expected.whole("value")
        value = copies.whole("value") if copies.is_complete else None
        if right is None or value is None or len(value.sums) != len(right.sums):
            continue
        if exceeds((value - right).norm, tolerances.of_initial(name)):
            names.append(name)
    if not names:
        return []
    sentence = (
        f"The parameters begin with other values than in one process: {name_list(names)}, before "
        "the first forward pass."
    )
    details = (
        "Make the model with the same seed in every world, torch.manual_seed(0), and shard it "
        "afterwards.",
    )
    return [
        Finding(
            Cause.OTHER_INITIAL,
            sentence,
            details,
            world.size,
            parameters=tuple(names),
            hinders=True,
        )
    ]


def _local_statistics(world: World, reference: World) -> list[Finding]:
    """Batch normalisation sees the rows of one rank only."""
    names = list(dict.fromkeys(name for one in world.records for name in one.local_statistics))
    if not names or world.size == reference.size:
        return []
    sentence = f"BatchNorm normalises by the rows of each rank alone: {name_list(names)}."
    details = (
        "Its mean and variance are others than those of the whole batch, and so are all "
        "gradients. To compare, use nn.SyncBatchNorm.convert_sync_batchnorm(model) or "
        "nn.GroupNorm.",
    )
    return [Finding(Cause.LOCAL_STATISTICS, sentence, details, world.size, hinders=True)]


def _not_seen(world: World, reference: World) -> list[Finding]:
    """What could not be looked at."""
    sentences = []
    for record in [*reference.records, *world.records]:
        sentences += record.unseen
        hook = record.compression
        if hook and not any(known in hook.lower() for known in ROUNDING_HOOKS):
            sentences.append(f"The hook {hook} changes gradients by more than rounding.")
    missing = _missing(world, reference)
    if missing:
        whose = "belongs" if len(missing) == 1 else "belong"
        sentences.append(f"{name_list(missing)} {whose} to no optimizer of {world.size} ranks.")
    cut = _cut_by_hand(world, reference)
    if cut:
        sentences.append(
            f"{name_list(cut)} {'has' if len(cut) == 1 else 'have'} another shape than in one "
            "process: the program cuts them itself."
        )
    findings = []
    for sentence in dict.fromkeys(sentences):
        findings.append(Finding(Cause.NOT_SEEN, sentence, (), world.size, hinders=True))
    return findings


def _missing(world: World, reference: World) -> list[str]:
    """Parameters that one process steps, and no rank."""
    if not world.steps or not reference.steps:
        return []
    return [name for name in reference.steps[0] if name not in world.steps[0]]


def _cut_by_hand(world: World, reference: World) -> list[str]:
    """Parameters whose shape is another one."""
    names = []
    for step, right in zip(world.steps[:1], reference.steps[:1], strict=False):
        for name, copies in step.items():
            if name in right and _shape(copies) != _shape(right[name]):
                names.append(name)
    return names


def _shape(copies) -> tuple[int, ...]:
    first, *_ = copies.by_rank.values()
    return first.shape
