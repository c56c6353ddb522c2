"""The form that every committed notebook has. What it claims is compared by pytest --nbval."""

import ast
import re
from pathlib import Path

import nbformat
import pytest
from nbconvert.exporters import ScriptExporter
from nbval.plugin import comment_markers, find_comment_markers, find_metadata_tags, metadata_tags

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").rglob("[0-9]*.ipynb"))
LONGEST_CELL = 40

# A dot after one of these, or after one capital letter, does not end a sentence.
ABBREVIATIONS = r"(?:e\.g|i\.e|etc|vs|cf|Fig|Eq|Sec|No|pp|al|approx|[A-Z])"

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


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


def sentences_on(line):
    """How many sentences a line of Markdown holds, counted by their ends."""
    ends = re.finditer(r"(\S*)[.!?][)*_\"']* +(?=[*_(\"']*[A-Z])", re.sub(r"^\s*(?:\d+\.|[-*])\s+", "", line))
    return 1 + sum(not re.fullmatch(ABBREVIATIONS, end.group(1).lstrip("(*_")) for end in ends)


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("Ranks are processes.", 1),
        ("Ranks are processes. They share nothing.", 2),
        ("Does it hang? It does.", 2),
        ("Use a tag, e.g. Rank 0's.", 1),
        ("It takes 0.5 ms on torch 2.13.", 1),
        ("1. First the send.", 1),
        ("- **Naive.** The root does all.", 2),
        ("See Baidu et al. 2017 for more.", 1),
    ],
)
def test_sentences_are_counted(line, count):
    """The check of one sentence a line counts as a reader does."""
    assert sentences_on(line) == count


@each_notebook
def test_the_file_is_valid_with_cell_ids(path):
    """The notebook is valid nbformat 4.5 or newer, and each cell has its own id."""
    notebook = read(path)
    nbformat.validate(notebook)
    assert (notebook.nbformat, notebook.nbformat_minor) >= (4, 5)
    ids = [cell["id"] for cell in notebook.cells]
    assert len(set(ids)) == len(ids)


@each_notebook
def test_the_kernel_is_python3(path):
    """Any Jupyter finds the kernel, and the file does not name the author's Python."""
    metadata = read(path).metadata
    assert metadata.kernelspec.name == "python3"
    assert metadata.kernelspec.language == "python"
    language = {"name": "python", "file_extension": ".py", "mimetype": "text/x-python", "nbconvert_exporter": "python"}
    assert metadata.language_info == language


@pytest.mark.parametrize("path", NOTEBOOKS[:1], ids=lambda path: path.stem)
def test_it_is_converted_to_a_python_file(path):
    """nbconvert --to script NAME.ipynb writes NAME.py, its magics as calls: it goes by what the notebook says."""
    script, resources = ScriptExporter().from_filename(str(path))
    assert resources["output_extension"] == ".py"
    assert ast.parse(script)


@each_notebook
def test_the_name_is_snake_case(path):
    """A notebook is called NN_snake_case.ipynb."""
    assert re.fullmatch(r"\d\d_[a-z0-9]+(_[a-z0-9]+)*\.ipynb", path.name)


@each_notebook
def test_it_was_run_once_from_top_to_bottom(path):
    """The execution counts are 1..n: without them nbval's strict mode compares nothing."""
    counts = [cell.execution_count for cell in code_cells(path)]
    assert counts == list(range(1, len(counts) + 1))


@each_notebook
def test_outputs_are_committed(path):
    """At least half of the code cells show something; a stripped notebook would not be compared at all."""
    cells = code_cells(path)
    assert sum(bool(cell.outputs) for cell in cells) >= len(cells) / 2


@each_notebook
def test_no_unexpected_error_is_saved(path):
    """An error stands in an output only where the cell is tagged raises-exception, and there it does stand."""
    for cell in code_cells(path):
        failed = any(output.output_type == "error" for output in cell.outputs)
        assert failed == ("raises-exception" in tags(cell)), cell.source


@each_notebook
def test_no_volatile_metadata_is_saved(path):
    """A refresh does not change times and sizes of windows in cells that stayed the same."""
    for cell in read(path).cells:
        assert set(cell.metadata) <= {"tags", "jupyter"}, cell.source
    assert "widgets" not in read(path).metadata


