"""Predictions beside published measurements (published.py), as tables in benchmarks/README.md.

Run it with `python -m benchmarks.predictions`, or with titles of tables or names of rows behind it.
What was predicted is kept in predictions.json, from which the tables are made: all of them take
hours.
"""

from __future__ import annotations

import functools
import json
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import distlab
from benchmarks.published import QUESTIONS, TABLES
from benchmarks.published_rows import DENSE, EXPERTS, FLOAT8, GIB, PublishedTable, Question, Row
from distlab import Device
from distlab.errors import DistlabError
from distlab_course.pretraining import train
from distlab_predict.prediction import Prediction

KEPT = Path(__file__).with_name("predictions.json")
README = Path(__file__).with_name("README.md")
BEGIN = "<!-- predictions -->"
END = "<!-- /predictions -->"
DEFAULTS = {"batch": 2, "length": 8192}
KINDS = (DENSE, FLOAT8, EXPERTS)


@dataclass(frozen=True)
class Step:
    """A step as it was predicted, or why there is no prediction.

    Attributes:
        tokens: a second, of each GPU; 0.0 without a prediction.
        low, high: tokens a second between which they probably are.
        gibibytes: that torch reserves at its peak.
        efficiency: of the device.
        why: "" if there is a prediction.
    """

    tokens: float
    low: float
    high: float
    gibibytes: float
    efficiency: float
    why: str = ""


# --- predicting ---


def predicted_rows(table: PublishedTable, rows: Sequence[Row]) -> Iterator[tuple[str, Step]]:
    """The steps of some rows of a table, with their names, one after another."""
    device = _calibrated(table)
    for row in rows:
        try:
            step = _step_of(row, table, device)
        except DistlabError as error:
            step = Step(0.0, 0.0, 0.0, 0.0, device.efficiency, str(error))
        print(line_of(row, step), flush=True)
        yield row.name, step


def _calibrated(table: PublishedTable) -> Device:
    """The device as the first row shows it; with all of its FLOP/s, if it would need more."""
    first = table.rows[0]
    guess = predicted(first, table, replace(table.device, efficiency=1.0))
    seconds = _tokens_in_step(first) / first.ranks / (first.tokens or 1.0)
    if guess.seconds >= seconds:
        return replace(table.device, efficiency=1.0)
    found = guess.calibrated(seconds)
    return replace(table.device, efficiency=found.efficiency, if_slower=found.if_slower)


def _step_of(row: Row, table: PublishedTable, device: Device) -> Step:
    """Predict a row.

    Of many micro-batches, which take an hour to note, two smaller numbers are predicted: the
    steady state of a pipeline, or of passes that add up gradients, adds as much for each.
    """
    count = row.options.get("microbatches", 1)
    few = max(2, row.options.get("pipeline", 1))
    if count <= 2 * few:
        step = predicted(row, table, device)
        seconds = step.seconds
    else:
        one = predicted(with_microbatches(row, few), table, device)
        step = predicted(with_microbatches(row, 2 * few), table, device)
        each = (step.seconds - one.seconds) / few
        seconds = step.seconds + (count - 2 * few) * each
    tokens = _tokens_in_step(row) / row.ranks / seconds
    low, high = step.interval
    return Step(
        tokens,
        tokens * step.seconds / high,
        tokens * step.seconds / low,
        step.reserved / GIB,
        device.efficiency,
    )


def with_microbatches(row: Row, count: int) -> Row:
    """The same program with so many micro-batches, each as long as before."""
    each = row.options["batch"] // row.options["microbatches"]
    return replace(row, options={**row.options, "batch": each * count, "microbatches": count})


def predicted(row: Row, table: PublishedTable, device: Device) -> Prediction:
    """A step of a row's program on its machines."""
    if row.captured:
        device = replace(device, host=0.0)
    program = functools.partial(train, size=row.size, **{**DEFAULTS, **row.options})
    return distlab.predict(
        program, row.ranks, table.machines(row.ranks), device, compiled=row.compiled
    )


def _tokens_in_step(row: Row) -> int:
    """Tokens of all ranks together."""
    options = {**DEFAULTS, **row.options}
    sequences = options["batch"] * row.ranks
    for dimension in ("tensor", "pipeline", "context"):
        sequences //= options.get(dimension, 1)
    return sequences * options["length"]


# --- tables ---


def off(published: float | str | None, found: float) -> float | None:
    """By how much a prediction is off, as a share; None if nothing was published, or found."""
    if isinstance(published, str) or not published or not found:
        return None
    return found / published - 1


def line_of(row: Row, step: Step | None) -> str:
    """A line of a table; None for a row that was not predicted."""
    if step is None:
        known = "" if row.memory is None else row.memory
        return f"| {row.name} | {row.ranks:,} | {row.tokens or ''} | not tried | | {known} | | |"
    if step.why:
        return f"| {row.name} | {row.ranks} | {row.tokens or ''} | fails: {step.why} | | | | |"
    speed = off(row.tokens, step.tokens)
    memory = off(row.memory, step.gibibytes)
    cells = (
        row.name,
        f"{row.ranks:,}",
        "" if row.tokens is None else f"{row.tokens:,.0f}",
        f"{step.tokens:,.0f} ({step.low:,.0f} to {step.high:,.0f})",
        in_percent(speed),
        "" if row.memory is None else str(row.memory),
        f"{step.gibibytes:,.1f}",
        in_percent(memory),
    )
    return f"| {' | '.join(cells)} |"


