"""A name in a function that is sent, with one value in the notebook and another on the ranks."""

SAID = (
    "`x` has one value in the notebook and another on ranks 0-1, and the function used the "
    "notebook's. Rename one of the two, or send the notebook's to the ranks with "
    'cluster.push({"x": x}).'
)
RUN = "print(cluster.run(lambda rank, world_size: x))"


def shown_by(notebook):
    """The lines of a call, of both streams, which come in either order."""
    return {line for line in notebook.text(RUN).splitlines() if line}


def test_a_name_with_two_values_is_named_once(notebook):
    """It is said again when one of the two values is another, and not after a push."""
    notebook.run("%%px\nx = 1")
    assert notebook.text(RUN) == "[1, 1]\n"  # only the ranks have it
    notebook.run("x = 2")
    assert shown_by(notebook) == {SAID, "[2, 2]"}
    assert notebook.text(RUN) == "[2, 2]\n"
    notebook.run("%%px\nif rank == 1: x = 2")
    assert shown_by(notebook) == {SAID.replace("ranks 0-1", "rank 0"), "[2, 2]"}
    notebook.run('cluster.push({"x": x})')
    assert notebook.text(RUN) == "[2, 2]\n"
    notebook.run("x = 3")  # the pushed value is an older one of the notebook's
    assert notebook.text(RUN) == "[3, 3]\n"


def test_what_a_cell_gives_both_is_no_clash(notebook):
    """Modules, functions and values of a `--local` cell, and names that a function only binds."""
    notebook.run(
        "%%px --local\nimport math\nimport torch\n\nfactor = 3\nweights = torch.ones(3)\n\n\n"
        "def scale(value):\n    return factor * value\n"
    )
    notebook.run("%%px\nrank_times_two = 2 * rank")
    notebook.run("rank = 7")
    text = notebook.text(
        "def fn(rank, world_size):\n"
        "    return scale(math.floor(2.5)) + int(weights.sum()) + rank_times_two\n\n\n"
        "print(cluster.run(fn))"
    )
    assert text == "[9, 11]\n"
