"""What is kept of one rank's dump: its calls in each group, and whole only those that matter.

Runs in the command's processes, called by reading_all.py. A dump holds thousands of calls, and
there may be hundreds of dumps: of a completed call only a number is kept, which stands for its
name and tensors.

Versions of torch differ in what they write, so that nothing is asked for that is not needed.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from distlab.scripts.explaining.naming import function_of, lines_of, op_of, type_of
from distlab.wire.source import Line

Frames = Sequence[Mapping[str, Any]]
Tensors = tuple[tuple[str, tuple[int, ...]], ...]
Direction = tuple[bool, int, int]  # of messages: whether they are sent here; sender and receiver

MOST_OPEN = 32  # calls of one group that have not completed, which are kept whole; and the newest
MOST_NEWEST = 8
COMPLETED = "completed"
# backends that say of a call whether it has completed; of others it is over once it is retired
TELL_COMPLETION = ("nccl", "ncclx", "xccl", "rccl", "rcclx")
# the end of several calls that were begun as one, and have one state
COALESCED = "coalesced"
# "send 0->1", "recv 1<-0": ranks in the group
SENT = re.compile(r"send (\d+)->(\d+)")
RECEIVED = re.compile(r"recv (\d+)<-(\d+)")
NUMBERS = re.compile(r"\d+")
# calls whose tensors each rank may give in other shapes, and by which side they are compared
DIFFER_IN_SHAPE = ("all_to_all", "all_to_all_single", "coalesced")
BY_OUTPUT = ("scatter", "reduce_scatter", "reduce_scatter_tensor")
WITHOUT_TENSORS = ("barrier",)
DEFAULT = "default_pg"  # how torch describes the world


@dataclass(frozen=True)
class Kind:
    """What calls of one collective have in common that are compared.

    Attributes:
        function: what the program calls.
        tensors: the (dtype, shape) of each tensor that must be alike on all ranks.
        any_shape: whether the shapes may differ.
        ranks: how many ranks the group must have, as the tensors show; 0 if they do not.
    """

    function: str
    tensors: Tensors
    any_shape: bool = False
    ranks: int = 0


@dataclass(frozen=True)
class Call:
    """A call that is kept whole.

    Attributes:
        number: its place among all calls of the rank.
        sequence: its number in the group: among collectives, or among messages of its kind.
        kind: what is compared.
        op: what the program called.
        lines: the program's lines, outermost first.
        is_open: whether it has not completed.
        has_started: whether it is known to have started.
        ends: of a message, its sender and its receiver by their numbers in the group.
        is_send: whether it is a message that this rank sends.
        created: when it was begun, in ns.
    """

    number: int
    sequence: int
    kind: Kind
    op: str
    lines: tuple[Line, ...]
    is_open: bool
    has_started: bool
    ends: tuple[int, int] | None = None
    is_send: bool = False
    created: int = 0


@dataclass
class GroupRecord:
    """The calls of one rank in one group.

    Attributes:
        name: torch's name of the group.
        description: what the program calls it; torch calls the world "default_pg".
        members: its ranks in order; empty if the dump does not say.
        size: how many ranks it must have, as its calls show; 0 if they do not.
        sequences: the numbers of its collectives, in order.
        kinds: for each, the place of its kind in the rank's list of kinds.
        opened: how many of them have not completed.
        kept: those that are kept whole: the first open ones and the newest ones.
        begun: how many messages were begun, by (is_send, sender, receiver).
        over: how many of these have completed.
        messages: those that are kept whole.
        has_shifted: whether messages have taken numbers of collectives, and it is not known how
            many, because the recorder has forgotten some.
    """

    name: str
    description: str = ""
    members: tuple[int, ...] = ()
    size: int = 0
    sequences: array[int] = field(default_factory=lambda: array("q"))
    kinds: array[int] = field(default_factory=lambda: array("q"))
    opened: int = 0
    kept: list[Call] = field(default_factory=list)
    begun: dict[Direction, int] = field(default_factory=dict)
    over: dict[Direction, int] = field(default_factory=dict)
    messages: list[Call] = field(default_factory=list)
    has_shifted: bool = False

    @property
    def is_world(self) -> bool:
        """Whether it is the group of all ranks."""
        return self.description == DEFAULT or (self.name == "0" and not self.members)


@dataclass
class RankRecord:
    """What is kept of one dump.

    Attributes:
        path: its file.
        rank: its rank; None if the dump does not say.
        version: of the dump's format.
        entries: how many calls it holds.
        lost: how many calls the recorder has forgotten, because its buffer was full.
        has_frames: whether it has frames, which JSON has not.
        groups: the groups, by name.
        kinds: the kinds of its calls.
    """

    path: str
    rank: int | None
    version: str = ""
    entries: int = 0
    lost: int = 0
    has_frames: bool = False
    groups: dict[str, GroupRecord] = field(default_factory=dict)
    kinds: list[Kind] = field(default_factory=list)


def recorded(path: str, rank: int | None, content: Mapping[str, Any]) -> RankRecord:
    """What is kept of a dump.

    Args:
        path: its file.
        rank: its rank; None if the dump does not say.
        content: the dump.
    """
    record = RankRecord(path, rank, version=str(content.get("version", "")))
    _add_groups(record, content.get("pg_config"))
    entries = content.get("entries")
    if not isinstance(entries, Sequence) or isinstance(entries, (str, bytes)):
        return record
    entries = [entry for entry in entries if isinstance(entry, Mapping)]
    record.entries = len(entries)
    if entries:
        record.lost = _whole_number(entries[0].get("record_id"))
        record.has_frames = any(entry.get("frames") for entry in entries)
    by_group: dict[str, list[Mapping[str, Any]]] = {}
    for entry in entries:
        by_group.setdefault(_group_of(record, entry).name, []).append(entry)
    kinds: dict[Any, int] = {}
    for name, of_group in by_group.items():
        _add_calls(record, record.groups[name], of_group, kinds)
    return record


def _whole_number(value: Any) -> int:
    """A number as a dump has it, which may be a text; 0 for anything else."""
    if isinstance(value, int):
        return value
    if isinstance(value, str) and value.isdigit():
        return int(value)
    return 0


# --- groups ---


def _add_groups(record: RankRecord, config: Any) -> None:
    """Add the groups that a dump lists, with their members."""
    if not isinstance(config, Mapping):
        return
    for name, about in config.items():
        if not isinstance(about, Mapping) or not name:
            continue  # gloo lists one without a name
        members = tuple(int(one) for one in NUMBERS.findall(str(about.get("ranks", ""))))
        description = str(about.get("desc", ""))
        record.groups[str(name)] = GroupRecord(str(name), description, members)


def _group_of(record: RankRecord, entry: Mapping[str, Any]) -> GroupRecord:
    """The group of a call, which may not have been listed."""
    given = entry.get("process_group", entry.get("pg_name", ""))
    description = ""
    if isinstance(given, (tuple, list)):
        name = str(given[0]) if given else ""
        description = str(given[1]) if len(given) > 1 else ""
    else:
        name = str(given) or str(entry.get("pg_id", ""))
    group = record.groups.get(name)
    if group is None:
        group = GroupRecord(name, description)
        record.groups[name] = group
    elif not group.description:
        group.description = description
    return group


# --- calls ---


def _add_calls(
    record: RankRecord,
    group: GroupRecord,
    entries: Sequence[Mapping[str, Any]],
    kinds: dict[Any, int],
) -> None:
    """Add the calls of one group.

    Args:
        record: what is kept of the dump.
        group: the group.
        entries: its calls, in order.
        kinds: places in the list of kinds, by what tells them apart.
    """
    whole = _states_of_coalesced(entries)
    messages = []
    collectives = []
    for entry in entries:
        name = str(entry.get("profiling_name", ""))
        if " " in name:
            messages.append(entry)
        elif not name.endswith(COALESCED) or not entry.get("is_p2p"):
            collectives.append(entry)
    _add_messages(group, messages, whole)
    burned = _burned(messages, collectives)
    group.has_shifted = bool(burned and record.lost)
    _add_collectives(record, group, collectives, kinds, burned)


def _states_of_coalesced(entries: Iterable[Mapping[str, Any]]) -> dict[tuple[bool, int], bool]:
    """Of calls that were begun as one, whether they have completed, by kind and number.

    The calls inside have no state of their own.
    """
    found = {}
    for entry in entries:
        if str(entry.get("profiling_name", "")).endswith(f":{COALESCED}"):
            found[_number_of(entry)] = _has_completed(entry)
    return found


def _number_of(entry: Mapping[str, Any]) -> tuple[bool, int]:
    """Whether a call is a message, and its number among these, or among collectives.

    Before 2.? one number counted both.
    """
    is_message = bool(entry.get("is_p2p", " " in str(entry.get("profiling_name", ""))))
    key = "p2p_seq_id" if is_message else "collective_seq_id"
    return is_message, _whole_number(entry.get(key, entry.get("seq_id")))


def _has_completed(entry: Mapping[str, Any]) -> bool:
    """Whether a call is over."""
    if entry.get("state") == COMPLETED:
        return True
    backend, _, _ = str(entry.get("profiling_name", "")).partition(":")
    return bool(entry.get("retired")) and backend not in TELL_COMPLETION


def _burned(
    messages: Iterable[Mapping[str, Any]], collectives: Sequence[Mapping[str, Any]]
) -> list[int]:
    """Numbers of collectives that messages have taken, in order.

    Some versions count a batch of messages as a collective, on the ranks that take part in it.
    """
    if not collectives:
        return []
    numbers = {_whole_number(one.get("collective_seq_id")) for one in collectives}
    first = min(numbers)
    taken = {_whole_number(one.get("collective_seq_id")) for one in messages}
    return sorted(number for number in taken - numbers if number > 0 and number >= first - 1)


def _add_collectives(
    record: RankRecord,
    group: GroupRecord,
    entries: Sequence[Mapping[str, Any]],
    kinds: dict[Any, int],
    burned: Sequence[int],
) -> None:
    """Add the collectives of a group; of several that were begun as one, the first stands for all.

    Args:
        record: what is kept of the dump.
        group: the group.
        entries: its collectives, in order.
        kinds: places in the list of kinds, by what tells them apart.
        burned: numbers that messages have taken.
    """
    completed = {}
    firsts = []
    last = None
    for entry in entries:
        number = _number_of(entry)[1]
        if number != last:
            firsts.append(entry)
        completed[number] = _has_completed(entry)  # the last one tells of all
        last = number
    opened = []
    skipped = 0
    for index, entry in enumerate(firsts):
        raw = _number_of(entry)[1]
        while skipped < len(burned) and burned[skipped] < raw:
            skipped += 1
        place = _place_of_kind(record, entry, kinds)
        group.sequences.append(raw - skipped)
        group.kinds.append(place)
        if not completed[raw]:
            opened.append(index)
    group.opened = len(opened)
    newest = range(max(0, len(firsts) - MOST_NEWEST), len(firsts))
    for index in sorted({*opened[:MOST_OPEN], *newest}):
        entry = firsts[index]
        is_open = not completed[_number_of(entry)[1]]
        kind = record.kinds[group.kinds[index]]
        group.kept.append(_call(entry, group.sequences[index], kind, is_open))
    group.size = max((record.kinds[place].ranks for place in set(group.kinds)), default=0)


def _place_of_kind(record: RankRecord, entry: Mapping[str, Any], kinds: dict[Any, int]) -> int:
    """The place of a call's kind in the list of kinds, to which it is added if it is new."""
    name = entry.get("profiling_name", "")
    inputs = entry.get("input_sizes") or ()
    outputs = entry.get("output_sizes") or ()
    key = (
        name,
        tuple(map(tuple, inputs)),
        tuple(map(tuple, outputs)),
        tuple(entry.get("input_dtypes") or ()),
        tuple(entry.get("output_dtypes") or ()),
    )
    place = kinds.get(key)
    if place is None:
        place = len(record.kinds)
        kinds[key] = place
        record.kinds.append(_kind_of(entry))
    return place


