"""What every function of torch.distributed does here, tried out instead of looked up, for lab 31.

`probe` runs in the notebook's kernel. It has every case of `probing_cases.py` tried on the ranks,
each in a `run` of its own, so that what hangs is freed.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch

import distlab
from distlab_course.probing_cases import DTYPES, FUNCTIONS, REDUCED, is_built, try_case

# by backend and device, by case: "yes", "no", "WRONG", "HANGS" or "DIES"
Outcomes = dict[str, dict[str, str]]
SECONDS = 30.0  # that a case has: long, because a busy machine can stop a process for a while


@dataclass(frozen=True, repr=False)
class Probe:
    """What came of every case; it shows itself as tables.

    Attributes:
        outcomes: a word for each case, by backend and device.
        messages: what torch, or distlab, said where it was not done, by case, by backend and
            device.
    """

    outcomes: Outcomes
    messages: Outcomes

    def __repr__(self) -> str:
        """The functions by backend, the dtypes that each op reduces, and the cases by message."""
        lines = [_row("", self.outcomes)]
        for name in FUNCTIONS:
            lines.append(_row(name, [words[name] for words in self.outcomes.values()]))
        for head, words in self.outcomes.items():
            lines += ["", f"all_reduce on {head} works with"]
            for op in REDUCED:
                dtypes = [dtype for dtype in DTYPES if words[f"{op} {dtype}"] == "yes"]
                lines.append(f"  {op:8} {' '.join(dtypes)}")
            cases: dict[str, list[str]] = {}  # by message
            for case, message in self.messages[head].items():
                cases.setdefault(message, []).append(case)
            for message, names in cases.items():
                lines.append(f"{head}: {', '.join(names)}\n    {message}")
        return "\n".join(lines)


def _row(first: str, others: Iterable[str]) -> str:
    """A line of a table, whose columns are 24 characters wide."""
    columns = [f"{word:24}" for word in (first, *others)]
    return "".join(columns).rstrip()


def _cases() -> list[str]:
    """The names of all cases: of every function, and of every op with every dtype."""
    names = list(FUNCTIONS)
    for op in REDUCED:
        names += [f"{op} {dtype}" for dtype in DTYPES]
    return names


def probe(cluster: distlab.Cluster, backends: Iterable[str] = ("gloo",)) -> Probe:
    """Try every function that communicates, and every ReduceOp with every dtype.

    They are tried on each backend and device. The ranks of the cluster keep their variables, unless
    a case ends one of them.

    Args:
        cluster: of 2 ranks or more.
        backends: their names; those that are not built are left out, as are devices that are not
            there.
    """
    outcomes: Outcomes = {}
    messages: Outcomes = {}
    devices = ["cpu"]
    if torch.cuda.is_available():
        devices.append("cuda")
    built = [backend for backend in backends if all(cluster.run(is_built, backend))]
    for backend, device in product(built, devices):
        words: dict[str, str] = {}
        reasons: dict[str, str] = {}
        for case in _cases():
            words[case], reason = attempt(cluster, try_case, case, backend, device)
            if reason:
                reasons[case] = reason
        outcomes[f"{backend} {device}"] = words
        messages[f"{backend} {device}"] = reasons
    return Probe(outcomes, messages)


def attempt(cluster: distlab.Cluster, *call: Any) -> tuple[str, str]:
    """What comes of a case, as a word, and why it was not done.

    The cluster is whole again afterwards.
    """
    try:
        right = all(cluster.run(*call, timeout=SECONDS))
    except distlab.RankError as error:
        return "no", _first_line(error.failures[0].message.strip())
    except distlab.RankDied as error:
        cluster.restart()
        return "DIES", _first_line(str(error))
    except (distlab.RankTimeout, distlab.DeadlockError) as error:
        cluster.restart()
        return "HANGS", _first_line(str(error))
    if right:
        return "yes", ""
    return "WRONG", ""


def _first_line(text: str) -> str:
    return text.partition("\n")[0]
