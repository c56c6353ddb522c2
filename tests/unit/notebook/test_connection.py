"""What is received from fork servers."""

import socket
from types import SimpleNamespace

import pytest

from distlab.errors import HostError
from distlab.notebook import connection as connections
from distlab.notebook.connection import Connection, Servers
from distlab.notebook.hosts import Host, Hosts, answers
from distlab.notebook.start_methods import Ssh
from distlab.wire.codec import to_json
from distlab.wire.orders import Alive, EngineProcess
from tests.refused import raised


def connection(*lines):
    """A connection over which these were reported, and which has ended."""
    here, server = socket.socketpair()
    with server:
        server.sendall(
            "\n".join(
                line if isinstance(line, str) else to_json(line) for line in (*lines, "")
            ).encode()
        )
    found = Connection(None, here, (0,), Servers((0, 0), lambda engine: None))
    found.start()
    found.join(10)
    return found


def test_a_process_that_gets_the_number_of_a_dead_one_lives():
    """The system uses numbers again, and two hosts may have the same."""
    ended = EngineProcess(engine=0, pid=7, status=-9, log="last words")
    found = connection(EngineProcess(0, 7), ended, EngineProcess(1, 7))
    assert found.engines == {(0, 7): ended, (1, 7): EngineProcess(1, 7)}
    again = connection("a shell there may greet", EngineProcess(0, 7), ended, EngineProcess(0, 7))
    assert (again.engines, again.lost) == (
        {(0, 7): EngineProcess(0, 7)},
        {0: "whose connection has ended"},
    )


# --- what goes wrong on the thread that reads ---


GREETINGS = ["{ welcome to nodeA }", '{"motd": "no message"}', "{", "\x1b]0;title\x07"]


def test_a_shell_may_greet_with_anything():
    """Also with what looks like JSON; the reports after it count."""
    found = connection(*GREETINGS, EngineProcess(0, 7))
    assert (found.engines, found.trouble) == ({(0, 7): EngineProcess(0, 7)}, "")


OTHER_VERSION = '{"class": "Hello", "host": 0, "name": "nodeA", "colour": "red"}'
UNKNOWN = (
    f"MessageError: '{OTHER_VERSION[:57]}...' is no message of this distlab: "
    "Hello has no field 'colour'"
)


def test_a_host_that_reports_what_nobody_knows_is_lost(threads_end_well):
    """As another version of distlab does: at once, with the reason."""
    found = connection(EngineProcess(0, 7), OTHER_VERSION, EngineProcess(1, 8))
    assert found.trouble == f"its reports cannot be read ({UNKNOWN})"
    assert found.lost == {0: f"and {found.trouble}"}
    assert found.engines == {(0, 7): EngineProcess(0, 7)}
    hosts_of_it = Hosts((Host("nodeA", 2),), Ssh())
    servers = SimpleNamespace(to=lambda number: found)
    error = raised(HostError, answers, servers, hosts_of_it, [0], None)
    assert (
        f"\n  nodeA: {found.trouble}. distlab must be the same there: install it, "
        "or give engines=Ssh(python=...)." in str(error)
    )


REPORTS = [EngineProcess(0, 7), EngineProcess(0, 7, status=-9), Alive(0)]


def fails(*_):
    raise ZeroDivisionError("of a test")


@pytest.mark.parametrize(
    ("owner", "name"),
    [(connections, "from_json"), (Connection, "_note"), (Connection, "_lines")],
    ids=["decoding", "noting", "reading"],
)
@pytest.mark.parametrize("report", REPORTS, ids=["runs", "has ended", "heartbeat"])
def test_an_exception_on_the_thread_loses_the_host(
    threads_end_well, monkeypatch, owner, name, report
):
    """It may not look alive for ever: its ranks count as dead, and are replaced."""
    monkeypatch.setattr(owner, name, fails)
    found = connection(report)
    assert found.lost == {0: "and its reports cannot be read (ZeroDivisionError: of a test)"}


def test_an_answer_that_cannot_be_written_loses_the_host(threads_end_well, monkeypatch):
    """A heartbeat is answered on the thread that reads."""
    monkeypatch.setattr(connections, "to_json", fails)
    found = connection(Alive(0))
    assert found.lost == {0: "and its reports cannot be read (ZeroDivisionError: of a test)"}