def _kind_of(entry: Mapping[str, Any]) -> Kind:
    """What is compared of a collective."""
    function = function_of(str(entry.get("profiling_name", "")))
    if function in WITHOUT_TENSORS:
        return Kind(function, ())
    inputs = _tensors(entry, "input")
    outputs = _tensors(entry, "output")
    compared = outputs or inputs if function in BY_OUTPUT else inputs or outputs
    ranks = _ranks_shown_by(function, inputs, outputs)
    return Kind(function, compared, any_shape=function in DIFFER_IN_SHAPE, ranks=ranks)


def _tensors(entry: Mapping[str, Any], side: str) -> Tensors:
    """The tensors of a call, of its "input" or its "output"."""
    sizes = entry.get(f"{side}_sizes") or ()
    types = [str(one) for one in entry.get(f"{side}_dtypes") or ()]
    found = []
    for index, shape in enumerate(sizes):
        dtype = type_of(types[index]) if index < len(types) else ""
        found.append((dtype, tuple(int(one) for one in shape)))
    return tuple(found)


def _ranks_shown_by(function: str, inputs: Tensors, outputs: Tensors) -> int:
    """How many ranks a call's group has, as its tensors show; 0 if they do not.

    gloo, which does not list the members of its groups, has the outputs of an all_gather as one.
    """
    if function != "all_gather" or len(inputs) != 1 or len(outputs) != 1:
        return 0
    _, given = inputs[0]
    _, gathered = outputs[0]
    return gathered[0] if gathered[1:] == given else 0


