"""`distlab run` in a terminal: marks, Ctrl-C, and the debugger."""

import io

import pexpect
import pytest

from tests.cluster.scripts.launched import Folder


@pytest.fixture
def folder(tmp_path):
    made = Folder(tmp_path)
    yield made
    made.temporary.rmdir()


class Terminal:
    """A launcher in a terminal, whose person waits for words and types."""

    def __init__(self, folder, *words):
        self.folder = folder
        program, *arguments = folder.command(*words)
        self.child = pexpect.spawn(
            program,
            arguments,
            cwd=folder.path,
            env=folder.environment,
            encoding="utf-8",
            timeout=90,
            dimensions=(40, 200),
        )
        self.shown = self.child.logfile_read = io.StringIO()

    def sees(self, words, line=None):
        self.child.expect_exact(words)
        if line is not None:
            self.child.sendline(line)

    def ends(self):
        """The exit status, when all is over and nothing is left."""
        self.child.expect(pexpect.EOF)
        self.child.close()
        self.folder.assert_nothing_left(self.child.pid)
        return self.child.exitstatus

    @property
    def lines(self):
        return self.shown.getvalue().replace("\r\n", "\n").splitlines()


def test_lines_are_marked_once_several_ranks_write(folder):
    folder.write("""
    dist.init_process_group("gloo")
    if rank == 0: print("alone", flush=True)
    time.sleep(0.5)
    dist.barrier()
    if rank == 1: print("second", flush=True)
    time.sleep(0.5)
    dist.barrier()
    if rank == 0: print("first", flush=True)
    """)
    terminal = Terminal(folder, "train.py")
    assert terminal.ends() == 0
    assert terminal.lines == ["alone", "[1] second", "[0] first"]


def test_ctrl_c_says_where_every_rank_was(folder):
    folder.write("""
    dist.init_process_group("gloo")
    print("ready", flush=True)
    if rank == 0: dist.barrier()
    while True: time.sleep(0.01)
    """)
    terminal = Terminal(folder, "train.py")
    for _ in range(2):
        terminal.sees("ready")
    terminal.child.sendintr()
    assert terminal.ends() == 130
    said = "\n".join(terminal.lines)
    assert "Interrupted: Ranks 0-1 had not finished." in said
    assert "  rank 0  barrier()  train.py:8" in said
    assert "train.py:9" in said
    assert "Traceback" not in said
    assert len(terminal.lines) < 10


def test_a_second_ctrl_c_ends_at_once_what_does_not_listen(folder):
    folder.write("""
    print("ready", flush=True)
    while True:
        try:
            while True: time.sleep(0.01)
        except KeyboardInterrupt:
            print("no", flush=True)
    """)
    terminal = Terminal(folder, "train.py")
    for _ in range(2):
        terminal.sees("ready")
    terminal.child.sendintr()
    terminal.sees("no")
    terminal.child.sendintr()
    assert terminal.ends() == 130


def test_breakpoint_and_input_work(folder):
    folder.write("""
    name = input("name? ") if rank == 0 else ""
    x = 7 + rank
    if rank == 1:
        breakpoint()
    print("after", x, name)
    """)
    terminal = Terminal(folder, "train.py")
    terminal.sees("name? ", "Ada")
    terminal.sees("(rank 1) ", "p x * 10")
    terminal.sees("80")
    terminal.sees("(rank 1) ", "c")
    assert terminal.ends() == 0
    assert "name? Ada" in terminal.lines
    assert "after 7 Ada" in terminal.lines
