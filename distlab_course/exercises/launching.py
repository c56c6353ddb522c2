"""The exercises of notebook 07: how ranks are started, get their numbers, and are started again."""

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil

from distlab.checking import formula, question
from distlab_course.practice import loopback_interface

TORCHRUN = ["-m", "torch.distributed.run"]
# stands in for the notebook's toy.py, and is quicker
TOY = """import torch, torch.distributed as dist
def train(rank):
    dist.all_reduce(total := torch.tensor(10**rank))
    print(f"rank {rank} of {dist.get_world_size()}: {total}\\n", end="", flush=True)
"""


@formula(
    "07",
    ({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"},),
    ({"HOME": "/root"},),
    ({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "GROUP_RANK": "0"},),
)
def where_am_i(environment):
    """Return (rank, world_size, local_rank), three integers, from a mapping such as `os.environ`.

    A script that `python` alone has started finds none of the variables: it is rank 0 of 1, with local rank 0.

    Hint: `RANK`, `WORLD_SIZE` and `LOCAL_RANK`; every value is a text.
    Hint: `environment.get("RANK", "0")` is "0" where the variable is missing.
    """
    return tuple(int(environment.get(name, one)) for name, one in (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0)))


@question("07", (15, 7))
def second_machine(answer):
    """Two machines with 8 GPUs run one rank for each. What are (RANK, LOCAL_RANK) of the rank on the last GPU?

    Hint: The ranks of the first machine are 0 to 7.

    Otherwise: RANK counts the 16 ranks of both machines, LOCAL_RANK the 8 ranks of one, and both begin with 0.

    Why: RANK counts through all machines, to 15, and chooses the data; LOCAL_RANK begins anew on each, and chooses the
    GPU: 7.
    """


def _parsed(line):
    """The options of a command line, as torchrun reads them; ValueError with what it says."""
    from torch.distributed.run import get_args_parser

    words = shlex.split(line)
    begin = next((i for i, word in enumerate(words) if word.endswith(("torchrun", "torch.distributed.run"))), None)
    if begin is None:
        raise ValueError(f"{words[0]} starts one process, and not torchrun")
    parser = get_args_parser()

    def refuse(message):
        raise ValueError(f"torchrun would say: {message}")

    parser.error = refuse
    return parser.parse_args(words[begin + 1 :])


@question("07")
def two_nodes(answer):
    """Start train.py on two machines, node-a and node-b, with 8 ranks on each; node-a is to be the meeting point.

    Give the command line, one text, if it is the same on both machines; else a list of two, first that of node-a.

    Hint: `--nnodes` is the number of machines, and `--nproc-per-node` the number of ranks on each of them.
    Hint: One command for both: `--rdzv-backend c10d --rdzv-endpoint HOST:PORT`. With `--master-addr`, each machine has
    to be told its number by `--node-rank`.

    Why: torchrun on each machine has to know how many machines there are, how many ranks to start, and where to meet.
    """
    try:
        first, second = map(_parsed, [answer] * 2 if isinstance(answer, str) else answer)
    except ValueError as error:
        return f"{error}."
    places = {one.rdzv_endpoint or f"{one.master_addr}:{one.master_port}" for one in (first, second)}
    static = first.rdzv_backend == "static"
    for wrong, words in (
        (first.standalone or second.standalone, "--standalone is for one machine: each would have a world of its own."),
        ({first.nnodes, second.nnodes} != {"2"}, "Each machine waits for --nnodes machines, itself included: 2."),
        ({first.nproc_per_node, second.nproc_per_node} != {"8"}, "--nproc-per-node counts ranks on one machine: 8."),
        (len(places) > 1, f"They would not meet: one goes to {' and the other to '.join(sorted(places))}."),
        (not min(places).startswith("node-a"), f"They are to meet at node-a, and this leads to {min(places)}."),
        (static and (first.node_rank, second.node_rank) != (0, 1), "Which machine is 0, which is 1? See --node-rank."),
        ({first.training_script, second.training_script} != {"train.py"}, "At the end stands the script, train.py."),
    ):
        if wrong:
            return words
    return True


@formula("07", (2, 8, 8), (1, 2, 2), (3, 1, 4))
def count_demos(machines, per_machine, spawned):
    """Return (processes that call demo, those of them that believe they are rank 0).

    On each machine torchrun starts `per_machine` copies of a script that spawns ranks by mistake, `spawned` in each.

    Hint: How many copies of the script are there?
    Hint: Each copy has its own rank 0.
    """
    return machines * per_machine * spawned, machines * per_machine


def _printed(folder, *arguments):
    """What a Python program prints in this folder. With all its descendants, it has two minutes."""
    given = {name: value for name, value in os.environ.items() if not re.match("RANK|WORLD_|LOCAL_|MASTER_", name)}
    environment = {**given, "GLOO_SOCKET_IFNAME": loopback_interface(), "PYTHON_COLORS": "0"}
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL, "text": True}
    program = subprocess.Popen([sys.executable, *arguments], cwd=folder, env=environment, **options)
    try:
        return program.communicate(timeout=120)[0]
    except subprocess.TimeoutExpired:
        return f"Error: {shlex.join(arguments)} does not end"
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            for one in [*psutil.Process(program.pid).children(recursive=True), program]:
                one.kill()


