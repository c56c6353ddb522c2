"""The exercises of lab 08: how ranks are started, get their numbers, and are started again."""

import re
import shlex
import shutil
import tempfile
from pathlib import Path

from distlab.checking import formula, question
from distlab_course.exercises import train_scripts
from distlab_course.exercises.commands import TORCHRUN, output_in, torchrun_options

ONE_OF_8 = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}
ALONE = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "GROUP_RANK": "0"}
# for the notebook's toy.py, and quicker
STAND_IN_FOR_TOY = """import torch, torch.distributed as dist
def train(rank):
    dist.all_reduce(total := torch.tensor(10**rank))
    print(f"rank {rank} of {dist.get_world_size()}: {total}\\n", end="", flush=True)
"""
# for resnet_ddp.py: it trains nothing, and prints the options that it received
STAND_IN_FOR_RESNET = """import argparse, os
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--checkpoint", default="")
parser.add_argument("--resume", action="store_true")
for name in ("--batch-size", "--lr", "--data", "--workers", "--seed"):
    parser.add_argument(name)
given = parser.parse_args()
rank, size = os.environ["RANK"], os.environ["WORLD_SIZE"]
print(f"{rank} of {size}: {given.epochs}|{given.checkpoint}|{given.resume}\\n", end="", flush=True)
"""


@formula("08", (ONE_OF_8,), ({"HOME": "/root"},), (ALONE,))
def where_am_i(environment):
    """Return (rank, world_size, local_rank), three integers, from a mapping such as `os.environ`.

    Plain `python` sets none of the variables; the process is then rank 0 of 1, with local rank 0.

    Title: 2.1 Where am I?
    Hint: `RANK`, `WORLD_SIZE` and `LOCAL_RANK`; every value is a string.
    Hint: `environment.get("RANK", "0")` is "0" if the variable is missing.
    """
    rank = int(environment.get("RANK", 0))
    world_size = int(environment.get("WORLD_SIZE", 1))
    local_rank = int(environment.get("LOCAL_RANK", 0))
    return rank, world_size, local_rank


@formula("08", (None, 0), (None, 3), ("2,3", 0), ("2,3", 1), ("5,1,4", 2))
def physical_gpu(visible, local_rank):
    """Return the index that `nvidia-smi` shows for the GPU of a rank that uses the device
    `cuda:<local_rank>`.

    `visible` is the value of CUDA_VISIBLE_DEVICES, such as "2,3", or None where it is not set: all
    GPUs are visible.

    Title: 2.2 Which GPU is it?
    Hint: The process numbers the GPUs that it can see from 0, in the order of the list.
    Hint: `"2,3".split(",")` is a list of two strings.
    """
    if visible is None:
        return local_rank
    gpus = visible.split(",")
    return int(gpus[local_rank])


def _words_after_torchrun(line):
    """The words after torchrun in a command line."""
    words = shlex.split(line)
    for place, word in enumerate(words):
        if word.endswith(("torchrun", "torch.distributed.run")):
            return words[place + 1 :]
    raise ValueError(
        f"`{line.split()[0]}` alone starts one process; the command must call torchrun"
    )


@question("08")
def two_nodes(answer):
    """Start train.py on two machines, node-a and node-b, with 8 ranks on each; node-a is the
    meeting point.

    Give the command line, a string, if it is the same on both machines; otherwise a list of two,
    that of node-a first.

    Title: 3.1 The command for two machines
    Hint: `--nnodes` is the number of machines, and `--nproc-per-node` the number of ranks on each
    of them.
    Hint: One command for both: `--rdzv-backend c10d --rdzv-endpoint HOST:PORT`. With
    `--master-addr`, you number the machines yourself, with `--node-rank`.

    Why: Each torchrun needs to know how many machines there are, how many ranks to start, and where
    to meet.
    """
    lines = [answer, answer] if isinstance(answer, str) else answer
    try:
        first, second = (torchrun_options(_words_after_torchrun(line)) for line in lines)
    except ValueError as error:
        return f"{error}."
    if first.standalone or second.standalone:
        return "--standalone is for one machine: each would have a world of its own."
    if not {first.nnodes, second.nnodes} <= {"2", "2:2"}:
        return "Each machine waits for --nnodes machines, itself included: 2."
    if {first.nproc_per_node, second.nproc_per_node} != {"8"}:
        return "--nproc-per-node counts ranks on one machine: 8."
    fault = _fault_of_meeting(first, second)
    if fault:
        return fault
    if {first.training_script, second.training_script} != {"train.py"}:
        return "The script, train.py, comes at the end."
    return True


def _fault_of_meeting(first, second):
    """Why the torchruns of two machines would not meet at node-a; "" if they would."""
    static = first.rdzv_backend == "static"
    places = sorted([_meeting_place(first, static), _meeting_place(second, static)])
    if places[0] != places[1]:
        return f"They would not meet: one goes to {places[0]}, the other to {places[1]}."
    if not places[0].startswith("node-a"):
        return f"They must meet at node-a, but this leads to {places[0]}."
    if static and (first.node_rank, second.node_rank) != (0, 1):
        return "Which machine is 0, which is 1? See --node-rank."
    return ""


def _meeting_place(options, static):
    """Where a torchrun with these options meets the others; with `static`, at a master address."""
    if options.rdzv_endpoint:
        return options.rdzv_endpoint
    if static:
        return f"{options.master_addr}:{options.master_port}"
    return "localhost"


