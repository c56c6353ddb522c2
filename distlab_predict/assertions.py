"""Whether an `assert` asks for a truth, and which one it needs, from the bytecode of its function.

Called by deciding.py, in the process of a rank that is recorded. The source would not do: that of a
notebook's cell is not in this process, and an `assert` may have several lines, or a `not`.
"""

from __future__ import annotations

import dis
import functools
from types import CodeType, FrameType

# what ends the expression that asks: its value is kept, dropped or returned, and not tested
ENDS = ("STORE", "POP_TOP", "RETURN")
# what may lie between a jump and the error of an assertion
BETWEEN = ("POP_TOP", "CACHE", "NOT_TAKEN", "EXTENDED_ARG")
# how that error is loaded, up to Python 3.13 and since then; a `raise` loads its name instead
ERRORS = (("LOAD_ASSERTION_ERROR", ""), ("LOAD_COMMON_CONSTANT", "AssertionError"))


def needed(frame: FrameType) -> bool | None:
    """The truth with which a frame gets past its `assert`; None if no `assert` tests it next."""
    instructions = _instructions(frame.f_code)
    for place, instruction in enumerate(instructions):
        if instruction.offset < frame.f_lasti:
            continue
        name = instruction.opname
        if name.startswith(ENDS):
            return None
        if name.startswith("POP_JUMP"):
            jumps_if = name.endswith("TRUE")
            if _leads_to_error(instructions, place + 1):
                return jumps_if
            target = _place_of(instructions, instruction.argval)
            if _leads_to_error(instructions, target):
                return not jumps_if
            return None
    return None


@functools.cache
def _instructions(code: CodeType) -> list[dis.Instruction]:
    return list(dis.get_instructions(code))


def _place_of(instructions: list[dis.Instruction], offset: int) -> int:
    return next(place for place, one in enumerate(instructions) if one.offset == offset)


def _leads_to_error(instructions: list[dis.Instruction], place: int) -> bool:
    """Whether nothing but the error of an `assert` is raised from here on."""
    for instruction in instructions[place:]:
        if instruction.opname == "JUMP_FORWARD":
            return _leads_to_error(instructions, _place_of(instructions, instruction.argval))
        if instruction.opname not in BETWEEN:
            return (instruction.opname, instruction.argrepr) in ERRORS
    return False
