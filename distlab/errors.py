"""The errors that distlab raises; called by every room of the package, on the notebook's side.

    DistlabError
    ├── ArgumentError (ValueError)          a value that cannot be used
    │   └── ArgumentTypeError (TypeError)   a value of a type that cannot be used
    ├── SerializationError                  a value that cannot travel to a rank, or back
    ├── DataError (OSError)                 a file of a data set is missing, damaged or cannot be downloaded
    ├── CheckpointError (RuntimeError)      a checkpoint cannot be written or read, or is of another model
    ├── ClusterError                        the cluster cannot start, or is no longer there
    │   └── HostError                       a host of the cluster cannot be reached, or used
    └── RanksFailed                         a cell or a run failed on some ranks
        ├── RankError                       a rank raised
        ├── RankDied                        a rank's process ended
        ├── DeadlockError                   ranks wait for what cannot come
        ├── RankTimeout (TimeoutError)      a rank did not come back in time
        └── SweepError                      a function that distlab.sweep measures failed in one of these ways
    MismatchError (RuntimeError)            on a rank in checked mode: the ranks' arguments do not fit

    KeyboardInterrupt
    └── Interrupted                         a person interrupted a cell

In a notebook each of them is shown as its message alone: the frames between the learner's cell and
the ranks are distlab's own and explain nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NoReturn


class DistlabError(Exception):
    """Base of every error that distlab raises on purpose."""

    def _render_traceback_(self) -> list[str]:
        return f"{type(self).__name__}: {self}".splitlines()


class ArgumentError(DistlabError, ValueError):
    """An argument breaks its rule; nothing was changed."""


class ArgumentTypeError(ArgumentError, TypeError):
    """An argument has a type that its rule excludes; nothing was changed."""


class SerializationError(DistlabError):
    """A function or value cannot be sent between the notebook and a rank."""


class DataError(DistlabError, OSError):
    """A file of a data set is missing or damaged, or cannot be downloaded."""


class CheckpointError(DistlabError, RuntimeError):
    """A checkpoint cannot be written, is missing or damaged, or does not fit; nothing was changed."""


class ClusterError(DistlabError, RuntimeError):
    """The cluster cannot be started, or is not running any more."""


class HostError(ClusterError):
    """A host of the cluster cannot be reached or used; the message says of each what is wrong with it."""


@dataclass(frozen=True)
class Line:
    """One line of the learner's own code in a traceback.

    Args:
        number: counted from 1 as the notebook shows it, `%%px` line included.
        text: the source, stripped; empty when the source cannot be had.
        place: the function's name, or "" at the top of a cell.
        file: that it is of; "" for a `%%px` cell.
    """

    number: int
    text: str
    place: str = ""
    file: str = field(default="", compare=False, repr=False)


@dataclass(frozen=True)
class Failure:
    """What went wrong on one rank: `kind` is the exception's type name, `lines` the learner's own, outermost first.

    `consequence`: it waited for another rank, which may be the culprit. `communicated`: it was raised in a call of
    torch.distributed, whose group may be damaged.
    """

    rank: int
    kind: str
    message: str
    lines: tuple[Line, ...] = ()
    traceback: str = field(default="", repr=False)
    consequence: bool = False
    communicated: bool = False


class RanksFailed(DistlabError):
    """A cell or a run that did not end well on every rank.

    Attributes:
        failures: one `Failure` per rank that failed, the likely culprits first.
        finished: the ranks that ended without a fault.
    """

    def __init__(self, message: str, failures: tuple[Failure, ...] = (), finished: tuple[int, ...] = ()):
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
    """A function failed while distlab.sweep measured it; the error that it failed with is the cause.

    Attributes:
        partial: the `Sweep` with all that was measured before.
    """

    partial: Any = None


class MismatchError(DistlabError, RuntimeError):
    """Ranks gave arguments to one call that do not fit; raised on the ranks, in checked mode, before data moves."""


class Interrupted(KeyboardInterrupt):
    """A person interrupted a cell; the message says where its ranks were. As KeyboardInterrupt, it is no Exception."""

    _render_traceback_ = DistlabError._render_traceback_


NAMES = [name for name, kind in vars().items() if isinstance(kind, type) and issubclass(kind, DistlabError)]


def refuse(name: str, rule: str, value: object, advice: str = "", wrong_type: bool = False) -> NoReturn:
    """Raise the house error for a bad argument: "<name> must be <rule>, got <value!r>." and what to do.

    Runs on: anywhere.
    """
    text = repr(value)
    if len(text) > 200:
        text = text[:197] + "..."
    message = f"{name} must be {rule}, got {text}."
    raise (ArgumentTypeError if wrong_type else ArgumentError)(f"{message} {advice}".rstrip())


def rank_list(ranks: list[int] | tuple[int, ...]) -> str:
    """Name ranks in words, runs folded: "rank 2", "ranks 0-3", "ranks 0, 2 and 5-7"."""
    runs = grouped((rank - place, rank) for place, rank in enumerate(sorted(ranks)))  # in a run both rise together
    spans = list(runs.values())
    words: list[str] = []
    for span in spans:
        fold = len(span) > 2 or (len(spans) == 1 and len(span) == 2)
        words.extend([f"{span[0]}-{span[-1]}"] if fold else map(str, span))
    joined = words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]
    return f"rank{'s' if len(ranks) > 1 else ''} {joined}"


def grouped(pairs: Iterable[tuple[Any, Any]]) -> dict[Any, list[Any]]:
    """What comes second in pairs by what comes first, each in the order in which it first comes."""
    groups: dict[Any, list[Any]] = {}
    for key, member in pairs:
        groups.setdefault(key, []).append(member)
    return groups


def namesake(error: BaseException) -> str:
    """What to do when an import failed because a file of the working folder has the name of the module that was meant.

    Returns:
        a sentence that names the file; "" when the error has another reason.
    """
    if not isinstance(error, (ImportError, AttributeError)):
        return ""
    module = sys.modules.get((error.name or "").partition(".")[0]) if isinstance(error, ImportError) else error.obj
    file = getattr(module, "__file__", None) or ""
    if not file or os.path.dirname(os.path.abspath(file)) != os.getcwd():
        return ""
    return f"{file} was imported instead of the module of that name: rename this file, then restart the kernel."
