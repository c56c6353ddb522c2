"""What worked on which backend in older versions of torch, from the tables of its documentation. Runs anywhere.

Source: the tables of backends in the documentation of torch.distributed: the oldest, when it had the tcp backend, and
that of torch 1.0 to 1.3.
"""

from __future__ import annotations

from distlab.probing.names import Column, Outcome

_CELLS = {"y": Outcome("works"), "-": Outcome("refused"), "?": Outcome("depends", "on how MPI was built")}


def _table(columns: tuple[str, ...], rows: dict[str, str]) -> dict[Column, dict[str, Outcome]]:
    """By column, by function: what the documentation said; a row is a letter for each column."""
    named = [Column(*column.split()) for column in columns]
    return {
        column: {name: _CELLS[letters[place]] for names, letters in rows.items() for name in names.split()}
        for place, column in enumerate(named)
    }


HISTORY = {
    "oldest torch": _table(
        ("tcp cpu", "tcp cuda", "gloo cpu", "gloo cuda", "mpi cpu", "mpi cuda"),
        {
            "send recv": "y---y?",
            "broadcast all_reduce barrier": "y-yyy?",
            "reduce all_gather gather scatter": "y---y?",
        },
    ),
    "torch 1.0 to 1.3": _table(
        ("gloo cpu", "gloo cuda", "mpi cpu", "mpi cuda", "nccl cpu", "nccl cuda"),
        {
            "send recv": "y-y?--",
            "broadcast all_reduce": "yyy?-y",
            "reduce all_gather barrier": "y-y?-y",
            "gather scatter": "y-y?--",
        },
    ),
}
# the functions of those tables, and the cases of today's probe that stand for them
THEN = {
    "send": "send, recv",
    "recv": "send, recv",
    "broadcast": "broadcast",
    "all_reduce": "all_reduce",
    "reduce": "reduce",
    "all_gather": "all_gather",
    "gather": "gather",
    "scatter": "scatter",
    "barrier": "barrier",
}
