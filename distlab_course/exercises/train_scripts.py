"""How lab 08's exercise "Your own train.py" is tried: torchrun runs it twice, and notes are taken.

Both runs have two ranks and four epochs. The second one is disturbed: rank 1 is killed in the
middle of epoch 2, and torchrun starts all ranks again. launching.py calls it, in the notebook's
kernel; watched_training.py takes the notes, on the ranks.
"""

import json
import re
import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

from distlab_course import watched_training
from distlab_course.exercises.commands import TORCHRUN, output_in
from distlab_course.train_files import DIGITS

EPOCHS = 4
SAMPLES = 1437  # of the digits to train on
BATCH = 64  # of all ranks together
KILL_AFTER = 1780  # samples that rank 1 has read: of 718 in an epoch, or 704 without the last batch
LEFT = 2  # epochs to train after that
# by number of epochs after the kill
TOOK = {EPOCHS: "began with epoch 0 again", LEFT + 1: "repeated epoch 1", 1: "left epoch 2 out"}
SECONDS = 120  # for each run
LINE = re.compile(r"^epoch (\d+): loss (\d+\.\d+)", re.MULTILINE)
# without the ones with which torchrun itself ends
ERROR = re.compile(r"^(?:\[rank\d\]: )?((?!Child|Signal)\w*(?:Error|Exit|Exception): .*)", re.M)
# os.replace finds nothing to rename: the other rank has renamed the file that both have written
RENAMED_BY_ANOTHER = "-> 'checkpoint.pt'"
BOTH_WRITE = "Both ranks write the checkpoint, into one file: only rank 0 should."

_passed: set[str] = set()  # the scripts whose last check has found no fault


class Run(NamedTuple):
    """A run of the script under torchrun.

    Attributes:
        printed: by the ranks and by torchrun.
        first: by rank, notes of the first attempt; None for a rank that has left none.
        second: by rank, notes of the attempt after the kill.
        files: the names of those that the script has written.
    """

    printed: str
    first: list
    second: list
    files: set

    @property
    def losses(self):
        """What was printed, as (epoch, loss)."""
        return [(int(epoch), float(loss)) for epoch, loss in LINE.findall(self.printed)]


def checked(path):
    """What is missing in a script, as `fault_of` says it; `has_passed` knows it from now on."""
    fault = fault_of(path)
    _passed.discard(str(path))
    if not fault:
        _passed.add(str(path))
    return fault


def has_passed(path):
    """Whether the last check of this script in this kernel has passed."""
    return str(path) in _passed


def fault_of(path):
    """What is missing in a script, as a sentence; "" if both runs end with the same loss."""
    whole = run(path)
    fault = (
        fault_of_ranks(whole)
        or fault_of_samples(whole)
        or fault_of_weights(whole)
        or fault_of_lines(whole)
        or fault_of_file(whole)
    )
    if fault:
        return fault
    killed = run(path, KILL_AFTER=str(KILL_AFTER))
    fault = fault_of_resuming(killed, whole)
    if fault:
        return f"Rank 1 was killed in epoch 2, and all ranks started again. {fault}"
    return ""


def run(path, **variables):
    """Run the script in a folder of its own."""
    command = [*TORCHRUN, "--standalone", "--nproc-per-node", "2", "--max-restarts", "1"]
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(path, f"{folder}/train.py")
        Path(folder, "digits.py").write_text(DIGITS)
        command += [watched_training.__file__, "train.py", str(EPOCHS), "checkpoint.pt"]
        # each attempt has a store of its own; there may be fewer GPUs than ranks
        variables |= {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "CUDA_VISIBLE_DEVICES": ""}
        printed = output_in(folder, *command, seconds=SECONDS, **variables)
        notes = []
        for attempt in range(2):
            notes.append([_notes(folder, rank, attempt) for rank in range(2)])
        files = {file.name for file in Path(folder).iterdir()}
    return Run(printed, *notes, files)


def _notes(folder, rank, attempt):
    """The notes of a rank; None if it has left none."""
    path = Path(folder, f"notes-{rank}-{attempt}.json")
    if path.exists():
        return watched_training.Notes(**json.loads(path.read_text()))
    return None


def error_in(printed):
    """The first error that a rank has printed; "" for none."""
    found = ERROR.search(printed)
    return found[1].rstrip(".?") if found else ""


def fault_of_ranks(whole):
    """Whether two ranks have trained in one group."""
    error = error_in(whole.printed)
    if RENAMED_BY_ANOTHER in error:
        return BOTH_WRITE
    if None in whole.first:
        return f"Under torchrun: {error or 'a rank left no trace'}."
    if not all(notes.steps for notes in whole.first):
        return f"Under torchrun: {error}." if error else "No rank called optimizer.step()."
    alone = [notes.world_size == 0 for notes in whole.first]
    if any(alone):
        return "Each rank trained alone: nobody called dist.init_process_group before the loop."
    return f"Under torchrun: {error}." if error else ""


def epochs_of(notes):
    """The steps of a rank, epoch by epoch."""
    steps = len(notes.steps) // EPOCHS
    return [notes.steps[epoch * steps : (epoch + 1) * steps] for epoch in range(EPOCHS)]


