"""`python -m distlab course` and `lab`: what they write into a folder, what they leave alone."""

import sys

import pytest

from distlab_course import lessons

LESSON = "notebooks/01_point_to_point.ipynb"
OTHER = "notebooks/03_collectives.ipynb"


@pytest.fixture
def source(tmp_path, monkeypatch):
    """A distlab with two lessons and a diagram."""
    folder = tmp_path / "source"
    for name in (LESSON, OTHER, "notebooks/solutions/01_point_to_point.ipynb", "figs/ring.svg"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"old {name}")
    monkeypatch.setattr(lessons, "SOURCE", folder)
    return folder


@pytest.fixture
def written(source, tmp_path):
    """A learner's folder, with the lessons of that distlab."""
    assert len(lessons.write(tmp_path / "mine").new) == 4
    return tmp_path / "mine"


def test_what_is_missing_is_written_and_the_rest_is_left_alone(written):
    (written / LESSON).unlink()
    (written / OTHER).write_text("my answer")
    assert lessons.write(written) == lessons.Written(new=[LESSON], kept=[OTHER])
    assert (written / OTHER).read_text() == "my answer"
    assert lessons.write(written) == lessons.Written(kept=[OTHER])


def test_an_update_replaces_what_is_unchanged_and_puts_the_rest_beside(source, written):
    """A changed lesson gets a newer one beside it once, and a second update has nothing to do."""
    for name in (LESSON, OTHER):
        (source / name).write_text(f"new {name}")
    (written / OTHER).write_text("my answer")
    assert lessons.write(written) == lessons.Written(kept=[OTHER], older=[LESSON])
    beside = "notebooks/03_collectives.newer.ipynb"
    assert lessons.write(written, update=True) == lessons.Written(
        replaced=[LESSON], kept=[OTHER], beside=[beside]
    )
    texts = [(written / name).read_text() for name in (LESSON, OTHER, beside)]
    assert texts == [f"new {LESSON}", "my answer", f"new {OTHER}"]
    assert lessons.write(written, update=True) == lessons.Written(kept=[OTHER])


def test_what_is_there_already_is_remembered(source, written):
    """An update replaces unchanged lessons that came another way, too."""
    (written / lessons.NOTE).unlink()
    assert lessons.write(written) == lessons.Written()
    (source / LESSON).write_text("new")
    assert lessons.write(written, update=True) == lessons.Written(replaced=[LESSON])


def test_a_clone_is_left_alone(source):
    assert lessons.write(source, update=True) == lessons.Written()
    assert not (source / lessons.NOTE).exists()


def test_changed_files_are_overwritten_only_if_the_person_agrees(source, written):
    """Also files that were there before distlab came, which no note knows."""
    (written / lessons.NOTE).unlink()
    (written / OTHER).write_text("my answer")
    asked = []
    assert lessons.write(written, agreed=asked.append).kept == [OTHER]
    assert lessons.write(written, agreed=lambda _: True) == lessons.Written(replaced=[OTHER])
    assert asked == [[OTHER]]
    assert (written / OTHER).read_text() == (source / OTHER).read_text()


def test_the_command_says_what_it_did(written, capsys):
    (written / OTHER).write_text("my answer")
    (written / LESSON).unlink()
    assert lessons.course([str(written)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said == [
        f"{written}: files written: 1",
        "kept, because you changed them: 1; to begin one again, delete it and repeat this",
        f"Open them: python -m distlab lab {written}",
    ]


@pytest.mark.parametrize("command", [lessons.course, lessons.lab])
def test_a_folder_that_cannot_be_written(source, tmp_path, command, capsys, monkeypatch):
    monkeypatch.setattr(lessons, "find_spec", lambda name: True)
    (tmp_path / "file").write_text("")
    assert command([str(tmp_path / "file")]) == 1
    assert "distlab: the lessons cannot be written into" in capsys.readouterr().err


def test_without_jupyterlab_the_command_to_install_it_is_shown(
    source, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(lessons, "find_spec", lambda name: None)
    assert lessons.lab([str(tmp_path / "mine")]) == 1
    assert 'pip install "distlab[lab,course]"' in capsys.readouterr().err
    assert not (tmp_path / "mine").exists()


STARTS = {
    "": ("distlab-course", ""),
    "mine": ("mine", ""),
    "mine --port 9000": ("mine", "--port 9000"),
    "--port 9000 mine": ("mine", "--port 9000"),
    "--port 9000": ("distlab-course", "--port 9000"),
    "--no-browser mine": ("mine", "--no-browser"),
    "--no-browser --ServerApp.port=9000 mine": ("mine", "--no-browser --ServerApp.port=9000"),
    "--port 9000 --no-browser mine --ip 0.0.0.0": ("mine", "--port 9000 --no-browser --ip 0.0.0.0"),
    "-y --debug mine": ("mine", "-y --debug"),
}


@pytest.fixture
def started(source, tmp_path, monkeypatch):
    """The commands that processes become, in a folder without lessons."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(lessons, "find_spec", lambda name: True)
    commands = []
    monkeypatch.setattr("os.execv", lambda program, command: commands.append(command))
    return commands


@pytest.mark.parametrize("given", STARTS)
def test_lab_becomes_jupyterlab_in_the_folder_and_passes_its_options_on(tmp_path, given, started):
    """In any order: a word is a folder unless it belongs to an option that takes a value."""
    lessons.lab(given.split())
    (command,) = started
    name, words = STARTS[given]
    folder = tmp_path / name
    options = words.split()
    assert command[:3] == [sys.executable, "-m", "distlab_course.jupyter"]
    assert f"--ServerApp.root_dir={folder}" in command
    assert "--LabApp.news_url=None" in command
    assert command[len(command) - len(options) :] == options
    assert (folder / LESSON).exists()


@pytest.mark.parametrize(
    "given", [["mine", "yours"], ["--no-browser", "mine", "yours"], ["mine", "--help"]]
)
def test_lab_writes_nothing_where_it_is_not_clear_what_is_meant(tmp_path, given, started, capsys):
    """Two folders, or a question."""
    with pytest.raises(SystemExit):
        lessons.lab(given)
    said = capsys.readouterr()
    assert (
        "usage: python -m distlab lab [-h] [folder] [options of JupyterLab]" in said.out + said.err
    )
    assert started == []
    assert not (tmp_path / "mine").exists()
