"""What a person who types is told, in a real kernel: completion, Shift-Tab, `name?`, and what a NameError means."""

import pytest

RANKS_OF_NOTEBOOK = 2
DEFINED = "%%px\ndef my_function(x):\n    'What it is for.'\n\nmine = torch.ones(3)"


@pytest.fixture(autouse=True)
def defined(notebook):
    """A function and a tensor that only the ranks have."""
    notebook.run(DEFINED)


COMPLETED = {
    "%%px\nprint(world_s": ["world_size"],
    "%%px\ndist.all_red": ["all_reduce", "all_reduce_coalesced"],
    "%%px\nmine.resize_a": ["resize_as", "resize_as_", "resize_as_sparse_"],
    "%%px --targets 0\nmy_f": ["my_function"],
    "%px my_f": ["my_function"],
    "%%px --tim": ["--timeout"],
    "%%px --trace --ch": ["--check"],
    "distlab.check('ring_all": ["ring_all_reduce"],
    'distlab.hint("largest_o': ["largest_on"],
    "world_s": [],
    "%%px\nmine.no_such": [],
    "%%px\nno_such.a": [],
}


@pytest.mark.parametrize(("typed", "offered"), COMPLETED.items(), ids=range(len(COMPLETED)))
def test_completion_knows_the_ranks(notebook, typed, offered):
    """Names of the ranks and their attributes in %%px cells, options on its line, exercises in a check."""
    reply = notebook.client.complete(typed, len(typed), reply=True, timeout=60)["content"]
    assert reply["matches"] == offered
    assert offered == [] or offered[0].startswith(typed[reply["cursor_start"] : reply["cursor_end"]])


def test_completion_keeps_pythons_words(notebook):
    """A word of Python, and names of the notebook, are still offered in a %%px cell."""
    notebook.run("rapid = 1")
    matches = notebook.client.complete("%%px\nra", 7, reply=True, timeout=60)["content"]["matches"]
    assert matches[0] == "rank"
    assert {"raise", "range", "rapid"} <= set(matches)


def test_shift_tab_and_a_question_mark(notebook):
    """The signature of what only the ranks have, in %%px cells; `name?` is output, alike on all ranks."""
    ask = notebook.client.inspect
    found = ask("%%px\nmy_function", 16, reply=True, timeout=60)["content"]
    assert "What it is for." in found["data"]["text/plain"]
    assert not ask("my_function", 11, reply=True, timeout=60)["content"]["found"]
    assert not ask("%%px\nno_such", 12, reply=True, timeout=60)["content"]["found"]
    shown = notebook.text("%%px\nmy_function?").splitlines()
    assert [" ".join(line.split()) for line in shown] == [
        "ranks 0-1: Signature: my_function(x)",
        "Docstring: What it is for.",
        "Type: function",
    ]


ERRORS = {
    "print(rank)": "rank is a variable of the ranks: begin the cell with %%px.",
    "mine + 1": "mine is a variable of the ranks: begin the cell with %%px, "
    'or bring it here with cluster.pull("mine").',
    "no_such + 1": "",
}


@pytest.mark.parametrize(("source", "advice"), ERRORS.items())
def test_a_name_error_says_where_the_name_is(notebook, source, advice):
    """After the error itself, if the ranks have that name."""
    error, *more = notebook.run(source)
    assert error["ename"] == "NameError"
    assert "".join(one["text"] for one in more).strip() == advice


def test_a_figure_that_a_rank_draws_has_its_rank(notebook):
    """Above each image stands whose it is."""
    source = "%%px\nimport matplotlib.pyplot as plt\nplt.plot([0, rank])\nNone\n%matplotlib inline\nplt.show()"
    shown = notebook.run(source)
    assert [one["data"]["text/plain"].split(":")[0] for one in shown] == ["rank 0", "rank 0", "rank 1", "rank 1"]
    assert ["image/png" in one["data"] for one in shown] == [False, True, False, True]


def test_one_line_is_line_1_and_a_sleep_is_no_computation(notebook):
    """%px counts its line as the first; a rank that sleeps is said to sleep."""
    assert "line 1   1/0" in notebook.text("%px 1/0")
    assert "ranks 0-1  sleeping  line 3" in notebook.text("%%px --timeout 1\nimport time\ntime.sleep(60)")


def test_a_progress_bar_needs_no_widgets(notebook):
    """tqdm.auto does not warn."""
    assert "Warning" not in notebook.text("%%px\nfrom tqdm.auto import tqdm\nfor _ in tqdm(range(2)):\n    pass")
