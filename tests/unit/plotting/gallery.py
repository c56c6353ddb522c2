"""Every figure, with arguments as a lesson gives them."""

import numpy as np
import torch

from distlab import plotting
from distlab.errors import DeadlockError
from distlab.plotting.areas import memory_over_time
from distlab.plotting.differences import differences_by_step
from distlab.plotting.maps import Axis, Cell, cell_map
from distlab.traces.events import Event, Message
from distlab.traces.shares import Shares
from distlab.wire.messages import Failure
from distlab_course import algorithms, figures
from tests.tool import load
from tests.unit.plotting.conftest import FIT, curve
from tests.unit.plotting.scenes import collective, halves, message

DIAGRAMS = load("diagrams")
SIMULATED = "simulated: 4 ranks, 5 µs, 12.5 GB/s"
CURVES = {"gloo": curve(6e-5), "ring": curve(2e-4), "copy": curve(1e-6, 1e-10)}
BY_RANKS = (
    {"ring": ([2, 4], *[[1e-3, 2e-3]] * 3)},
    "1 MiB",
    {"ring": ([2, 4, 64], [1e-3, 2e-3, 3e-3])},
)
BESIDE = ({"my ring": ([2**10, 2**14], *[[1e-3, 2e-3]] * 3)}, ([2**10, 2**14], [1e-3, 3e-3]))
RATES = {
    "small": ([1, 2, 4], [100, 120, 80], [90, 100, 70], [110, 130, 90]),
    "large": ([1, 2, 4], [10, 19, 20], [9, 18, 17], [11, 20, 21]),
}
EPOCHS = range(1, 21)
LOSSES = {
    f"rank {rank}": (EPOCHS, [2.3 / epoch + 0.01 * rank for epoch in EPOCHS]) for rank in range(8)
}
HITS = {
    f"rank {rank}": (EPOCHS, [100 - 80 / epoch - rank for epoch in EPOCHS]) for rank in range(4)
}
WAIT = "waiting for a partner"
MOVE = "communicating"
STEP = {
    "forward": [(0.0, 0.01, "", "forward")],
    "backward": [(0.012, 0.03, "", "backward")],
    "all-gather": [
        (0.0, 0.002, "", "wait"),
        (0.002, 0.008, "", "move"),
        (0.003, 0.009, "", "move"),
    ],
}
SERVED = {
    "rank 0": [(10.02, 10.05, "2")],
    "rank 1": [(10.0, 10.06, ""), (10.01, 10.06, "")],
    "rank 2": [],
}
SHARES = {f"rank {rank}": Shares(0.02, 0.01, 0.0056, 0.0037, 0.0007) for rank in range(4)}
PARTS = {
    "parameters": 8 * 2**20,
    "gathered parameters": 2**22,
    "gradients": 2**20,
    "optimizer states": 16 * 2**20,
}
REPLICA = {part: size for part, size in PARTS.items() if part != "gathered parameters"}
MOMENTS = {
    "at rest": {"parameters": 2**21},
    "forward 0": PARTS,
    "forward 1": PARTS,
    "after forward": {},
}
# rank 1 comes first and waits for rank 0; the set of rank 0 returns after rank 1 has read it
CALLS = [
    [
        ("set", "k0", 5.0, 5.4),
        ("wait", "k0", 5.4, 5.41),
        ("get", "k0", 5.41, 5.5),
        ("get", "k1", 5.5, 5.6),
    ],
    [
        ("set", "k1", 1.0, 1.1),
        ("wait", "k0", 1.1, 5.2),
        ("get", "k0", 5.2, 5.3),
        ("get", "k1", 5.3, 5.35),
    ],
]
HELD_BY = {"rref": 0, "rref\n2": 2, "object": 1, "alone": 1}
EDGES = [("rref\n2", "object"), ("rref", "object"), ("object", "alone")]
PROCESSES = {
    "here": ["notebook", "controller"],
    "nodeA": ["store", "rank 0", "rank 1"],
    "nodeB": ["rank 2 (local 0)"],
}
LINES = {
    "commands": [("controller", "rank 2 (local 0)")],
    "tensors": [("rank 0", "rank 1"), ("rank 2 (local 0)", "rank 1")],
}
HELD = ([1, [2, 7], (3, 7)], [3, [7, "?", 14], None])
MEASURED = {"none": (0.05, 0.04, 0.06), "buckets": (0.1, 0.09, 0.3)}
FEW = {"a": Shares(0.001, 0, 0.001, 0, 0), "b": Shares(3, 0, 1, 0, 0)}
TRAINED = {"loss": LOSSES, "accuracy, %": HITS, "c": HITS}
SAMPLES = (torch.eye(8).expand(2, 6, 1, 8, 8), [range(6), [*"abcdef"]])
LATE = {
    "a firewall": [(5.0, "timed out"), (5.0, "timed out")],
    "no such name": [(0.0, "unknown"), (1.0, "timed out")],
}
PEERS = {0: "recv(src=1)", 3: "recv(src=1)", 1: "send(dst=2)"}
STUCK = DeadlockError(
    "stuck", tuple(Failure(rank, "Waiting", call) for rank, call in PEERS.items()), (2,)
)
EXCHANGES = [(0.0, 5.3, 0.4), (1.0, 6.1, 1.2), (2.0, 7.0, 2.3)]
REPLICAS = {"replica": REPLICA, "shard": {"parameters": 2**21}}
TALKS = [((0, 1), "1 add"), ((1, 3), "1 gather\n1 scatter")]
APART = {"2 ranks": {0: 2e-7, 1: 4e-7, 2: 0.0}, "4 ranks": {0: 3e-7, 1: 3e-7, 2: 0.05}}
# by rank: kind, stage, micro-batch, begin, end; two ranks, two micro-batches, a second later than
# zero
GPIPE = [
    [("F", 0, 0, 1.0, 1.1), ("F", 0, 1, 1.1, 1.2), ("B", 0, 0, 1.4, 1.6), ("B", 0, 1, 1.6, 1.8)],
    [("F", 1, 0, 1.1, 1.2), ("F", 1, 1, 1.2, 1.3), ("B", 1, 0, 1.3, 1.5), ("B", 1, 1, 1.5, 1.7)],
]
V = [
    [("F", 0, 0, 0.0, 0.1), ("F", 3, 0, 0.3, 0.4), ("I", 3, 0, 0.4, 0.5), ("W", 3, 0, 0.5, 0.6)],
    [],
]
M = (1, 2, 4, 8, 16)
LIVES = [(None, 0.0, 9.2), (0, 1.9, 5.3), (1, 1.9, 5.1), (0, 5.4, 8.9), (1, 5.4, 9.0)]
PRINTED = [(4.5, "epoch 0: loss 2.0"), (8.1, "epoch 1: loss 1.5"), (8.3, "epoch 2: loss 1.1")]
BUBBLES = {"GPipe": {m: 3 / (m + 3) for m in M}, "Interleaved": {m: 3 / (2 * m + 3) for m in M[2:]}}
ALIVE = {"GPipe": ((0, 0.01, 0.04, 0.16), (0, 1, 8, 0)), "1F1B": ((0, 0.02, 0.16), (0, 4, 0))}
LAYOUT_AXES = (Axis("tensor", ["1", "2", "4"]), Axis("pipeline", ["1", "2"]))
LAYOUTS = {
    (0, 0): Cell("too large", 7491.0, ["stages 1", "batch 4"]),
    (1, 0): Cell("fits", 6676.0, ["stages 1", "batch 1", "none"], is_best=True),
    (2, 0): Cell("fits", 3050.0),
    (0, 1): Cell("left out"),
    (1, 1): Cell("refused"),
    (2, 1): Cell("fits", 4.5, ["full"]),
}
BATCHES = np.arange(1, 9)
WIDTHS = np.geomspace(1, 100, 11)
QUICKEST = {"a": BATCHES[:, None] + 0 * WIDTHS, "b": WIDTHS / 10 + 0 * BATCHES[:, None]}
NETWORKS = {"NVLink": 4e10}
LAYERS = [("up", (8, 2), 0), ("norm", (2,), None), ("down", (2, 8), 1)]
# a rank, start and end, and what it did
PIECES = [
    (0, 1.0, 1.2, "computing"),
    (0, 1.2, 1.3, "tensor"),
    (2, 1.0, 1.1, "data"),
    (2, 1.2, 1.4, "pipeline"),
]
NONE = [None, None]
STATES = [
    ("rows", [[[0, 1], NONE], [NONE, [2, 3]]]),
    ("all", [[[0, 1], [2, 3]]] * 2),
    ("sum", [[[10, 11], [12, 13]]] * 2),
]


