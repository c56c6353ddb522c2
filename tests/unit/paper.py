"""Ranks on paper: what they have called, and what the sentinels would say of it, without any process."""

from collections import Counter
from typing import Any

from distlab.deadlock import BETWEEN, COMMUNICATING, COMPUTING, IDLE, SILENT, State
from distlab.errors import Line

WORLD = "0"


class Paper:
    """n ranks that have finished, unless they are told to do something; a call is waited for unless `wait` is False."""

    def __init__(self, n: int):
        self.n = n
        self.groups = {WORLD: list(range(n))}
        self._calls: dict[int, dict[str, Any]] = {}
        self._doing: dict[int, str] = {}
        self._lines: dict[int, tuple[Line, ...]] = {}
        self._traffic: dict[int, Counter[tuple[Any, ...]]] = {r: Counter() for r in range(n)}
        self._dropped: dict[int, Counter[tuple[Any, ...]]] = {r: Counter() for r in range(n)}
        self._counts: dict[int, Counter[str]] = {r: Counter() for r in range(n)}
        self._history: dict[int, list[dict[str, Any]]] = {r: [] for r in range(n)}
        self._made = dict.fromkeys(range(n), 1)

    def group(self, name: str, members: list[int]) -> str:
        """A group that every rank has made with new_group."""
        self.groups[name] = members
        self._made = {rank: made + 1 for rank, made in self._made.items()}
        return name

    def send(self, rank: int, dst: int, **options: Any) -> dict[str, Any]:
        """options: tag, group, wait, tensors; dropped=True drops its Work."""
        return self._message(rank, "send" if options.get("wait", True) else "isend", dst, True, **options)

    def recv(self, rank: int, src: int | None = None, **options: Any) -> dict[str, Any]:
        """src None: from any source. options: tag, group, wait, tensors."""
        return self._message(rank, "recv" if options.get("wait", True) else "irecv", src, False, **options)

    def _message(
        self,
        rank: int,
        op: str,
        peer: int | None,
        is_send: bool,
        tag: int = 0,
        group: str = WORLD,
        wait: bool = True,
        dropped: bool = False,
        tensors: Any = (("float32", [1]),),
        **more: Any,
    ) -> dict[str, Any]:
        key = (is_send, group, peer, tag)
        self._traffic[rank][key] += 1
        self._dropped[rank][key] += dropped
        call = {
            **{"op": op, "kind": "message", "collective": "", "group": group, "members": self.groups[group]},
            **{"own_limit": False, "sequence": self._traffic[rank][key], "tensors": [list(t) for t in tensors]},
            **{"lines": [], "is_send": is_send, "tag": tag, "peer": peer, **more},
        }
        return self._wait(rank, call) if wait else call

    def collective(
        self,
        rank: int,
        op: str = "all_reduce",
        group: str = WORLD,
        wait: bool = True,
        tensors: Any = (("float32", [2]),),
        **more: Any,
    ) -> dict[str, Any]:
        """more: reduce_op, root, sends, receives, own_limit, collective where it is another than the op."""
        self._counts[rank][group] += 1
        call = {
            **{"op": op, "kind": "collective", "collective": op, "group": group, "members": self.groups[group]},
            **{"own_limit": False, "sequence": self._counts[rank][group], "tensors": [list(t) for t in tensors]},
            **{"lines": [], **more},
        }
        self._history[rank].append(call)
        return self._wait(rank, call) if wait else call

    def new_group(self, rank: int, members: list[int] | None = None, local: bool = False, **more: Any) -> None:
        """Wait in new_group; `local`: with use_local_synchronization."""
        self._made[rank] += not local
        sequence = 0 if local else self._made[rank]
        call = {"op": "new_group", "kind": "other", "members": members or self.groups[WORLD], "sequence": sequence}
        self._wait(rank, {**call, "own_limit": False, **more})

    def other(self, rank: int, op: str = "backward", own_limit: bool = False) -> None:
        """Wait in something that C++ does by itself."""
        self._wait(rank, {"op": op, "kind": "other", "members": self.groups[WORLD], "own_limit": own_limit})

    def _wait(self, rank: int, call: dict[str, Any]) -> dict[str, Any]:
        self._calls[rank], self._doing[rank] = call, COMMUNICATING
        return call

    def wait(self, rank: int, call: dict[str, Any]) -> None:
        """Wait for a call that was begun without waiting."""
        self._wait(rank, call)

    def goes_on(self, *ranks: int) -> None:
        """The calls of these ranks have come back, and the ranks have finished."""
        for rank in ranks:
            del self._calls[rank], self._doing[rank]

    def computes(self, rank: int) -> None:
        self._calls.pop(rank, None)
        self._doing[rank] = COMPUTING

    def has_not_begun(self, rank: int) -> None:
        self._doing[rank] = BETWEEN

    def silent(self, rank: int) -> None:
        self._doing[rank] = SILENT

    def at(self, rank: int, *lines: Line) -> None:
        """Where the rank is, outermost first."""
        self._lines[rank] = lines

    def states(self, **fields: Any) -> dict[int, State]:
        """fields: of every State that is not told here, such as mark, quiet and rounds."""
        return {rank: self._state(rank, fields) for rank in range(self.n)}

    def _state(self, rank: int, fields: dict[str, Any]) -> State:
        doing = self._doing.get(rank, IDLE)
        if doing == SILENT:
            return State(rank, SILENT)
        return State(
            rank,
            doing,
            self._calls.get(rank),
            self._lines.get(rank, ()),
            counts=dict(self._counts[rank]),
            groups=self._made[rank],
            history=tuple(self._history[rank]),
            traffic=tuple((*key, count, self._dropped[rank][key]) for key, count in self._traffic[rank].items()),
            **fields,
        )
