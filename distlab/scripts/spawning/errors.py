"""What `distlab.spawn` raises: errors of distlab's that are those of torch's spawn as well.

Runs in the process that calls it, called by spawn.py. So `pytest.raises(ProcessRaisedException)`
and `except distlab.DeadlockError` both see them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.multiprocessing import ProcessExitedException, ProcessRaisedException

from distlab.errors import DeadlockError, RankDied, RankError, RanksFailed
from distlab.scripts.outcome import without_next_steps
from distlab.scripts.spawning.ends import exit_status_of, signal_of
from distlab.wire.messages import Failure


class _InSpawn(RanksFailed):
    """What these errors have in common.

    Attributes:
        msg, error_index, error_pid: as torch's errors have them.
    """

    def __init__(self, words: str, error: RanksFailed, index: int, pid: int):
        # not RanksFailed's: beside torch's class, its super() is another one
        Exception.__init__(self, words)
        self.failures = error.failures
        self.finished = error.finished
        self.msg = words
        self.error_index = index
        self.error_pid = pid

    def __reduce__(self) -> Any:
        plain = RanksFailed(self.msg, self.failures, self.finished)
        return type(self), (self.msg, plain, self.error_index, self.error_pid), vars(self)


class RaisedInSpawn(_InSpawn, RankError, ProcessRaisedException):
    """The function raised in a process."""


class DeadlockInSpawn(_InSpawn, DeadlockError, ProcessRaisedException):
    """No process could go on."""


class ExitedInSpawn(_InSpawn, RankError, ProcessExitedException):
    """The function ended its process by sys.exit() with a status that is no success."""


class DiedInSpawn(_InSpawn, RankDied, ProcessExitedException):
    """A process ended while it was needed."""


def as_of_torch(error: RanksFailed, pids: Mapping[int, int]) -> RanksFailed:
    """An error of ranks as `distlab.spawn` raises it.

    Args:
        error: what a cluster would raise.
        pids: the processes, by rank.
    """
    if not error.failures:
        return error
    words = without_next_steps(str(error))
    first = error.failures[0]
    pid = pids[first.rank]
    if isinstance(error, RankDied):
        return _exited(DiedInSpawn, words, error, first, pid)
    if isinstance(error, DeadlockError):
        return DeadlockInSpawn(words, error, first.rank, pid)
    if first.kind == "SystemExit":
        return _exited(ExitedInSpawn, words, error, first, pid)
    words += f"\n\n-- Process {first.rank} terminated with the following error:\n"
    return RaisedInSpawn(words + first.traceback, error, first.rank, pid)


def _exited(
    kind: type[ExitedInSpawn] | type[DiedInSpawn],
    words: str,
    error: RanksFailed,
    first: Failure,
    pid: int,
) -> RanksFailed:
    """An error about a process that has ended, in torch's words and then in ours."""
    name = signal_of(first)
    code = exit_status_of(first)
    how = f"signal {name}" if name else f"exit code {code}"
    found = kind(f"process {first.rank} terminated with {how}\n{words}", error, first.rank, pid)
    found.exit_code = code
    found.signal_name = name or None
    return found
