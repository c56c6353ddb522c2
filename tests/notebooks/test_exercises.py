"""The exercises that check themselves: an answer passes its check, and what looks like one does not."""

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

from tests.tool import ROOT

RIGHT = "ranks 0-3: right"

# By notebook: (id of the stub, id of its check, cells that they need, an answer, what makes it wrong, its error).
EXERCISES = {
    "01_point_to_point": [
        (
            *("p2p-74", "p2p-75", ["p2p-44"]),
            """
def from_the_left(mine):
    theirs = torch.zeros_like(mine)
    work = dist.irecv(theirs, src=left)
    dist.send(mine, dst=right)
    work.wait()
    return theirs
""",
            ("src=left)", "src=left)\n    work.wait()"),
            "DeadlockError",
        ),
        (
            *("p2p-83", "p2p-84", []),
            """
def deliver(numbers):
    if rank == 0:
        dist.send(torch.tensor([len(numbers)]), dst=1)
        for number in numbers:
            dist.send(torch.tensor([number]), dst=1)
    elif rank == 1:
        count, number, total = torch.zeros(1, dtype=torch.int64), torch.zeros(1), 0.0
        dist.recv(count, src=0)
        for _ in range(count.item()):
            dist.recv(number, src=0)
            total += number.item()
        return total
""",
            ("if rank == 0:", "return sum(numbers or [])\n    if rank == 0:"),
            "RankError",
        ),
    ],
    "02_collectives": [
        (
            *("coll-116", "coll-117", []),
            """
def sums_by_step(batches):
    steps = torch.tensor(len(batches))
    dist.all_reduce(steps, op=dist.ReduceOp.MAX)
    sums = []
    for step in range(steps):
        total = torch.tensor(batches[step] if step < len(batches) else 0.0)
        dist.all_reduce(total)
        sums.append(total.item())
    return sums
""",
            ("return sums", "return batches"),
            "RankError",
        ),
        (
            *("coll-121", "coll-122", []),
            """
def ragged_all_reduce(t):
    longest = torch.tensor(len(t))
    dist.all_reduce(longest, op=dist.ReduceOp.MAX)
    total = torch.zeros(int(longest))
    total[: len(t)] = t
    dist.all_reduce(total)
    return total
""",
            ("return total", "return total[: len(t)]"),
            "RankError",
        ),
    ],
}


def cells_of(name):
    """The notebook's code by cell id, and the cells that start the ranks."""
    cells = [c for c in nbformat.read(ROOT / f"notebooks/{name}.ipynb", as_version=4).cells if c.cell_type == "code"]
    first = next(i for i, cell in enumerate(cells) if "distlab.Cluster(" in cell.source)
    return {cell["id"]: cell.source for cell in cells}, [cell.source for cell in cells[: first + 1]]


def shown(cell):
    """All that a cell shows, as text, with the names of its errors."""
    texts = [output.get("ename") or output.get("text") or output["data"]["text/plain"] for output in cell.outputs]
    return "\n".join(texts)


@pytest.mark.timeout(200)
@pytest.mark.parametrize("name", EXERCISES)
def test_a_check_accepts_the_answer_only(name):
    """Each check says "right" of an answer, fails on a wrong one, and says so when there is none."""
    sources, start = cells_of(name)
    run, expected = list(start), {}
    for stub, check, needed, answer, wrong, error in EXERCISES[name]:
        run += [sources[cell] for cell in needed]
        for written, verdict in (
            (sources[stub], "not attempted: exercise"),
            (f"%%px{answer}", RIGHT),
            (f"%%px{answer.replace(*wrong)}", error),
        ):
            run += [written, sources[check]]
            expected[len(run) - 1] = verdict
    notebook = new_notebook(cells=[new_code_cell(source) for source in [*run, "cluster.stop()"]])
    NotebookClient(notebook, timeout=60, allow_errors=True).execute()
    for position, verdict in expected.items():
        assert verdict in shown(notebook.cells[position]), run[position - 1]
        assert (RIGHT in shown(notebook.cells[position])) == (verdict == RIGHT), run[position - 1]
