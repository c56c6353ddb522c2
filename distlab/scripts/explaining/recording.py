"""What is kept of one rank's dump: its calls in each group, and whole only those that matter.

Runs in the command's processes, called by gathering.py and reading_again.py. A dump holds thousands
of calls, and there may be hundreds of dumps.

Versions of torch differ in what they write, so that nothing is asked for that is not needed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from distlab.scripts.explaining.kept import (
    Call,
    Direction,
    GroupRecord,
    Kind,
    RankRecord,
    Tensors,
)
from distlab.scripts.explaining.naming import function_of, lines_of, op_of, type_of

MOST_OPEN = 32  # calls of one group that have not completed, which are kept whole; and the newest
MOST_NEWEST = 3
COMPLETED = "completed"
# backends that say of a call whether it has completed; of others it is over once it is retired
TELL_COMPLETION = ("nccl", "ncclx", "xccl", "rccl", "rcclx", "hccl", "mccl")
# the end of several calls that were begun as one, and have one state
COALESCED = ":coalesced"
# "send 0->1", "recv 1<-0": ranks in the group
SENT = re.compile(r"send (\d+)->(\d+)")
RECEIVED = re.compile(r"recv (\d+)<-(\d+)")
NUMBERS = re.compile(r"\d+")
# calls whose tensors each rank may give in other shapes, and by which side they are compared
DIFFER_IN_SHAPE = ("all_to_all", "all_to_all_single", "coalesced")
BY_OUTPUT = ("scatter", "reduce_scatter", "reduce_scatter_tensor")
WITHOUT_TENSORS = ("barrier",)


class Entry(NamedTuple):
    """One call of a dump.

    Attributes:
        content: what the dump has of it.
        name: the recorder's name, with its backend.
        number: its number among the collectives of its group; a message has that of the last one.
        of_messages: its number among the messages of its group.
        is_message: whether it is a message, or the end of a batch of messages.
        is_over: whether it has completed.
    """

    content: Mapping[str, Any]
    name: str
    number: int
    of_messages: int
    is_message: bool
    is_over: bool


def recorded(
    path: str, rank: int | None, content: Mapping[str, Any], also: int | None = None
) -> RankRecord:
    """What is kept of a dump.

    Args:
        path: its file.
        rank: its rank; None if the dump does not say.
        content: the dump.
        also: the number of collectives that are kept whole, too.
    """
    record = RankRecord(path, rank, version=str(content.get("version", "")))
    _add_groups(record, content.get("pg_config"))
    given = content.get("entries")
    if not isinstance(given, Sequence) or isinstance(given, (str, bytes)):
        return record
    by_group: dict[str, list[Entry]] = {}
    for one in given:
        if isinstance(one, Mapping) and one.get("profiling_name"):
            if not record.entries:
                record.lost = _whole_number(one.get("record_id"))
            record.entries += 1
            record.has_frames = record.has_frames or bool(one.get("frames"))
            by_group.setdefault(_group_of(record, one), []).append(_entry(one))
    kinds: dict[Any, int] = {}
    for name, entries in by_group.items():
        _add_calls(record, record.groups[name], _of_last(entries), kinds, also)
    return record


def _of_last(entries: Sequence[Entry]) -> Sequence[Entry]:
    """The calls of the last of several groups that had one name, as after a new start."""
    last = entries[-1].content.get("pg_id")
    if entries[0].content.get("pg_id") == last:
        return entries
    return [entry for entry in entries if entry.content.get("pg_id") == last]


def _entry(content: Mapping[str, Any]) -> Entry:
    """One call of a dump; the oldest versions have one number for collectives and messages."""
    get = content.get
    name = str(get("profiling_name", ""))
    is_over = get("state") == COMPLETED
    if not is_over and get("retired"):
        backend, _, _ = name.partition(":")
        is_over = backend not in TELL_COMPLETION
    only = get("seq_id", 0)
    number = _whole_number(get("collective_seq_id", only))
    of_messages = _whole_number(get("p2p_seq_id", only))
    return Entry(content, name, number, of_messages, bool(get("is_p2p", " " in name)), is_over)


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


def _group_of(record: RankRecord, content: Mapping[str, Any]) -> str:
    """The name of a call's group, which is added if no call was in it before."""
    given = content.get("process_group", "")
    description = ""
    if isinstance(given, (tuple, list)) and given:
        name = str(given[0])
        description = str(given[-1])
    else:
        name = str(given or content.get("pg_id", ""))
    group = record.groups.get(name)
    if group is None:
        record.groups[name] = GroupRecord(name, description)
    elif not group.description:
        group.description = description
    return name


# --- calls ---


def _add_calls(
    record: RankRecord,
    group: GroupRecord,
    entries: Sequence[Entry],
    kinds: dict[Any, int],
    also: int | None,
) -> None:
    """Add the calls of one group.

    Args:
        record: what is kept of the dump.
        group: the group.
        entries: its calls, in order.
        kinds: places in the list of kinds, by what tells them apart.
        also: the number of a collective that is kept whole, too.
    """
    batches = {}
    messages = []
    collectives = []
    for entry in entries:
        if entry.is_message and entry.name.endswith(COALESCED):
            batches[entry.of_messages] = entry.is_over
        elif " " in entry.name:
            messages.append(entry)
        else:
            collectives.append(entry)
    _add_messages(group, messages, batches)
    taken = _taken_by_messages(messages, collectives)
    group.has_shifted = bool(taken and record.lost)
    single = _as_single(collectives)
    _add_collectives(record, group, single, taken, kinds)
    whole = _kept_of(len(single), [at for at, one in enumerate(single) if not one.is_over])
    if also is not None and also in group.sequences:
        whole = sorted({*whole, group.sequences.index(also)})
    for index in whole:
        kind = record.kinds[group.kinds[index]]
        group.kept.append(_call(single[index], group.sequences[index], kind))


