"""Findings about samplers: every epoch has the same order.

Runs where a comparison is judged, called by judge.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from distlab.comparison.findings import Cause, Finding
from distlab.comparison.judging.forward_passes import training_rows
from distlab.comparison.judging.wholes import World
from distlab.comparison.judging.wording import different
from distlab.comparison.records import RankRecord, SeenSampler
from distlab.words import grouped


def find_same_order(world: World) -> list[Finding]:
    """The finding that a sampler that shuffles gave the same order in several epochs."""
    record = world.records[0]
    by_sampler = grouped((one.sampler, one) for one in record.samplers if one.shuffles)
    for passes in by_sampler.values():
        epochs = [one.epoch for one in passes]
        if len(set(epochs)) == len(epochs) or not _rows_repeat(record, len(passes)):
            continue
        return [_same_order(world, passes)]
    return []


def _rows_repeat(record: RankRecord, passes: int) -> bool:
    """Whether the rows of training have the same order twice; also if no rows were seen.

    A pass over a sampler may be but a look at the first batch.
    """
    rows = training_rows(record)
    if not rows:
        return True
    length = len(rows) // passes
    for begin in range(0, len(rows) - 2 * length + 1, max(length, 1)):
        if rows[begin : begin + length] == rows[begin + length : begin + 2 * length]:
            return True
    # the last epoch may have been left before its end
    return any(rows[begin:] == rows[:-begin] for begin in range(length, len(rows) - 1))


def _same_order(world: World, passes: Sequence[SeenSampler]) -> Finding:
    epoch = passes[0].epoch
    sentence = (
        f"Every epoch has the same order: in {len(passes)} epochs the sampler shuffled by epoch "
        f"{epoch}."
    )
    if len({one.epoch for one in passes}) > 1:
        sentence = "Some epochs have the same order: set_epoch() got the same number twice."
    details = (
        "Without set_epoch() a DistributedSampler shuffles by the same number again: call "
        "sampler.set_epoch(epoch) at the beginning of every epoch.",
    )
    return Finding(
        Cause.SAME_ORDER,
        sentence,
        details,
        world.size,
        lines=different(one.line for one in passes),
    )
