"""What a process says of the machine that it runs on. Used on both sides."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
from pathlib import Path


@functools.cache
def this_machine() -> tuple[str, str]:
    """Equal in two processes that know each other by the same process numbers: the machine's start, the namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    started = boot.read_text().strip() if boot.exists() else platform.node()
    with contextlib.suppress(OSError):
        return started, os.readlink("/proc/self/ns/pid")
    return started, ""


def clock_of(machine: tuple[str, str]) -> str:
    """What machines, as `this_machine` has them, have in common that share a clock."""
    return machine[0]


def used_megabytes(pid: int) -> float | None:
    """The memory of a process in megabytes; None where the system does not say, or it has ended."""
    import psutil

    with contextlib.suppress(psutil.Error):
        memory = psutil.Process(pid).memory_full_info()
        return getattr(memory, "pss", memory.rss) / 1e6
    return None
