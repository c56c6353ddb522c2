"""All labs have one form, so that a learner who knows one finds everything in the others."""

import re

import pytest
from test_hygiene import NOTEBOOKS, each_lesson, markdown_cells, read, without_code

MOST_JOINTS = 1 / 5  # of a lab's sentences: colons and semicolons in place of because, so, which
ANSWERS = [path for path in NOTEBOOKS if path.parent.name == "solutions"]
NEEDS = re.compile(
    r"Needs: .*\b\d+ minutes\b( \(and \d+ more for the optional sections?\))?, .*network\b.*\."
)


@each_lesson
def test_the_first_cell(path):
    """Title, a sentence, three bullets that end in commas and a full stop, needs, answers."""
    first = read(path).cells[0].source
    title, *lines = [line for line in first.splitlines() if line.strip()]
    assert title.startswith("# ")
    bullets = [line for line in lines if line.startswith("- ")]
    assert "You will" in lines, "a line 'You will' before the bullets"
    assert len(bullets) == 3
    assert [line[-1] for line in bullets] == [",", ",", "."]
    needs = [line for line in lines if line.startswith("Needs:")]
    assert needs, "Needs: N ranks ..., M minutes, no network."
    assert NEEDS.fullmatch(needs[0]), needs[0]
    link = f"[Our answers](solutions/{path.name}) are for when you have tried."
    assert lines[-1] == link, lines[-1]


@each_lesson
def test_a_question_is_asked_before_a_folded_output(path):
    """In italics, or as an exercise, in the section in which the cell is."""
    section = ""
    for cell in read(path).cells:
        if cell.cell_type == "markdown":
            section = "" if cell.source.startswith("## ") else section
            section += f"{cell.source}\n"
        elif cell.metadata.get("jupyter", {}).get("outputs_hidden"):
            assert re.search(r"(?<!\*)\*[^*\n]+\?\*(?!\*)|^\*\*Exercise ", section, re.M), section[
                -300:
            ]


@each_lesson
def test_sentences_are_not_joined_by_colons(path):
    sentences = []
    for cell in markdown_cells(path):
        for line in without_code(cell.source):
            text = re.sub(r"https?:\S+", "", line).strip()
            if text and not re.match(
                r"#|\*(Core|Optional),|\*\*Exercise|Needs:|.*distlab\.hint", text
            ):
                sentences.append(text)
    joined = [text for text in sentences if re.search(r"[:;]", text)]
    share = len(joined) / len(sentences)
    assert share <= MOST_JOINTS, f"{share:.0%} of {len(sentences)}, for example {joined[:3]}"


@pytest.mark.parametrize("path", ANSWERS, ids=lambda path: path.stem)
def test_answers_name_their_mistakes(path):
    """A wrong answer stands below a line that says in a sentence what is wrong with it."""
    text = "\n".join(cell.source for cell in markdown_cells(path))
    assert not re.search(r"Common (wrong answer|mistake)s", text)
    mistakes = re.findall(r"^.*Common mistake.*$", text, re.MULTILINE)
    assert mistakes
    for line in mistakes:
        assert re.fullmatch(r"\*\*Common mistake:\*\* \S.*[.?]", line), line