def fault_of_samples(whole):
    """Whether the ranks share the samples in each epoch, in a new order."""
    counts = [len(notes.steps) for notes in whole.first]
    if counts[0] != counts[1] or counts[0] % EPOCHS:
        return f"The ranks take {counts[0]} and {counts[1]} steps in {EPOCHS} epochs."
    ranks = [epochs_of(notes) for notes in whole.first]
    first = [[number for step in epochs[0] for number in step] for epochs in ranks]
    if first[0] == first[1]:
        return "Both ranks read the same samples. Does the loader have a DistributedSampler?"
    read = set(first[0]) | set(first[1])
    twice = len(first[0]) + len(first[1]) - len(read)
    if twice > 1:
        return f"In epoch 0, {twice} samples are read twice. See DistributedSampler."
    if len(read) <= SAMPLES - BATCH:
        return f"In epoch 0 the ranks read {len(read)} of {SAMPLES} samples."
    batch = sum(len(epochs[0][0]) for epochs in ranks)
    if batch != BATCH:
        return f"A step has {batch} samples of both ranks together, where {BATCH} are asked for."
    if ranks[0][1] == ranks[0][0]:
        return "Epoch 1 has the same batches as epoch 0. Who tells the sampler the epoch?"
    return ""


def fault_of_weights(whole):
    """Whether the ranks have the same weights after each step."""
    one, other = (notes.weights for notes in whole.first)
    for step, pair in enumerate(zip(one, other, strict=True)):
        if max(pair) - min(pair) > 1e-5 * max(pair):
            return f"After step {step} the ranks' weights differ. Who averages the gradients?"
    return ""


def fault_of_lines(whole):
    """Whether rank 0 prints the mean loss of each epoch."""
    lines = whole.losses
    if not lines:
        return 'Nobody prints a line such as "epoch 0: loss 2.0031".'
    if len(lines) == 2 * EPOCHS:
        return "Both ranks print the loss of each epoch: only rank 0 should."
    if [epoch for epoch, _ in lines] != list(range(EPOCHS)):
        return f"The lines are about epochs {[epoch for epoch, _ in lines]}: 0 to 3 are asked for."
    steps = len(whole.first[0].losses) // EPOCHS
    for epoch, loss in lines:
        part = slice(epoch * steps, (epoch + 1) * steps)
        means = [sum(notes.losses[part]) / steps for notes in whole.first]
        mean = sum(means) / 2
        if abs(loss - mean) > 0.02 * mean + 1e-3:
            found = f'"epoch {epoch}: loss {loss:.4f}" is printed'
            if abs(loss - means[0]) <= 0.005 * loss + 1e-4:
                return f"{found}, the mean of rank 0's own losses. That of all ranks is {mean:.4f}."
            return f"{found}, and the mean loss of all ranks' batches is {mean:.4f}."
    return ""


def fault_of_file(whole):
    """Whether rank 0 writes the checkpoint once in each epoch."""
    by_rank = [notes.saves for notes in whole.first]
    if not any(by_rank):
        return "No rank writes a checkpoint with torch.save."
    if all(by_rank):
        return BOTH_WRITE
    if sum(by_rank) != EPOCHS:
        return f"The checkpoint is written {sum(by_rank)} times in {EPOCHS} epochs."
    if "checkpoint.pt" not in whole.files:
        return "There is no checkpoint.pt afterwards: the path is the script's second argument."
    return ""


def fault_of_resuming(killed, whole):
    """Whether the disturbed run has continued after the epoch in its checkpoint."""
    again = killed.second
    _, *after = killed.printed.split("failed (exitcode: -9)", 1)  # torchrun's words about the kill
    if None in again or not all(notes.steps for notes in again):
        return f"Then: {error_in(''.join(after)) or 'a rank left no trace'}."
    loads = [notes.loads for notes in again]
    if not any(loads):
        return "No rank read the checkpoint, so the training began again."
    if not all(loads):
        reader = 0 if loads[0] else 1
        return f"Only rank {reader} read the checkpoint: every rank has to."
    own = [notes.steps for notes in whole.first]
    per_epoch = len(own[0]) // EPOCHS
    epochs = len(again[0].steps) / per_epoch
    if epochs != LEFT:
        took = TOOK.get(epochs, f"took {len(again[0].steps)} steps")
        return f"The script {took}: the checkpoint was of epoch 1, so epoch 2 is next."
    if [notes.steps for notes in again] != [steps[-LEFT * per_epoch :] for steps in own]:
        return "Epoch 2 then had other batches than without the kill. Does set_epoch get 2?"
    return _fault_of_end(killed, whole)


def _fault_of_end(killed, whole):
    """Whether both runs end with the same loss."""
    if not killed.losses:
        return "Then nobody printed a loss."
    (_, last), (_, usual) = killed.losses[-1], whole.losses[-1]
    if abs(last - usual) <= 1e-3 * usual + 1e-4:
        return ""
    found = f"The run ended with a loss of {last:.4f} instead of {usual:.4f}"
    restored = killed.second[0].restored
    if "model" not in restored:
        return f"{found}, because the model did not get the weights of the checkpoint."
    if "optimizer" not in restored:
        return f"{found}, because the optimizer did not get its momentum back."
    return f"{found}, so something is missing in the checkpoint."
