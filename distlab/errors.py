"""The errors that distlab raises, on the notebook's kernel and on the ranks.

    DistlabError
    ├── ArgumentError (ValueError)          a value that cannot be used
    │   └── ArgumentTypeError (TypeError)   a value of a type that cannot be used
    ├── SerializationError                  a value that cannot travel to a rank, or back
    ├── DataError (OSError)                 a file of a data set is missing or damaged
    ├── CheckpointError (RuntimeError)      a checkpoint cannot be written, or does not fit
    ├── ClusterError                        the cluster cannot start, or is no longer there
    │   └── HostError                       a host of the cluster cannot be reached, or used
    └── RanksFailed                         a cell or a run failed on some ranks
        ├── RankError                       a rank raised
        ├── RankDied                        a rank's process ended
        ├── DeadlockError                   ranks wait for what cannot come
        ├── RankTimeout (TimeoutError)      a rank did not come back in time
        └── SweepError                      a function failed while distlab.sweep measured it
    MismatchError (RuntimeError)            on a rank: arguments or groups do not match

    KeyboardInterrupt
    └── Interrupted                         a person interrupted a cell

A notebook shows only the message: the frames between the learner's cell and the ranks are distlab's
own and explain nothing. It is saved in lines of 80 columns; a person who watches sees it as wide as
the pane is, see notebook/paragraphs.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from distlab.words import fitted

if TYPE_CHECKING:
    from distlab.wire.messages import Failure


class DistlabError(Exception):
    """Base of every error that distlab raises on purpose."""

    def _render_traceback_(self) -> list[str]:
        return fitted(f"{type(self).__name__}: {self}")


class ArgumentError(DistlabError, ValueError):
    """An argument breaks its rule; nothing was changed."""


class ArgumentTypeError(ArgumentError, TypeError):
    """An argument has a type that its rule excludes; nothing was changed."""


class SerializationError(DistlabError):
    """A function or value cannot be sent between the notebook and a rank."""


class DataError(DistlabError, OSError):
    """A file of a data set is missing or damaged, or cannot be downloaded."""


class CheckpointError(DistlabError, RuntimeError):
    """A checkpoint cannot be written, is missing or damaged, or does not fit.

    Nothing was changed.
    """


class ClusterError(DistlabError, RuntimeError):
    """The cluster cannot be started, or is not running any more."""


class HostError(ClusterError):
    """A host of the cluster cannot be reached or used; the message says what is wrong with each."""


class RanksFailed(DistlabError):
    """A cell or a run did not end well on every rank.

    Attributes:
        failures: one `Failure` per rank that failed, the likely culprits first.
        finished: the ranks that ended without a fault.
    """

    def __init__(
        self, message: str, failures: tuple[Failure, ...] = (), finished: tuple[int, ...] = ()
    ):
        super().__init__(message)
        self.failures = failures
        self.finished = finished


class RankError(RanksFailed):
    """An exception was raised on one rank or more."""


class RankDied(RanksFailed):
    """The process of a rank ended while it was needed."""


class DeadlockError(RanksFailed):
    """No rank of a cell could go on; the message says who waits for whom."""


class RankTimeout(RanksFailed, TimeoutError):
    """A rank was still busy when the time limit of its cell was reached."""


class SweepError(RanksFailed):
    """A function failed while distlab.sweep measured it.

    The error that it failed with is the `__cause__`.

    Attributes:
        partial: the `Sweep` with all that was measured before.
    """

    partial: Any = None


class MismatchError(DistlabError, RuntimeError):
    """What ranks gave to one call does not match; raised on ranks before data moves.

    In checked mode the arguments of every call are compared, otherwise only the groups that ranks
    make.
    """


class Interrupted(KeyboardInterrupt):
    """A person interrupted a cell; the message says where its ranks were.

    Like KeyboardInterrupt, it is no Exception.
    """

    _render_traceback_ = DistlabError._render_traceback_


# tests look for each of them in the documentation
ERROR_NAMES = [
    name
    for name, kind in vars().items()
    if isinstance(kind, type) and issubclass(kind, DistlabError)
]
