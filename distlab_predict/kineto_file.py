"""The file of a trace that torch.profiler wrote: its events, and what they carry.

Called by kineto.py. The format is Chrome's, and what its events carry is Kineto's
(libkineto/src/output_json.cpp in pytorch/kineto).
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from distlab.arguments import refuse

HOW = 'Write one with profile(record_shapes=True) and prof.export_chrome_trace("trace.json").'
OPERATORS = {"cpu_op", "operator"}
GZIP = b"\x1f\x8b"  # how its files begin


class Event(NamedTuple):
    """What went on for some time.

    Attributes:
        name: as the trace has it.
        category: "cpu_op", "kernel" and so on.
        thread: its process and its thread.
        begin, end: seconds, on the trace's clock.
        carried: what else is known of it, by name.
    """

    name: str
    category: str
    thread: Hashable
    begin: float
    end: float
    carried: dict[str, Any]

    @property
    def seconds(self) -> float:
        """How long it went on."""
        return self.end - self.begin

    def list(self, name: str) -> Sequence[Any]:
        """A list that it carries; empty if it carries none by this name."""
        found = self.carried.get(name)
        return found if isinstance(found, list) else []


@dataclass(frozen=True)
class TraceFile:
    """What a file holds.

    Attributes:
        name: of the file.
        world: what it says of the ranks; empty if nothing.
        events: those with a begin and an end.
    """

    name: str
    world: dict[str, Any]
    events: list[Event]


def read_file(path: str | Path) -> TraceFile:
    """Read a file.

    Args:
        path: of a .json or .json.gz file, from prof.export_chrome_trace.

    Raises:
        ArgumentError: it cannot be read, is no such trace, or has no shapes.
    """
    if not isinstance(path, (str, os.PathLike)):
        refuse("trace", "the path of a file", path, HOW, wrong_type=True)
    content = _content(Path(path))
    if not isinstance(content, dict):
        content = {"traceEvents": content}  # Chrome's format also allows a bare list
    entries = content.get("traceEvents")
    if not isinstance(entries, list):
        refuse("trace", "a trace of torch.profiler", str(path), HOW)
    events = [_event(entry) for entry in entries if _has_begin_and_end(entry)]
    operators = [event for event in events if event.category in OPERATORS]
    if not operators:
        refuse("trace", "a trace of torch.profiler that has operators", str(path), HOW)
    if not any("Input Dims" in event.carried for event in operators):
        refuse("trace", "one with the shapes of its operators", str(path), HOW)
    world = content.get("distributedInfo")
    return TraceFile(Path(path).name, world if isinstance(world, dict) else {}, events)


def _content(path: Path) -> Any:
    """What a JSON file holds.

    Raises:
        ArgumentError: it cannot be read.
    """
    try:
        raw = path.read_bytes()
        if path.suffix == ".gz" or raw.startswith(GZIP):
            raw = gzip.decompress(raw)
        return json.loads(raw)
    except OSError as error:  # gzip's as well
        why = f"Reading it failed: {error}."
    except (EOFError, zlib.error):
        why = "It ends early, or is damaged. Copy it again."
    except ValueError:
        why = f"It is not JSON, or ends early. {HOW}"
    refuse("trace", "a file with a trace of torch.profiler", str(path), why)


def _has_begin_and_end(entry: Any) -> bool:
    """Whether an entry of a file is an event with a name, a begin and a duration."""
    if not isinstance(entry, dict) or entry.get("ph") != "X":
        return False
    times = (entry.get("ts"), entry.get("dur"))
    are_numbers = all(isinstance(time, (int, float)) for time in times)
    return are_numbers and isinstance(entry.get("name"), str)


def _event(entry: dict[str, Any]) -> Event:
    """An event of a file, which has microseconds."""
    carried = entry.get("args")
    return Event(
        name=entry["name"],
        category=str(entry.get("cat", "")).lower(),
        thread=(str(entry.get("pid")), str(entry.get("tid"))),
        begin=entry["ts"] / 1e6,
        end=(entry["ts"] + entry["dur"]) / 1e6,
        carried=carried if isinstance(carried, dict) else {},
    )
