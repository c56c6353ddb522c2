"""Files that a notebook's %%writefile cells write, where it is marked."""

from distlab_course.classroom.handed_in import write_files


def test_a_file_that_cannot_be_written_stops_no_marking(tmp_path):
    """A student's cell may name the folder above, or hold what is no text; the next one counts."""
    folder = tmp_path / "handed in"
    (folder / "figs").mkdir(parents=True)
    cells = [
        "%%writefile ..\nabove",
        "%%writefile figs\na folder",
        "%%writefile odd.py\n\ud800",
        "%%writefile net.py\nx = 1",
    ]
    write_files([*cells, "%%writefile ../out.py\nx = 2", "x = 3"], folder)
    assert (folder / "net.py").read_text() == "x = 1"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["handed in"]
