"""What a call of this rank raises when the watchdog frees the rank from it.

Runs on every rank; the modules in which Python code waits raise these messages, as RuntimeErrors.
raised.py recognises them by how they begin, as it does those of gloo, torch's stores and RPC: a
rank that was freed is not at fault.
"""

GROUP_IS_CLOSED = "Connection closed: this rank was freed from a call of its group before."
FROM_ANY_RANK = "Connection closed: the wait for a message from any rank was ended."
BEHIND_DROPPED = "Freed while it waited behind a message whose Work was dropped."
FROM_NEW_GROUP = "Freed while it waited for the other members of a new group."
FROM_WORKERS = "Freed while it waited for other workers."
FROM_REMOTE_CALL = "EOF: the wait for a remote call was ended."
RPC_ENDS = "EOF: RPC is being ended on this rank."


def from_processes(op: str) -> str:
    """The message of a wait for processes that need not be ranks, in a function of torch."""
    return f"Freed while it waited for other processes, in {op}."


def from_waiting(how: str) -> str:
    """The message of a wait by hand, in distlab.waiting: "through shared memory", say."""
    return f"Freed while it waited for other ranks {how}."