@question("07")
def repair_spawning(answer):
    """Repair `spawning.py`, so that torchrun runs it on 2 ranks, and `python` alone still does, too.

    Give the path of the repaired file. Both ways are tried for real, with the argument 10, the timeout in seconds.

    Hint: Only one program may start ranks. Under torchrun, `RANK` is in the environment of the script.
    Hint: Under torchrun: `dist.init_process_group("gloo")`, without a port or a rank of your own. Otherwise: spawn.

    Why: `RANK` in the environment says that a launcher has started this process, and that it is one rank.
    """
    if not Path(answer).is_file():
        return f"There is no file {answer}."
    for way in ([*TORCHRUN, "--standalone", "--nproc-per-node", "2"], []):
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(answer, f"{folder}/script.py")
            Path(folder, "toy.py").write_text(TOY)
            printed = _printed(folder, *way, "script.py", "10")
        trained = sorted(line for line in printed.splitlines() if line.startswith("rank ") and " of " in line)
        if trained != ["rank 0 of 2: 11", "rank 1 of 2: 11"]:
            errors = re.findall(r"\w*Error: .*", re.sub(r"localhost, \d+", "localhost, PORT", printed))
            found = [f"{len(trained)} ranks have trained where 2 should", *trained, *errors[:1]]
            return f"Under {'torchrun' if way else 'python'}: {'; '.join(found).rstrip('.')}."
    return True


def _failures(*stamps):
    """Error files by rank, as torchrun's ranks leave them."""
    return {rank: {"message": {"message": "RuntimeError", "extraInfo": {"timestamp": stamp}}} for rank, stamp in stamps}


@formula(
    "07",
    (_failures((0, "1795296044"), (3, "1795296043")),),
    (_failures((0, "1795296044"), (3, "1795296043"), (7, "999999999")),),
    (_failures((5, "17")),),
)
def culprit(files):
    """Return the rank that failed first. `files` maps a rank to what `json.loads` made of its error file.

    Hint: The time is under "message", "extraInfo", "timestamp": seconds, as a text.
    Hint: Texts are compared letter by letter: "999" comes after "1000". `min(files, key=...)` finds the smallest.
    """
    return min(files, key=lambda rank: float(files[rank]["message"]["extraInfo"]["timestamp"]))


@formula("07", (10, 86_400), (1, 100), (30, 3600))
def best_interval(c, m):
    """Return the seconds between two checkpoints with which the least time is lost.

    Saving takes `c` seconds, and a rank dies every `m` seconds on average. Saving every t seconds costs the share
    c / t, and a failure loses t / 2 seconds on average, which is the share t / (2 m).

    Hint: Where is the derivative of c / t + t / (2 m) zero?
    Hint: -c / t**2 + 1 / (2 m) = 0.
    """
    return (2 * c * m) ** 0.5