def _call(
    entry: Mapping[str, Any],
    sequence: int,
    kind: Kind,
    is_open: bool,
    ends: tuple[int, int] | None = None,
    is_send: bool = False,
) -> Call:
    """A call that is kept whole."""
    frames = [one for one in entry.get("frames") or () if isinstance(one, Mapping)]
    return Call(
        number=_whole_number(entry.get("record_id")),
        sequence=sequence,
        kind=kind,
        op=op_of(frames, str(entry.get("profiling_name", ""))),
        lines=lines_of(frames),
        is_open=is_open,
        has_started=entry.get("state") in ("started", COMPLETED),
        ends=ends,
        is_send=is_send,
        created=_whole_number(entry.get("time_created_ns")),
    )


# --- messages ---


def _add_messages(
    group: GroupRecord,
    entries: Iterable[Mapping[str, Any]],
    whole: Mapping[tuple[bool, int], bool],
) -> None:
    """Add the messages of a group.

    Args:
        group: the group.
        entries: its messages, in order.
        whole: whether those that were begun as one have completed.
    """
    calls = []
    for entry in entries:
        name = str(entry.get("profiling_name", ""))
        sent = SENT.search(name)
        received = RECEIVED.search(name)
        if sent is not None:
            ends = int(sent[1]), int(sent[2])
        elif received is not None:
            ends = int(received[2]), int(received[1])
        else:
            continue
        is_send = sent is not None
        key = (is_send, *ends)
        group.begun[key] = group.begun.get(key, 0) + 1
        is_open = not whole.get(_number_of(entry), _has_completed(entry))
        if not is_open:
            group.over[key] = group.over.get(key, 0) + 1
        calls.append((entry, key, group.begun[key], is_open))
    opened = [index for index, call in enumerate(calls) if call[3]]
    newest = range(max(0, len(calls) - MOST_NEWEST), len(calls))
    for index in sorted({*opened[:MOST_OPEN], *newest}):
        entry, (is_send, source, receiver), number, is_open = calls[index]
        kind = Kind("recv", _tensors(entry, "output"))
        if is_send:
            kind = Kind("send", _tensors(entry, "input"))
        group.messages.append(_call(entry, number, kind, is_open, (source, receiver), is_send))
