"""Dumps of a flight recorder as NCCL's watchdog writes them, made by hand.

A `Recorder` is that of one rank. It is given calls as the program makes them, and says what torch
2.13 would have written of them (version 2.10).
"""

import functools
import pickle

TORCH = "/opt/env/lib/python3.11/site-packages/torch/"
C10D = f"{TORCH}distributed/distributed_c10d.py"
START_NS = 1_700_000_000_000_000_000
STEP_NS = 1_000_000
NAMES = {  # how torch's recorder calls what the program calls
    "all_gather_into_tensor": "_all_gather_base",
    "reduce_scatter_tensor": "_reduce_scatter_base",
    "barrier": "all_reduce_barrier",
}


@functools.cache  # as in a real dump, calls of one line have the same frames
def frames(function, line, file="/home/me/train.py"):
    """The frames of a call of torch's function in a line of the program, innermost first."""
    return [
        {"name": function, "filename": C10D, "line": 2501},
        {"name": "wrapper", "filename": f"{TORCH}distributed/c10d_logger.py", "line": 83},
        {"name": "step", "filename": file, "line": line},
        {"name": "<module>", "filename": file, "line": 99},
    ]


class Recorder:
    """What the recorder of one rank holds.

    Args:
        rank: the rank.
        groups: the ranks of each group by name; "0" is the world.
        backend: as the names of calls begin.
        buffer: how many calls it holds.
        batches_count: whether a batch of messages takes a number of a collective, as in torch 2.5.
    """

    def __init__(self, rank, groups, backend="nccl", buffer=2000, batches_count=False):
        self.rank = rank
        self.groups = {name: ranks for name, ranks in groups.items() if rank in ranks}
        self.backend = backend
        self.buffer = buffer
        self.batches_count = batches_count
        self.lists_members = True
        self.entries = []
        self._numbers = {name: [0, 0] for name in self.groups}  # of collectives, of messages
        self._first_id = 0

    def call(self, function, line, group="0", sizes=((4,),), state="completed", dtype="Float"):
        """A collective; returns the recorder."""
        self._numbers[group][0] += 1
        inputs = [list(one) for one in sizes]
        return self._add(NAMES.get(function, function), function, line, group, inputs, state, dtype)

    def message(self, function, line, peer, group="0", size=(4,), state="completed", bump=True):
        """A send or recv of one tensor with a rank of the group; returns the recorder."""
        if bump:
            self._numbers[group][1] += 1
        ranks = self.groups[group]
        own, other = ranks.index(self.rank), ranks.index(peer)
        kind = "send" if function in ("send", "isend") else "recv"
        arrow = "->" if kind == "send" else "<-"
        name = f"{kind} {own}{arrow}{other}"
        self._add(name, function, line, group, [list(size)], state, "Float", is_p2p=True)
        return self

    def batch(self, line, messages, group="0", state="completed"):
        """batch_isend_irecv of (function, peer) pairs; returns the recorder."""
        self._numbers[group][0 if self.batches_count else 1] += 1
        for function, peer in messages:
            self.message(function, line, peer, group, state="scheduled", bump=False)
            self.entries[-1]["frames"] = frames("batch_isend_irecv", line)
        self._add("coalesced", "batch_isend_irecv", line, group, [], state, "Float", is_p2p=True)
        return self

    def restart(self):
        """Make all groups again, under the same names."""
        self._numbers = {name: [0, 0] for name in self.groups}
        self._first_id += len(self.groups)

    def _add(self, name, function, line, group, inputs, state, dtype, is_p2p=False):
        number = len(self.entries)
        completed = state == "completed"
        created = START_NS + number * STEP_NS
        self.entries.append(
            {
                "frames": frames(function, line),
                "record_id": number,
                "pg_id": self._first_id + list(self.groups).index(group),
                "process_group": (group, "default_pg" if group == "0" else "undefined"),
                "thread_name": "python",
                "thread_id": "1",
                "collective_seq_id": self._numbers[group][0],
                "p2p_seq_id": self._numbers[group][1],
                "op_id": number + 1,
                "profiling_name": f"{self.backend}:{name}",
                "time_created_ns": created,
                "input_sizes": inputs,
                "input_dtypes": [dtype] * len(inputs),
                "output_sizes": inputs,
                "output_dtypes": [dtype] * len(inputs),
                "state": state,
                "time_discovered_started_ns": None if state == "scheduled" else created,
                "time_discovered_completed_ns": created if completed else None,
                "retired": completed,
                "timeout_ms": 600000,
                "is_p2p": is_p2p,
            }
        )
        return self

    def content(self):
        """The dump as a value."""
        config = {"": {"name": "", "desc": "", "ranks": "[]"}}
        for name, ranks in self.groups.items():
            description = "default_pg" if name == "0" else "undefined"
            if self.lists_members:
                config[name] = {"name": name, "desc": description, "ranks": str(list(ranks))}
        return {
            "version": "2.10",
            "pg_config": config,
            "pg_status": {},
            "comm_lib_version": "2.27.5",
            "entries": self.entries[-self.buffer :],
        }

    def write(self, folder):
        """Write the dump as the watchdog names it, and return its path."""
        path = folder / f"nccl_trace_rank_{self.rank}"
        path.write_bytes(pickle.dumps(self.content(), protocol=2))
        return path


def world(size, groups=(), **options):
    """A recorder for each rank of a job with these groups besides the world."""
    named = {"0": list(range(size)), **dict(groups)}
    return [Recorder(rank, named, **options) for rank in range(size)]


def write_all(folder, recorders):
    """Write all dumps, and return the folder as a command line has it."""
    for one in recorders:
        one.write(folder)
    return str(folder)
