"""What ranks write is copied line by line, into the terminal, into files, or both."""

import os
import threading

import pytest

from distlab.scripts.streams import Streams, by_rank
from distlab.scripts.terminal import Terminal


@pytest.fixture
def copied(capfd):
    """Writes as ranks do, and returns what this process has written to both streams then."""

    def write(ranks, streams, *texts):
        terminal = Terminal(ranks, streams)
        pipes = [[os.open(path, os.O_WRONLY) for path in both] for both in terminal.paths]
        try:
            for rank, stream, text in texts:
                os.write(pipes[rank][stream - 1], text)
        finally:
            for both in pipes:
                for pipe in both:
                    os.close(pipe)
            terminal.end()
        return capfd.readouterr()

    return write


def test_both_streams_stay_apart(copied):
    said = copied(2, Streams(), (0, 1, b"out\n"), (1, 2, b"err\n"))
    assert (said.out, said.err) == ("out\n", "err\n")


def test_a_line_comes_whole_though_it_was_written_in_pieces(copied):
    pieces = [(0, 1, b"a"), (1, 1, b"1"), (0, 1, b"b\n"), (1, 1, b"2\n")]
    assert sorted(copied(2, Streams(), *pieces).out.splitlines()) == ["12", "ab"]


def test_a_last_line_without_an_end_is_not_lost(copied):
    assert copied(1, Streams(), (0, 1, b"a\nend")).out == "a\nend"


def test_files_get_what_torchrun_would_write_into_them(copied, tmp_path):
    streams = Streams(folder=str(tmp_path), redirected=by_rank("0:1"), copied=by_rank("1:3"))
    said = copied(2, streams, (0, 1, b"a\n"), (0, 2, b"b\n"), (1, 1, b"c\n"), (1, 2, b"d\n"))
    assert (said.out, said.err) == ("c\n", "b\nd\n") or (said.out, said.err) == ("c\n", "d\nb\n")
    found = {str(path.relative_to(tmp_path)): path.read_text() for path in tmp_path.rglob("*.log")}
    assert found == {"0/stdout.log": "a\n", "1/stdout.log": "c\n", "1/stderr.log": "d\n"}


def test_a_filter_hides_ranks(copied):
    said = copied(3, Streams(shown=frozenset({1})), *[(r, 1, b"%d\n" % r) for r in range(3)])
    assert said.out == "1\n"


def test_bytes_that_are_no_text_and_very_long_lines_arrive():
    reader, writer = os.pipe()
    kept = os.dup(1)
    os.dup2(writer, 1)
    os.close(writer)
    try:
        arrived = []
        end = open(reader, "rb")  # noqa: SIM115
        thread = threading.Thread(target=lambda: arrived.append(end.read()))
        thread.start()
        terminal = Terminal(1, Streams())
        long = bytes(range(256)).replace(b"\n", b"").replace(b"\r", b"") * 20_000
        with open(terminal.paths[0][0], "wb") as pipe:
            pipe.write(long)
        terminal.settle()
        terminal.end()
    finally:
        os.dup2(kept, 1)
        os.close(kept)
    thread.join()
    end.close()
    assert arrived == [long]


def test_nothing_more_is_written_when_nobody_reads():
    """As with `| head`: the launcher is told once."""
    reader, writer = os.pipe()
    kept = os.dup(1)
    os.dup2(writer, 1)
    os.close(writer)
    os.close(reader)
    told = []
    try:
        terminal = Terminal(1, Streams(), lambda: told.append(1))
        with open(terminal.paths[0][0], "wb", buffering=0) as pipe:
            for _ in range(3):
                pipe.write(b"line\n")
                terminal.settle()
        terminal.end()
    finally:
        os.dup2(kept, 1)
        os.close(kept)
    assert told == [1]


def test_no_descriptor_and_no_file_is_left():
    def descriptors():
        return len(os.listdir("/proc/self/fd"))

    before = descriptors()
    for _ in range(3):
        Terminal(4, Streams()).end()
    assert descriptors() == before