@formula("08", (2, 8, 8), (1, 2, 2), (3, 1, 4))
def count_demos(machines, per_machine, spawned):
    """Return (processes that call demo, those of them that believe they are rank 0).

    On each machine torchrun starts `per_machine` copies of a script that spawns ranks by mistake,
    `spawned` in each.

    Title: 4.1 How many call demo?
    Hint: How many copies of the script are there?
    Hint: Each copy has its own rank 0.
    """
    copies = machines * per_machine
    return copies * spawned, copies


@question("08")
def repair_spawning(answer):
    """Repair `spawning.py`, so that torchrun can run it on 2 ranks and plain `python` still starts
    2 ranks.

    Give the path of the repaired file. Both ways are really tried, with the argument 10, the
    timeout in seconds.

    Title: 4.2 Repair spawning.py
    Hint: Only one program may start ranks. Under torchrun, `RANK` is in the environment of the
    script.
    Hint: Under torchrun: `dist.init_process_group("gloo")`, without a port or a rank of your own.
    Otherwise: spawn.

    Why: `RANK` in the environment means that a launcher started this process, as one rank.
    """
    if not Path(answer).is_file():
        return f"There is no file {answer}."
    fault = _fault_of_training(answer, [*TORCHRUN, "--standalone", "--nproc-per-node", "2"])
    if fault:
        return f"Under torchrun: {fault}."
    fault = _fault_of_training(answer, [])
    if fault:
        return f"Under python: {fault}."
    return True


def _fault_of_training(path, launcher):
    """What a script prints that does not train 2 ranks together; "" if it does."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(path, f"{folder}/script.py")
        Path(folder, "toy.py").write_text(STAND_IN_FOR_TOY)
        printed = output_in(folder, *launcher, "script.py", "10")
    lines = printed.splitlines()
    trained = sorted(line for line in lines if line.startswith("rank ") and " of " in line)
    if trained == ["rank 0 of 2: 11", "rank 1 of 2: 11"]:
        return ""
    printed = re.sub(r"localhost, \d+", "localhost, PORT", printed)
    errors = re.findall(r"\w*Error: .*", printed)
    found = [f"{len(trained)} ranks trained where 2 should have", *trained, *errors[:1]]
    return "; ".join(found).rstrip(".")


@question("08")
def train_script(answer):
    """Write `train.py`: on all ranks of torchrun it does what `alone.py` does in one process, and
    it continues from its checkpoint after a kill.

    Give the path of the file. It is run twice by torchrun on 2 ranks, with the arguments 4, the
    number of epochs, and checkpoint.pt. The second time rank 1 is killed in the middle of epoch 2,
    and torchrun starts both ranks again.

    Title: 5.1 Your own train.py
    Hint: Around the training: `dist.init_process_group("gloo")` and `dist.destroy_process_group()`.
    Inside, from lab 07: a `DistributedSampler`, DDP, and `sampler.set_epoch(epoch)`.
    Hint: For the printed loss, each rank has the mean of its own batches: divide it by the number
    of ranks, and let `dist.all_reduce` add up.
    Hint: `if dist.get_rank() == 0:` stands before what only rank 0 does, which is to save and to
    print. Save `model`, which DDP has wrapped, and not `ddp`, whose names begin with `module.`.

    Why: Both runs end with the same loss, because weights and momentum are in the checkpoint and
    the sampler computes each epoch's order from its number.
    """
    if not Path(answer).is_file():
        return f"There is no file {answer}."
    return train_scripts.checked(answer) or True


def run_torchrun(line, script):
    """Run a torchrun command line on this script.

    Returns what the terminal shows, and the texts of the log files by path.
    """
    words = _words_after_torchrun(line)
    name = torchrun_options(words).training_script
    files = {}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, name).write_text(script)
        shown = output_in(folder, *TORCHRUN, *words)
        for path in Path(folder).rglob("*.log"):
            files[path.relative_to(folder)] = path.read_text()
    return shown, files


@question("08")
def resume_command(answer):
    """`resnet_ddp.py` was stopped after 2 epochs, and its checkpoint is `run.pt`: continue until 5
    epochs are done.

    Give the command line, for 2 ranks on this machine. It is run for real, in a directory where a
    stand-in for the script prints the options that it received.

    Title: 7.1 Continue tomorrow
    Hint: What follows the script's name is for the script: `--epochs`, `--checkpoint` and
    `--resume`.
    Hint: `--epochs` counts all epochs, including those before the stop.

    Why: torchrun takes the options before the script, and the script those after it.
    """
    try:
        shown, _ = run_torchrun(answer, STAND_IN_FOR_RESNET)
    except ValueError as error:
        return f"{error}."
    ranks = re.findall(r"^(\d+) of 2: (.*)", shown, re.MULTILINE)
    if len(ranks) != 2:
        errors = re.findall(r".*[Ee]rror: .*", shown)
        fault = f"{len(ranks)} of 2 ranks started"
        if errors:
            fault += f": {errors[0].strip()}"
        return f"{fault}."
    _, options = ranks[0]
    epochs, path, resumed = options.split("|")
    if path != "run.pt":
        return f"The checkpoint is run.pt, but the script was given {path or 'none'}."
    if resumed != "True":
        return "The script was not told to resume: it begins again, and overwrites the checkpoint."
    if epochs != "5":
        return f"The script would stop when {epochs} epochs are done, the first 2 included."
    return True
