"""A dump of the flight recorder, read from a file that nobody vouches for.

Runs in the command's processes, called by gathering.py and reading_again.py. A pickle may hold
plain containers, texts and numbers only; JSON may be the dump of one rank, or an answer that wraps
the dumps of several.
"""

from __future__ import annotations

import contextlib
import html
import io
import json
import pickle
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from distlab.errors import DataError

# what every dump has one of, whatever its version, and nothing else is likely to have
KEYS_OF_DUMPS = ("entries", "pg_config", "pg_status")
PICKLE = b"\x80"  # the first byte of a pickle
# lists of one type, as torch writes them; they are lists here
TYPED_LISTS = ("build_intlist", "build_doublelist", "build_boollist", "build_tensorlist")
NUMBER_AT_END = re.compile(r"(\d+)\D*$")
# the page of torch's debug server, with the answer of each rank
PAGE_OF_ANSWERS = re.compile(r"Rank (\d+):.*?<pre>(.*?)</pre>", re.DOTALL)


@dataclass(frozen=True)
class Dump:
    """What the recorder of one rank has written.

    Attributes:
        content: as it was written.
        rank: its rank, where the file says it; None where it does not.
    """

    content: Mapping[str, Any]
    rank: int | None = None


def dumps_in(content: bytes) -> list[Dump]:
    """The dumps in the content of a file.

    Raises:
        DataError: it is no dump; the message says why, as the end of a sentence about the file.
    """
    if not content.strip():
        raise DataError("is empty")
    if content.startswith(PICKLE):
        found = list(_dumps_of(_unpickled(content)))
    else:
        found = list(_dumps_of_text(content))
    if not found:
        raise DataError("has no key of a flight recorder's dump (entries, pg_config, pg_status)")
    return found


# --- pickles ---


class _PlainUnpickler(pickle.Unpickler):
    """Reads containers, texts and numbers, and nothing that runs code."""

    def find_class(self, module: str, name: str) -> Any:
        """The function that makes a list of one type; any other name is refused."""
        if module == "torch.jit._pickle" and name in TYPED_LISTS:
            return list
        raise DataError(
            f"wants to call {module}.{name}, as no flight recorder does: a pickle may run code, so "
            "it was not read"
        )

    def persistent_load(self, pid: Any) -> Any:
        """A tensor's storage, which a dump has none of."""
        raise DataError("refers to data outside of it, as no flight recorder does")


def _unpickled(content: bytes) -> Any:
    """What a pickle holds."""
    # a reader with a buffer, because from another one pickle reads each value by a call of its own
    reader = io.BufferedReader(io.BytesIO(content))
    try:
        return _PlainUnpickler(reader).load()
    except DataError:
        raise
    except Exception as error:  # a damaged pickle may raise anything
        raise DataError(f"cannot be read as a pickle ({type(error).__name__}: {error})") from error


# --- JSON ---


def _dumps_of_text(content: bytes) -> Iterator[Dump]:
    """The dumps in a text: JSON, or the debug server's page with that of each rank."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise DataError("is neither a pickle nor JSON") from None
    answers = PAGE_OF_ANSWERS.findall(text)
    if not text.lstrip().startswith(("{", "[")) and answers:
        for rank, answer in answers:
            with contextlib.suppress(DataError):  # what it says of a rank that did not answer
                for dump in _dumps_of(_from_json(html.unescape(answer))):
                    yield Dump(dump.content, int(rank))
        return
    yield from _dumps_of(_from_json(text))


def _from_json(text: str) -> Any:
    """What a text of JSON holds."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise DataError("is neither a pickle nor JSON") from None


# --- what they hold ---


def _dumps_of(value: Any) -> Iterator[Dump]:
    """The dumps in a value: one dump, or a list or dict of them."""
    if isinstance(value, Mapping):
        if any(key in value for key in KEYS_OF_DUMPS):
            yield Dump(value, _number(value.get("rank")))
            return
        for name, inner in value.items():
            for dump in _dumps_of_part(inner):
                yield Dump(dump.content, _rank_in(name) if dump.rank is None else dump.rank)
    elif isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        for rank, inner in enumerate(value):
            for dump in _dumps_of_part(inner):
                yield Dump(dump.content, rank if dump.rank is None else dump.rank)


def _dumps_of_part(value: Any) -> Iterator[Dump]:
    """The dumps in a part of an answer; some answers hold JSON as a text."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        yield from _dumps_of(_from_json(value))
    elif isinstance(value, Mapping):
        yield from _dumps_of(value)


def _number(value: Any) -> int | None:
    """A rank as a dump may have it, as a number or as a text."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and value.isdigit():
        return int(value)
    return None


def _rank_in(name: Any) -> int | None:
    """The rank at the end of a name: 3 in "rank3" and in "nccl_trace_rank_3.json"."""
    found = NUMBER_AT_END.search(str(name))
    return None if found is None else int(found[1])
