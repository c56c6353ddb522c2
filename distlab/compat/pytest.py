"""The private parts of pytest that distlab uses. Tried with pytest 8.2 to 9.

Runs in pytest's process, and on the ranks of its tests.
"""

import contextlib
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from _pytest import assertion, runner, threadexception, unraisableexception

# where pytest keeps what destructors and threads have raised, until the next phase of a test; not
# in old versions
LATE_ERRORS = (
    (unraisableexception, "unraisable_exceptions"),
    (threadexception, "thread_exceptions"),
)


def start_session(
    options: dict[str, Any], node: str, without: Iterable[str], plugin: Any
) -> pytest.Session:
    """pytest in a process that another pytest has started, as pytest-xdist does it.

    Private: how it is configured.

    Args:
        without: plugins that do nothing here. Their options are known all the same, because the
            configuration file of a project may have them.
    """
    config = pytest.Config.fromdictargs(options, [node])
    for name in filter(config.pluginmanager.has_plugin, without):
        config.pluginmanager.unregister(name=name)
    config.pluginmanager.register(plugin, "distlab-rank")
    with contextlib.redirect_stdout(io.StringIO()):  # to which it reports
        config._do_configure()
    session = pytest.Session.from_config(config)
    config.hook.pytest_sessionstart(session=session)
    return session


def run_only(session: pytest.Session, node: str) -> list[pytest.Item]:
    """Collect a test and run it; afterwards no fixture is left, not one of a session's either.

    Private: the protocol of a test, and what holds the fixtures.
    """
    session.config.args = [node]
    try:
        session.config.hook.pytest_collection(session=session)
        for item in session.items[:1]:
            # how an assert compares values
            with contextlib.contextmanager(assertion.pytest_runtest_protocol)(item):
                runner.runtestprotocol(item, log=False, nextitem=None)
    finally:
        session._setupstate.teardown_exact(None)
    return session.items


def forget_late_errors(session: pytest.Session) -> None:
    """Forget what destructors and threads of an earlier test have raised since its end.

    Private: where pytest keeps it.
    """
    for module, name in LATE_ERRORS:
        key = getattr(module, name, None)
        waiting = None if key is None else session.config.stash.get(key, None)
        if waiting:
            waiting.clear()


def base_folder(config: pytest.Config) -> Path:
    """Where pytest makes temporary folders. Private: its factory."""
    # pytest adds the attribute, which its class does not declare
    return config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
