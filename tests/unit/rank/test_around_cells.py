"""What runs around a cell, without an engine."""

import os
import signal
import sys
from types import SimpleNamespace

import pytest

from distlab.debugger.console import CONSOLE
from distlab.rank import around_cells


def do_nothing(*_, **__):
    """In the place of a method of an engine."""


@pytest.fixture
def kernel(monkeypatch):
    """An engine's kernel that runs nothing; afterwards this process is as it was before."""
    shell = SimpleNamespace(
        run_ast_nodes=do_nothing,
        showtraceback=do_nothing,
        safe_execfile=do_nothing,
        set_hook=do_nothing,
        InteractiveTB=SimpleNamespace(set_mode=do_nothing),
    )
    shell.kernel = SimpleNamespace(do_apply=do_nothing, shell=shell)
    monkeypatch.setattr(around_cells, "current_shell", lambda: shell)
    monkeypatch.setattr(around_cells._AroundCells, "installed", None)
    monkeypatch.setattr(os, "register_at_fork", do_nothing)
    monkeypatch.setattr("warnings.formatwarning", do_nothing)
    monkeypatch.setattr(sys, "breakpointhook", sys.breakpointhook)
    monkeypatch.setattr("pdb.set_trace", do_nothing)
    return shell.kernel


def keep(monkeypatch, handlers, at_end):
    """Keep what an engine needs, whose streams are not those of pytest."""
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, SimpleNamespace(pub_thread=None, write=do_nothing))
    around_cells.restore_around_cells(handlers, at_end)


def test_an_engine_that_is_attached_again_ends_each_call_once(kernel, monkeypatch):
    """It stays when a cluster is stopped, with all that was put in place for that one."""
    ended = []
    handlers = {signal.SIGTERM: signal.getsignal(signal.SIGTERM)}
    for cluster in ("first", "second"):
        keep(monkeypatch, handlers, lambda cluster=cluster: ended.append(cluster))
    kernel.do_apply()
    assert ended == ["second"]


def show(kernel, error=None):
    """Show what a cell has raised; without an error, do what %tb does."""
    try:
        if error is not None:
            raise error
    except KeyError:
        kernel.shell.showtraceback()
    else:
        kernel.shell.showtraceback()


def test_only_an_error_of_the_cell_itself_opens_the_debugger(kernel, monkeypatch):
    """%tb shows an old one, or says that there is none."""
    opened = []
    monkeypatch.setattr(around_cells.console, "post_mortem", opened.append)
    keep(monkeypatch, {}, do_nothing)
    monkeypatch.setattr(CONSOLE, "after_failure", True)
    error = KeyError("x")
    show(kernel, error)
    monkeypatch.setattr(sys, "last_value", error, raising=False)
    show(kernel)
    monkeypatch.delattr(sys, "last_value")
    show(kernel)
    assert opened == [error]
