"""`%%px --compare`: the ranks of a cell, compared with each other."""

import pytest

RANKS_OF_NOTEBOOK = 2
MODEL = """%%px
from torch import nn
from torch.nn.parallel import DistributedDataParallel
torch.manual_seed(1)
model = nn.Linear(4, 1)
net = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
rows = torch.randn(8, 4)[rank::world_size]
"""
STEP = """%%px --compare
optimizer.zero_grad()
{called}(rows).square().mean().backward()
optimizer.step()
print("stepped on", rank)
"""


@pytest.fixture
def model(notebook):
    """A notebook whose ranks have a model that was wrapped in an earlier cell."""
    notebook.run(MODEL)
    assert notebook.status == "ok"
    return notebook


def test_ranks_that_agree(model):
    """The verdict comes after what the cell prints."""
    text = model.text(STEP.format(called="net"))
    printed, verdict = text.split("The ranks do the same: ")
    assert printed.split("\n")[:2] == ["rank 0: stepped on 0", "rank 1: stepped on 1"]
    assert verdict.startswith("1 step, 2 parameters")


def test_replicas_that_drift_are_named_with_the_line_of_the_cell(model):
    text = " ".join(model.text(STEP.format(called="model")).split())
    assert "nothing averaged the gradients" in text
    assert "line 3" in text


def test_a_cell_that_fails_shows_its_error_alone(model):
    """And what looked at it is gone: the next cell runs as always."""
    text = model.text("%%px --compare\noptimizer.step()\n1 / 0")
    assert text.startswith("RankError: ranks 0-1 raised ZeroDivisionError: division by zero")
    assert "do the same" not in text
    hooks = "%%px\nfrom torch.optim import optimizer as module\nmodule._global_optimizer_pre_hooks"
    assert model.text(hooks) == "ranks 0-1 -> OrderedDict()"


def test_one_rank_has_nothing_to_be_compared_with(model):
    words = (
        "ArgumentError: --compare compares ranks with each other, so it needs two or more of them."
    )
    assert model.text("%%px --compare --targets 0\n1") == words


def test_it_goes_with_a_trace(model):
    text = model.text(STEP.format(called="net").replace("--compare", "--compare --trace"))
    assert "The ranks do the same: 1 step" in text
    assert model.status == "ok"