@each_notebook
def test_no_progress_bar_is_saved(path):
    """Neither a bar of tqdm, nor a widget's, nor a line that was overwritten is part of the lesson."""
    for cell in code_cells(path):
        for output in cell.outputs:
            text = output.get("text", "") + str(output.get("data", {}))
            assert not re.search(r"\d+%\|", text), cell.source
            assert "\r" not in output.get("text", ""), cell.source
            assert "ProgressView" not in text, cell.source
            assert "Progress(" not in text, cell.source


@each_notebook
def test_no_path_of_the_author_is_saved(path):
    """No output names a directory of the machine that it was saved on, nor where that keeps temporary files."""
    for cell in code_cells(path):
        text = str(cell.outputs)
        assert str(ROOT) not in text, cell.source
        assert not re.search(r"/(?:home|Users|tmp|var)/\w+", text), cell.source


def odd_markers(source, tags=()):
    """The comments and tags that are meant for nbval, and that it does not read."""
    comments = [line.strip().lstrip("# ") for line in source.splitlines() if re.search(r"#.*NBVAL_", line, re.IGNORECASE)]
    named = [tag for tag in tags if re.search("nbval", tag, re.IGNORECASE)]
    return [text for text in comments if text not in comment_markers] + [tag for tag in named if tag not in metadata_tags]


@pytest.mark.parametrize(
    ("source", "odd"),
    [
        ("# NBVAL_IGNORE_OUTPUT\nx", []),
        ("%%px\n# NBVAL_IGNORE_OUTPUT\n# the cores of this machine", []),
        ("# NBVAL_IGNORE_OUTPUT: reason", ["NBVAL_IGNORE_OUTPUT: reason"]),
        ("lscpu()  # NBVAL_IGNORE_OUTPUT", ["lscpu()  # NBVAL_IGNORE_OUTPUT"]),
        ("# nbval_ignore_output", ["nbval_ignore_output"]),
    ],
)
def test_odd_markers_are_found(source, odd):
    """nbval takes a comment for a marker only when it holds nothing else."""
    assert odd_markers(source) == odd
    assert bool(list(find_comment_markers(source))) == (not odd)


@each_notebook
def test_every_marker_is_one_that_nbval_reads(path):
    """A comment or tag that is meant to keep an output from being compared does so."""
    for cell in code_cells(path):
        assert odd_markers(cell.source, tags(cell)) == [], cell.source


@each_notebook
def test_ignored_outputs_say_why(path):
    """A cell whose output is not compared begins with a comment that says why."""
    for cell in code_cells(path):
        said = [*find_comment_markers(cell.source), *find_metadata_tags(cell.metadata)]
        if {("check", False), ("skip", True)} & set(said):
            assert re.search(r"^# not compared: .{8,}", cell.source, flags=re.MULTILINE), cell.source


@each_notebook
def test_code_cells_fit_on_a_screen(path):
    """No code cell is longer than 40 lines."""
    for cell in code_cells(path):
        assert len(cell.source.splitlines()) <= LONGEST_CELL, cell.source


@each_notebook
def test_markdown_has_one_sentence_a_line(path):
    """A line of Markdown holds one sentence, so that a change of a sentence is a change of a line."""
    for cell in markdown_cells(path):
        for line in without_code(cell.source):
            assert sentences_on(line) == 1, line


@each_notebook
def test_it_begins_with_its_title(path):
    """The first cell is text and starts with the one first-level heading."""
    first = read(path).cells[0]
    assert first.cell_type == "markdown"
    assert first.source.startswith("# ")
    headings = [line for cell in markdown_cells(path) for line in without_code(cell.source) if line.startswith("# ")]
    assert len(headings) == 1


@each_notebook
def test_it_ends_by_stopping_its_cluster(path):
    """The last code cell stops the ranks, and no cell is empty."""
    assert re.search(r"\bcluster\.stop\(\)", code_cells(path)[-1].source)
    for cell in read(path).cells:
        assert cell.source.strip()


@each_notebook
def test_diagrams_and_links_exist(path):
    """Every file that the text names is there; a diagram has its PNG, which make colab embeds."""
    for cell in markdown_cells(path):
        targets = re.findall(r"\]\(([^)\s]+)[^)]*\)", cell.source) + re.findall(r"src=[\"']([^\"']+)", cell.source)
        for target in targets:
            if re.match(r"[a-z]+:|#", target):
                continue
            file = path.parent / target.split("#")[0]
            assert file.is_file(), target
            if "figs" in file.parts:
                assert file.with_suffix(".png").is_file(), target