def in_percent(share: float | None) -> str:
    """A share with its sign: "-1.2%"; "" for None."""
    return "" if share is None else f"{share:+.1%}"


def table_of(table: PublishedTable, steps: Mapping[str, Step]) -> str:
    """Markdown: what was published, and what is predicted."""
    lines = [
        f"| {table.title} | GPUs | tokens/s of each | predicted | off | GiB | predicted | off |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for number, row in enumerate(table.rows):
        name = row.name
        step = steps.get(name)
        if step is not None and _calibrates(number, step):
            name = f"{name} (calibrates)"
        lines.append(line_of(replace(row, name=name), step))
    source = f"Source: {table.source}."
    if steps:
        efficiency = next(iter(steps.values())).efficiency
        source = f"Efficiency: {efficiency:.2f}. {source}"
    return "\n".join([*lines, "", source])


def summary(kept: Mapping[str, Mapping[str, Step]]) -> str:
    """Markdown: the errors by kind, without the rows that calibrate."""
    speeds: dict[str, list[float]] = {kind: [] for kind in KINDS}
    memories: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for table in TABLES:
        for number, row in enumerate(table.rows):
            step = kept.get(table.title, {}).get(row.name)
            if step is None:
                continue
            speed = off(row.tokens, step.tokens)
            memory = off(row.memory, step.gibibytes)
            if speed is not None and not _calibrates(number, step):
                speeds[row.kind].append(abs(speed))
            if memory is not None:
                memories[row.kind].append(abs(memory))
    lines = ["| rows | number | median error | worst | of memory: median | worst |"]
    lines.append("|---|---:|---:|---:|---:|---:|")
    for kind in KINDS:
        lines.append(f"| {kind} | {_errors(speeds[kind])} | {_errors(memories[kind], '')} |")
    every = [error for errors in speeds.values() for error in errors]
    memory_of_all = [error for errors in memories.values() for error in errors]
    lines.append(f"| all | {_errors(every)} | {_errors(memory_of_all, '')} |")
    return "\n".join(lines)


def _calibrates(number: int, step: Step) -> bool:
    """Whether a row calibrated the device of its table: the first one, if it could."""
    return number == 0 and step.efficiency < 1.0


def _errors(errors: Sequence[float], number: str | None = None) -> str:
    """Cells: how many, the median and the worst error."""
    count = f"{len(errors)} | " if number is None else number
    if not errors:
        return f"{count} | "
    return f"{count}{statistics.median(errors):.1%} | {max(errors):.1%}"


def answers(kept: Mapping[str, Mapping[str, Step]]) -> str:
    """Markdown: questions of scaling, of which the answer is a ratio of two rows."""
    lines = ["| tokens/s of each GPU, as a ratio | published | predicted | off |"]
    lines.append("|---|---:|---:|---:|")
    for question in QUESTIONS:
        steps = kept.get(question.table, {})
        if question.first not in steps or question.second not in steps:
            continue
        published, found = _ratios(question, steps)
        share = in_percent(found / published - 1)
        lines.append(f"| {question.text} | {published:.3f} | {found:.3f} | {share} |")
    return "\n".join(lines)


def _ratios(question: Question, steps: Mapping[str, Step]) -> tuple[float, float]:
    """The published and the predicted answer."""
    (table,) = [table for table in TABLES if table.title == question.table]
    rows = {row.name: row for row in table.rows}
    first = rows[question.first].tokens or 1.0
    second = rows[question.second].tokens or 1.0
    found = steps[question.second].tokens / (steps[question.first].tokens or 1.0)
    return second / first, found


# --- files ---


def kept_steps() -> dict[str, dict[str, Step]]:
    """What was predicted before, by table and row."""
    if not KEPT.exists():
        return {}
    kept: dict[str, dict[str, Step]] = {}
    for title, steps in json.loads(KEPT.read_text()).items():
        kept[title] = {name: Step(**values) for name, values in steps.items()}
    return kept


def keep(kept: Mapping[str, Mapping[str, Step]]) -> None:
    """Write what was predicted, as text that a person can compare."""
    values: dict[str, dict[str, Any]] = {}
    for title, steps in kept.items():
        values[title] = {name: asdict(step) for name, step in steps.items()}
    KEPT.write_text(json.dumps(values, indent=1) + "\n")


def write_tables(kept: Mapping[str, Mapping[str, Step]]) -> None:
    """Write the tables into README.md, between their marks."""
    parts = [table_of(table, kept.get(table.title, {})) for table in TABLES]
    text = "\n\n".join([summary(kept), answers(kept), *parts])
    before, rest = README.read_text().split(BEGIN)
    _, after = rest.split(END)
    README.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


def main(names: Sequence[str]) -> None:
    """Predict the tables and rows of these names, or all, and write the tables."""
    kept = kept_steps()
    for table in TABLES:
        wanted = table.rows
        if names and table.title not in names:
            wanted = [row for row in table.rows if row.name in names]
        if not wanted:
            continue
        for name, step in predicted_rows(table, wanted):
            kept.setdefault(table.title, {})[name] = step
            keep(kept)
    write_tables(kept)


if __name__ == "__main__":
    main(sys.argv[1:])
