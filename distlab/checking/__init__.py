"""Exercises: what one is, how an answer is tried on ranks, and the verdict.

exercises.py says what an exercise is, and anybody may import its names from here. check.py runs on
the notebook's kernel, and so does progress.py, which keeps what has been passed; trial.py runs on
every rank. What a call did there travels as bytes (packing.py, observed.py) to the process that
judges it (judging.py, comparing.py, reasons.py, values.py). That is the notebook's kernel, or a
process that marks a class and trusts no answer (tampering.py).
"""

from distlab.checking.exercises import (
    COLLECTIVES,
    Exercise,
    Limits,
    Question,
    Race,
    Seen,
    all_but,
    all_exercises,
    as_they_are,
    exercise,
    formula,
    gathered,
    name_labs,
    nothing,
    numbers,
    on_rank,
    question,
    recorded,
    returned,
    returned_and_arguments,
    title_of_lab,
)

__all__ = [
    "COLLECTIVES",
    "Exercise",
    "Limits",
    "Question",
    "Race",
    "Seen",
    "all_but",
    "all_exercises",
    "as_they_are",
    "exercise",
    "formula",
    "gathered",
    "name_labs",
    "nothing",
    "numbers",
    "on_rank",
    "question",
    "recorded",
    "returned",
    "returned_and_arguments",
    "title_of_lab",
]
