"""One process of the probe: calls the cases one after the other, and writes down what came of each.

Started by driver.py, one process a rank, with a plan in JSON as its argument: `python -m distlab.probing.trial PLAN`.
It is no rank of the learner's cluster: a case that hangs or ends it harms nobody. All ranks compare what came of a case
before the next begins; where it did not work on all of them the group is built anew, since it may be damaged. The ranks
meet before, so that what one of them needs to leave a group is not taken from the time of the next case.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import threading
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from distlab.probing.cases import FUNCTIONS
from distlab.probing.names import BACKENDS
from distlab.probing.place import Place
from distlab.probing.reductions import REDUCTIONS

CASES = {**FUNCTIONS, **REDUCTIONS}
# torch refuses split_group on any backend, also on gloo, which can split, where no GPU is bound
UNBOUND = "No device associated with the default pg"
WANTS_A_DEVICE = "split_group of this torch wants a GPU that init_process_group(device_id=...) has bound: not tried"


class Trial:
    """One rank's part of the probe.

    Args:
        rank: of this process. plan: what to try, as `driver.Plan` says it.
    """

    def __init__(self, rank: int, plan: dict[str, Any]):
        self.rank, self.size, self.seconds = rank, plan["size"], plan["seconds"]
        self.limit = timedelta(seconds=self.seconds)
        self.store = dist.FileStore(f"{plan['store']}-answers", self.size)
        self.store.set_timeout(timedelta(hours=1))  # a rank that never answers is the driver's business
        self.group_store = dist.FileStore(f"{plan['store']}-groups", self.size)
        self.group_store.set_timeout(self.limit)
        self.log = open(f"{plan['log']}-{rank}", "a", buffering=1)  # noqa: SIM115 - open until the process ends
        self.groups = self.meetings = 0

    def meet(self) -> None:
        """Return when every process is there: what one of them still does must not be taken for a case that hangs."""
        self.meetings += 1
        self.store.set(f"here/{self.meetings}/{self.rank}", "")
        for rank in range(self.size):
            self.store.get(f"here/{self.meetings}/{rank}")

    def write(self, *entry: Any) -> None:
        self.log.write(json.dumps(entry) + "\n")

    def column(self, backend: str, device: str, names: list[str]) -> None:
        """Try the cases of these names on a backend with tensors on a device."""
        why = missing(backend, device)
        for name in names:
            self.write("begin", backend, device, name)
            kind, message, late = (*why, False) if why else self.agreed(backend, device, name)
            self.write("end", backend, device, name, kind, message, late)
            if kind != "works" and not why:
                self.leave()
        self.leave()

    def agreed(self, backend: str, device: str, name: str) -> tuple[str, str, bool]:
        """What came of a case on all ranks together: the first of them where it did not work.

        Returns:
            Its kind, torch's message, and whether a rank has waited in vain.
        """
        mine = self.attempt(backend, device, name)
        key = f"{backend}/{device}/{name}"
        self.store.set(f"{key}/{self.rank}", json.dumps(mine))
        # each rank answers for itself: a lost one is found by the driver
        outcomes = [tuple(json.loads(self.store.get(f"{key}/{rank}"))) for rank in range(self.size)]
        late = any(kind == "hangs" for kind, _ in outcomes)
        failed = [outcome for outcome in outcomes if outcome[0] != "works"]
        # that it waited for another rank is a consequence of what happened there
        kind, message = min(failed, key=lambda outcome: outcome[0] == "hangs") if failed else outcomes[0]
        return kind, message, late

    def attempt(self, backend: str, device: str, name: str) -> tuple[str, str]:
        """What came of a case on this rank: its kind, and torch's message."""
        try:
            if not dist.is_initialized():
                self.join(backend)
            place = f"cuda:{self.rank % torch.cuda.device_count()}" if device == "cuda" else device
            right = CASES[name](Place(self.rank, self.size, place, self.seconds))
            if device == "cuda":
                torch.cuda.synchronize()
        except Exception as error:
            message = first_line(error)
            if message.startswith(UNBOUND):
                return "no device", WANTS_A_DEVICE
            return ("hangs" if "imed out" in message or "imeout" in message else "refused"), message
        return ("works", "") if right else ("wrong result", "")

    def join(self, backend: str) -> None:
        self.groups += 1
        # a failed attempt to build a group has used up a number, perhaps on this rank alone
        dist.distributed_c10d._world.group_count = 0
        store = dist.PrefixStore(f"{backend}/{self.groups}", self.group_store)
        dist.init_process_group(backend, store=store, rank=self.rank, world_size=self.size, timeout=self.limit)

    def leave(self) -> None:
        """Leave the group, if there is one, and wait until every rank has left it."""
        if dist.is_initialized():
            with contextlib.suppress(Exception):
                dist.destroy_process_group()
        self.meet()


def missing(backend: str, device: str) -> tuple[str, str] | None:
    """Why a backend cannot be tried with tensors on a device; None where it can."""
    if not dist.is_backend_available(backend):
        return "not built", "this torch was built without it" if backend in BACKENDS else "no module has registered it"
    if device == "cuda" and not torch.cuda.is_available():
        return "no device", "there is no GPU that this torch can use"
    return None


def first_line(error: Exception) -> str:
    """An error's message without what differs from run to run: the first line, without the place in torch's sources."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    line = lines[0].strip() if lines else type(error).__name__
    if line.startswith("[") and "]" in line:
        line = line.partition("]")[2].lstrip(" :.")
    return line if len(line) <= 160 else f"{line[:157]}..."


def end_with_parent() -> None:
    """End this process when the one that started it has gone: its end of stdin closes then."""

    def wait() -> None:
        with contextlib.suppress(OSError):
            while os.read(0, 4096):
                pass
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def own_rank(environment: Any) -> int:
    """This process's number: as the driver says, or mpiexec (MPICH and those like it; Open MPI)."""
    names = ("DISTLAB_PROBE_RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK")
    return next(int(environment[name]) for name in names if name in environment)


def main(plan: dict[str, Any], finish: Callable[[int], Any] = os._exit) -> None:
    warnings.simplefilter("ignore")  # torch warns of functions that it will rename; their names here are the newest
    if plan["watch"]:
        end_with_parent()
    for name in plan["modules"]:
        getattr(importlib.import_module(name), "register", lambda: None)()
    rank = own_rank(os.environ)
    trial = Trial(rank, plan)
    trial.meet()
    for backend, device, names in plan["columns"]:
        if device == "cuda" and torch.cuda.is_available():
            torch.cuda.set_device(rank % torch.cuda.device_count())
        trial.column(backend, device, names)
    trial.write("done")
    if "mpi4py" in sys.modules:
        return  # MPI wants to be left by itself
    finish(0)  # whatever a backend has left behind, it shall not hold up the end


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