def played(name, n):
    """States and messages of an algorithm's schedule."""
    plan = algorithms.schedule(name, n)
    return algorithms.holdings(plan), plan.steps


def one_step():
    """A space-time diagram with every kind of mark."""
    whole = collective([0, 4, 2], 6)
    spans = {"forward": (6, 10), "backward": (10, 18), "optimizer": (18, 20)}
    events = []
    for rank in range(3):
        for kind, (start, end) in spans.items():
            events.append(Event(rank, kind, kind, start / 1e3, end / 1e3))
    flying = message(0, 1, 11, 13, 17, 4000, blocking=False)
    what = {
        "ready": float("inf"),
        "peer": 1,
        "group": (0, 1, 2),
        "tag": 0,
        "num_bytes": 4,
        "failed": True,
    }
    lost = Event(2, "send", "send", 0.020, 0.023, **what)
    events += [*whole.events, *halves([flying]), lost]
    return plotting.space_time(
        range(3), events, [flying, Message(2, 1, 0, (0, 1, 2), 4, lost, None)], [whole]
    )


MAPS = (*DIAGRAMS.EXAMPLES, *DIAGRAMS.BARRIERS)
# name: function, arguments, and texts that must be on the figure
FIGURES = {
    **{name: (DIAGRAMS.diagram, (name,), {"rank 0"}) for name in MAPS},
    "before_after": (
        plotting.before_after,
        (*HELD, "call", ["a", "b", "c"]),
        {"call", "before", "after", "c", "14", "?"},
    ),
    "time_against_size": (
        plotting.time_against_size,
        (CURVES, "t"),
        {*CURVES, "1 µs", "t", "tensor size"},
    ),
    "training_curves": (
        plotting.training_curves,
        (TRAINED, "digits"),
        {"digits", "accuracy, %", "epoch", "rank 7"},
    ),
    "spans": (
        plotting.spans,
        (SERVED, "t"),
        {"rank 0", "rank 1", "rank 2", "2", "time", "t", "0 s"},
    ),
    "spans of kinds": (plotting.spans, (STEP, "one step"), {*STEP, WAIT, MOVE, "0 s"}),
    "step_times": (
        plotting.step_times,
        (MEASURED, "one step"),
        {"buckets", "100 ms", "time of one step"},
    ),
    "time_shares": (
        plotting.time_shares,
        (SHARES, "t"),
        {*SHARES, "50%", "25%", "14%", "9%", "computing", "0 s"},
    ),
    "relative time_shares": (
        plotting.time_shares,
        (FEW, "t", True),
        {"a", "50%", "75%", "share of the time"},
    ),
    "steps": (
        plotting.steps,
        (*played("ring", 3), "t"),
        {"t", "step 0", "step 3", "end", "rank 2", "chunk"},
    ),
    "differences_by_step": (
        differences_by_step,
        (APART, {0: 2e-6, 1: 3e-6, 2: 8e-6}, "a long title " * 14),
        {"4 ranks", "2 ranks", "rounding", "step", "relative difference"},
    ),
    "memory_over_time": (
        memory_over_time,
        (
            (0.0, 0.5, 1.0),
            {"activations": (0, 2**32, 0), "parameters": [2**31] * 3, "inputs": (0, 2**28, 0)},
            {"reserved by torch": 7 * 2**30},
            "t",
        ),
        {"parameters", "activations", "inputs", "reserved by torch, 7 GiB", "memory in GiB", "t"},
    ),
    "cell_map": (
        cell_map,
        (*LAYOUT_AXES, LAYOUTS, "layouts", "tokens/s"),
        {"tensor", "pipeline", "7,491", "4.5", "batch 1, none", "left out", "–", "refused", "best"},
    ),
    "staircase": (
        DIAGRAMS.staircase,
        (),
        {"stage 0", "stage 7", "forward", "backward", "averaging with the copies", "1 s"},
    ),
    "space_time": (
        one_step,
        (),
        {
            "isend → 1",
            "Each message is 4000 B.",
            "the last rank has arrived",
            WAIT,
            "without a partner",
        },
    ),
    # --- the course's ---
    "latency_bandwidth": (
        figures.latency_bandwidth,
        (*curve(FIT.alpha), FIT, "ping-pong"),
        {"fit: α + βm\nα = 40 µs"},
    ),
    "time_against_ranks": (
        figures.time_against_ranks,
        BY_RANKS,
        {"ring", "1 MiB", "2", "4", "64", "ranks", "0 s"},
    ),
    "beside_the_model": (
        figures.beside_the_model,
        ({"2 ranks": BESIDE, "4 ranks": BESIDE},),
        {"2 ranks", "4 ranks", "my ring", "the model", "tensor size", "1 KiB"},
    ),
    "speedup": (
        figures.speedup,
        (RATES, "digits", 2),
        {"ideal", "large, 50%", "more ranks than the 2 cores", "speedup"},
    ),
    "images": (figures.images, (*SAMPLES, (), "t"), {"t", "rank 1", "f"}),
    "buckets": (
        figures.buckets,
        ([[("2.bias", 40), ("2.weight", 2**20)], [("0.bias", 64)]], "t"),
        {"t", "0.bias", "1 MiB"},
    ),
    "throughput": (
        figures.throughput,
        ([1, 4, 16, 64], {"overlapped": [9, 36, 140, 500]}, "one model", "64 ranks"),
        {"one model", "64 ranks", "overlapped: 56 times", "ideal: 64 times", "images a second"},
    ),
    "handshake": (
        figures.handshake,
        (CALLS, "two ranks"),
        {"two ranks", "store", "rank 0", "k0", "k1", "  4.00 s "},
    ),
    "graph": (
        figures.graph,
        (HELD_BY, EDGES, "who holds what", {"rref"}),
        {"who holds what", "rank 2", "alone"},
    ),
    "machines": (
        figures.machines,
        (PROCESSES, LINES, "t"),
        {"t", *PROCESSES, *LINES, "rank 2 (local 0)", "controller"},
    ),
    "first_errors": (
        figures.first_errors,
        (LATE, 1.0),
        {*LATE, "rank 1: timed out", " the timeout"},
    ),
    "restarts": (
        figures.restarts,
        (LIVES, PRINTED, "t"),
        {"t", "torchrun", "attempt 0", "attempt 1", "epochs done", "0", "1 to 2"},
    ),
    "who_waits": (figures.who_waits, (STUCK, "t"), {"t", "rank 0", "rank 3", "finished"}),
    "clocks": (
        figures.clocks,
        (EXCHANGES, 5.05),
        {"the shortest exchange", "the\ntruth", "rank 2"},
    ),
    "memory": (
        figures.memory,
        (REPLICAS, "t", "MiB", 32 * 2**20),
        {"replica", "25", "device: 32 MiB", "memory, MiB"},
    ),
    "memory_at": (
        figures.memory_at,
        (MOMENTS, "t"),
        {"forward 0", "parameters", "gathered parameters", "t"},
    ),
    "spacing": (
        figures.spacing,
        (
            {
                "float16": ([6e-8, 1.0, 65504.0], [6e-8, 1e-3, 32.0]),
                "wide": ([1e-12, 1e-3, 1e9], [1e-15, 1e-6, 1e6]),  # cut at both edges
            },
            "t",
        ),
        {"float16", "wide", "gap to the next number", "t"},
    ),
    "shards": (
        figures.shards,
        (STATES, ["gather", "add"], "t"),
        {"t", "rank 0", "rows", "all", "sum", "gather"},
    ),
    "cuts": (
        figures.cuts,
        (LAYERS, 2, {"down": "all-\nsum"}, "t"),
        {"8 x 2", "all-\nsum", "every rank", "rank 1"},
    ),
    "staleness": (
        figures.staleness,
        ({"equal": {1: [0, 1, 1], 2: [2, 1], 3: []}, "one is slow": {1: [0, 0], 2: [1], 3: [9]}},),
        {"equal", "one is slow", "rank 3", "staleness", "gradients, %"},
    ),
    "mesh": (figures.mesh, ((2, 2), TALKS, "t"), {"3", "1 gather\n1 scatter"}),
    "owners": (
        figures.owners,
        (
            {"block 0": {"w1": [[0] * 16] * 16 + [[2] * 16] * 16, "w2": [[0] * 8 + [2] * 8] * 16}},
            "t",
        ),
        {"block 0", "w1", "w2", "2"},
    ),
    "dimensions": (
        figures.dimensions,
        (PIECES, "t", SIMULATED),
        {"rank 0", "rank 2", "computing", "data", "pipeline", "tensor"},
    ),
    "pipeline": (
        figures.pipeline,
        ({"GPipe": GPIPE, "V": V}, SIMULATED),
        {"GPipe: idle 25%", f"time ({SIMULATED})"},
    ),
    "alive": (
        figures.alive,
        (ALIVE, {"GPipe": {4: 4, 8: 8}, "1F1B": {4: 4, 8: 4}}, "rank 0", SIMULATED),
        {*ALIVE, "rank 0", "the most on any rank", f"time ({SIMULATED})"},
    ),
    "bubbles": (
        figures.bubbles,
        (BUBBLES, 4, (1, 2), "there"),
        {*BUBBLES, "there; dashed: 3 / (v m + 3)"},
    ),
    "quickest": (
        figures.quickest,
        (QUICKEST, 1e9 * WIDTHS, 1024 * BATCHES, "a model", NETWORKS, 8),
        {"a", "b", *NETWORKS},
    ),
}
