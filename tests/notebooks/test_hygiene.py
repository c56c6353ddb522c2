"""The form that every committed notebook has. What it claims is compared by pytest --nbval."""

import functools
import re

import nbformat
import pytest

from distlab import errors, words
from tests.tool import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").rglob("[0-9]*.ipynb"))
LONGEST_CELL = 40
CELL_METADATA = {"tags", "jupyter", "not_compared"}

LESSONS = [path for path in NOTEBOOKS if path.parent.name == "notebooks"]
each_lesson = pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


@functools.cache
def read(path):
    return nbformat.read(path, as_version=4)


def code_cells(path):
    return [cell for cell in read(path).cells if cell.cell_type == "code"]


def markdown_cells(path):
    return [cell for cell in read(path).cells if cell.cell_type == "markdown"]


def tags(cell):
    return cell.metadata.get("tags", [])


def without_code(text):
    """Markdown without its code, tables and pictures."""
    text = re.sub(r"```.*?```|~~~.*?~~~|\$\$.*?\$\$|<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"`[^`\n]*`", "code", text)
    return [line for line in text.splitlines() if not line.lstrip().startswith(("|", "<", "!["))]


@each_notebook
def test_the_file_is_one_that_any_jupyter_opens(path):
    """The notebook is valid nbformat 4.5 or newer, and each cell has its own id.

    The author's Python is not named.
    """
    notebook = read(path)
    nbformat.validate(notebook)
    assert (notebook.nbformat, notebook.nbformat_minor) >= (4, 5)
    assert len({cell["id"] for cell in notebook.cells}) == len(notebook.cells)
    assert (notebook.metadata.kernelspec.name, notebook.metadata.language_info.name) == (
        "python3",
        "python",
    )
    assert "version" not in notebook.metadata.language_info
    assert re.fullmatch(r"\d\d_[a-z0-9]+(_[a-z0-9]+)*\.ipynb", path.name), "NN_snake_case.ipynb"
    assert all(set(cell.metadata) <= CELL_METADATA for cell in notebook.cells)


@each_notebook
def test_it_was_run_once_from_top_to_bottom(path):
    """The execution counts are 1..n, and half of the cells show something.

    Else strict nbval would compare nothing.

    No cell is longer than a screen.
    """
    cells = code_cells(path)
    assert max(len(cell.source.splitlines()) for cell in cells) <= LONGEST_CELL
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert sum(bool(cell.outputs) for cell in cells) >= len(cells) / 2


@each_notebook
def test_nothing_of_the_authors_run_is_saved(path):
    """No bar of tqdm or of a widget, no line that was overwritten, no directory of that machine.

    An error is there only where the cell is tagged raises-exception, and there it is.
    """
    for cell in code_cells(path):
        failed = any(output.output_type == "error" for output in cell.outputs)
        assert failed == ("raises-exception" in tags(cell)), cell.source
        shown = "".join(
            output.get("text", "") + str(output.get("data", {})) for output in cell.outputs
        )
        assert not re.search(r"\d+%\||ProgressView|Progress\(", shown), cell.source
        assert not any("\r" in output.get("text", "") for output in cell.outputs), cell.source
        assert str(ROOT) not in str(cell.outputs), cell.source
        assert not re.search(r"/(?:home|Users|tmp|var)/\w+", str(cell.outputs)), cell.source


@each_notebook
def test_saved_reports_are_what_a_notebook_shows(path):
    """nbval compares the message of an error, and not how it is shown."""
    for cell in code_cells(path):
        for output in cell.outputs:
            if output.output_type == "error" and output.ename in errors.ERROR_NAMES:
                assert output.traceback == words.fitted(f"{output.ename}: {output.evalue}")


@each_notebook
def test_ignored_outputs_say_why(path):
    """One tag keeps an output from being compared, and the cell's metadata says why.

    A learner does not read the reason: it is for those who change the lab. nbval reads other tags
    and comments, too, and is silent about one that it does not know.
    """
    for cell in code_cells(path):
        assert {*tags(cell)} <= {"raises-exception", "nbval-ignore-output"}, tags(cell)
        assert "nbval_" not in cell.source.lower(), cell.source
        is_ignored = "nbval-ignore-output" in tags(cell)
        assert is_ignored == (len(cell.metadata.get("not_compared", "")) >= 8), cell.source


@each_notebook
def test_markdown_has_one_sentence_a_line(path):
    """A line of Markdown holds one sentence, so that who changes one changes one line."""
    for cell in markdown_cells(path):
        for line in without_code(cell.source):
            assert not re.search(r"[a-z)`*\"][.!?] +[A-Z]", line), line


@each_notebook
def test_it_begins_with_its_title_and_ends_by_stopping_its_cluster(path):
    """The first cell is text with a first-level heading, and the last code cell stops the ranks.

    No cell is empty.
    """
    first = read(path).cells[0]
    assert first.cell_type == "markdown"
    assert first.source.startswith("# ")
    assert re.search(r"\bcluster\.stop\(\)", code_cells(path)[-1].source)
    assert all(cell.source.strip() for cell in read(path).cells)


@each_notebook
def test_commands_of_a_terminal_are_those_of_this_python(path):
    """A Python that is not active has no torchrun, and another one no distlab."""
    sources = [cell.source for cell in code_cells(path)]
    command = r"^\s*(?:python|torchrun|distlab) "
    in_terminal = [one for one in sources if one.startswith("%%bash")]
    if any(re.search(command, one, re.MULTILINE) for one in in_terminal):
        assert any("clean_environment()" in one for one in sources)


@each_notebook
def test_temporary_files_are_removed(path):
    """A folder that a cell makes goes at the end of the lab, not with the system's next start."""
    code = "\n".join(cell.source for cell in code_cells(path))
    assert code.count("mkdtemp(") == code.count("rmtree(")
    assert code.count("TemporaryDirectory(") == code.count(".cleanup()") + code.count(
        "with tempfile.TemporaryDirectory("
    )


@each_notebook
def test_diagrams_and_links_exist(path):
    """Every file that the text names is there; a diagram has its PNG, which make colab embeds."""
    for cell in markdown_cells(path):
        targets = re.findall(r"\]\(([^)\s]+)[^)]*\)", cell.source) + re.findall(
            r"src=[\"']([^\"']+)", cell.source
        )
        for target in targets:
            if re.match(r"[a-z]+:|#", target):
                continue
            file = path.parent / target.split("#")[0]
            assert file.is_file(), target
            if "figs" in file.parts:
                assert file.with_suffix(".png").is_file(), target