def _taken_by_messages(messages: Iterable[Entry], collectives: Iterable[Entry]) -> list[int]:
    """Numbers of collectives that messages have taken, in order.

    Some versions count a batch of messages as a collective, on the ranks that take part in it.
    """
    numbers = {one.number for one in collectives}
    if not numbers:
        return []
    first = min(numbers)
    taken = {one.number for one in messages} - numbers
    return sorted(number for number in taken if number > 0 and number >= first - 1)


def _as_single(collectives: Sequence[Entry]) -> list[Entry]:
    """Collectives of which several that were begun as one are one: the first, as it ended.

    Those inside have no state of their own, and the same number as the end.
    """
    single: list[Entry] = []
    for entry in collectives:
        if single and single[-1].number == entry.number:
            single[-1] = single[-1]._replace(is_over=entry.is_over)
        else:
            single.append(entry)
    return single


def _add_collectives(
    record: RankRecord,
    group: GroupRecord,
    entries: Sequence[Entry],
    taken: Sequence[int],
    kinds: dict[Any, int],
) -> None:
    """Add the collectives of a group.

    Args:
        record: what is kept of the dump.
        group: the group.
        entries: its collectives, in order.
        taken: numbers that messages have taken; those behind them move up.
        kinds: places in the list of kinds, by what tells them apart.
    """
    moved = 0
    for entry in entries:
        while moved < len(taken) and taken[moved] < entry.number:
            moved += 1
        group.sequences.append(entry.number - moved)
        group.kinds.append(_place_of_kind(record, entry, kinds))
    group.size = max((record.kinds[place].ranks for place in set(group.kinds)), default=0)


def _kept_of(number: int, open_ones: Sequence[int]) -> list[int]:
    """Which of so many calls are kept whole: the first open ones, and the newest."""
    newest = range(max(0, number - MOST_NEWEST), number)
    return sorted({*open_ones[:MOST_OPEN], *newest})


def _place_of_kind(record: RankRecord, entry: Entry, kinds: dict[Any, int]) -> int:
    """The place of a call's kind in the list of kinds, to which it is added if it is new."""
    get = entry.content.get
    key = (
        entry.name,
        tuple(map(tuple, get("input_sizes") or ())),
        tuple(map(tuple, get("output_sizes") or ())),
        tuple(get("input_dtypes") or ()),
        tuple(get("output_dtypes") or ()),
    )
    place = kinds.get(key)
    if place is None:
        place = len(record.kinds)
        kinds[key] = place
        record.kinds.append(_kind_of(entry))
    return place


def _kind_of(entry: Entry) -> Kind:
    """What is compared of a collective."""
    function = function_of(entry.name)
    if function in WITHOUT_TENSORS:
        return Kind(function, ())
    inputs = _tensors(entry, "input")
    outputs = _tensors(entry, "output")
    compared = inputs or outputs
    if function in BY_OUTPUT:
        compared = outputs or inputs
    ranks = _ranks_shown_by(function, inputs, outputs)
    return Kind(function, compared, any_shape=function in DIFFER_IN_SHAPE, ranks=ranks)


def _tensors(entry: Entry, side: str) -> Tensors:
    """The tensors of a call, of its "input" or its "output"."""
    sizes = entry.content.get(f"{side}_sizes") or ()
    types = [str(one) for one in entry.content.get(f"{side}_dtypes") or ()]
    found = []
    for index, shape in enumerate(sizes):
        dtype = type_of(types[index]) if index < len(types) else ""  # the oldest have none
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
    entry: Entry,
    sequence: int,
    kind: Kind,
    direction: Direction | None = None,
) -> Call:
    """A call that is kept whole.

    Args:
        entry: the call.
        sequence: its number.
        kind: what is compared of it.
        direction: of a message, its ends.
    """
    content = entry.content
    frames = [one for one in content.get("frames") or () if isinstance(one, Mapping)]
    return Call(
        number=_whole_number(content.get("record_id")),
        sequence=sequence,
        kind=kind,
        op=op_of(frames, entry.name),
        lines=lines_of(frames),
        is_open=not entry.is_over,
        has_started=content.get("state") in ("started", COMPLETED),
        direction=direction,
        created=_whole_number(content.get("time_created_ns")),
    )


# --- messages ---


def _add_messages(
    group: GroupRecord, entries: Iterable[Entry], batches: Mapping[int, bool]
) -> None:
    """Add the messages of a group.

    Args:
        group: the group.
        entries: its messages, in order.
        batches: whether those that were begun as one have completed, by their number.
    """
    calls: list[tuple[Entry, Direction, int]] = []
    open_ones = []
    for given in entries:
        direction = _direction_of(given.name)
        if direction is None:
            continue
        entry = given._replace(is_over=batches.get(given.of_messages, given.is_over))
        number = group.begun.get(direction, 0) + 1
        group.begun[direction] = number
        if entry.is_over:
            group.over[direction] = group.over.get(direction, 0) + 1
        else:
            open_ones.append(len(calls))
        calls.append((entry, direction, number))
    for index in _kept_of(len(calls), open_ones):
        entry, direction, number = calls[index]
        kind = Kind("recv", _tensors(entry, "output"))
        if direction[0]:
            kind = Kind("send", _tensors(entry, "input"))
        group.messages.append(_call(entry, number, kind, direction))


def _direction_of(name: str) -> Direction | None:
    """The ends of a message, by the recorder's name of it."""
    sent = SENT.search(name)
    if sent is not None:
        return True, int(sent[1]), int(sent[2])
    received = RECEIVED.search(name)
    if received is not None:
        return False, int(received[2]), int(received[1])
    return None
