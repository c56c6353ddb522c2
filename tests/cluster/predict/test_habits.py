"""What people write in training programs: it runs unchanged, or its line is named."""

import copy
import logging
import math
import sys

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import random_split

import distlab
from tests.cluster.predict.test_predict import FREE, NETWORK, calls, layers, reads, train
from tests.refused import raised

PARAMETERS = 3 * (64 * 64 + 64)


def converted(rank, world_size):
    train(DistributedDataParallel(layers().to("cpu").bfloat16()), 2)


def copied(rank, world_size):
    model = layers()
    average = copy.deepcopy(model)
    train(DistributedDataParallel(model), 2)
    with torch.no_grad():
        for mean, parameter in zip(average.parameters(), model.parameters(), strict=True):
            mean.lerp_(parameter, 0.1)


def initialized(rank, world_size):
    model = layers()
    nn.init.trunc_normal_(model[0].weight)
    train(DistributedDataParallel(model), 2)


def validated(rank, world_size):
    """A forward pass after the last step is no step."""
    model = DistributedDataParallel(layers())
    train(model, 2)
    with torch.no_grad():
        model(torch.ones(4, 64))


def snapshot_taken(rank, world_size):
    """An optimizer's `step` has data where all other tensors have none."""
    model = DistributedDataParallel(layers())
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        model(torch.ones(16, 64)).sum().backward()
        optimizer.step()
        copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()})


def scaled(rank, world_size):
    model = DistributedDataParallel(layers())
    scaler = torch.amp.GradScaler("cpu")
    optimizer = torch.optim.SGD(model.parameters())
    for _ in range(2):
        with torch.autocast("cpu", torch.float16):
            loss = model(torch.ones(16, 64)).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def static(rank, world_size):
    train(DistributedDataParallel(layers(), static_graph=True), 3)


def logged(rank, world_size):
    """Losses are added up and printed, and a training that works is finite."""
    model = DistributedDataParallel(layers())
    optimizer = torch.optim.SGD(model.parameters())
    total = 0.0
    for step in range(2):
        loss = model(torch.ones(16, 64)).sum()
        if not torch.isfinite(loss) or math.isnan(loss.item()):
            raise SystemExit("not finite")
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        total += loss.item()
        print(f"{step} {total / (step + 1):.3f} {norm.item()} {math.exp(total)}")


def chosen_by_indices(rank, world_size):
    """Whole numbers that need no data: a grid of ranks, a permutation, where a batch begins."""
    grid = torch.arange(world_size).view(2, -1)
    ((row, column),) = (grid == rank).nonzero().tolist()
    assert grid[row, column].item() == rank
    first, _ = random_split(torch.arange(128), [100, 28])
    assert sorted(torch.randperm(len(first)).tolist()) == list(range(100))
    seed = int(torch.empty((), dtype=torch.int64).random_().item())
    assert seed != int(torch.empty((), dtype=torch.int64).random_().item())
    words = torch.ones(1000, 64)
    model = DistributedDataParallel(layers())
    optimizer = torch.optim.SGD(model.parameters())
    for _ in range(2):
        begins = torch.randint(len(words) - 4, (4,))
        model(torch.cat([words[i : i + 4] for i in begins])).sum().backward()
        optimizer.step()


def test_a_loss_is_read_where_it_is_logged():
    """isfinite, item, the sum that is printed, and the norm: at each of them the program waits."""
    recording = distlab.predict(logged, 4, NETWORK, FREE).recordings[0]
    ends = [end for _, end in recording.steps]
    reads = [sum(wait.before <= end for wait in recording.waits) for end in ends]
    assert reads[0] > 0
    assert reads[1] > reads[0] + 1


def test_a_scaler_reads_whether_a_gradient_is_infinite():
    recording = distlab.predict(scaled, 4, NETWORK, FREE).recordings[0]
    assert len(recording.waits) == 2


def test_an_optimizer_takes_all_parameters_at_once():
    recording = distlab.predict(snapshot_taken, 4, NETWORK, FREE).recordings[0]
    names = [node.name for node in recording.nodes]
    assert names.count("_foreach_addcdiv_") == 2
    assert "addcdiv_" not in names


HABITS = [
    (logged, 4),
    (chosen_by_indices, 4),
    (converted, 2),
    (copied, 4),
    (initialized, 4),
    (validated, 4),
    (snapshot_taken, 4),
    (scaled, 4),
    (static, 4),
]


@pytest.mark.parametrize(("program", "item"), HABITS)
def test_gradients_are_added_up_once_a_step(program, item):
    """As many bytes as the parameters have."""
    assert calls(distlab.predict(program, 8, NETWORK, FREE)) == [
        ("all_reduce", 8, PARAMETERS * item)
    ]


def test_a_hook_sends_half_of_the_bytes():
    def program(rank, world_size):
        model = DistributedDataParallel(layers())
        model.register_comm_hook(None, default_hooks.bf16_compress_hook)
        train(model, 2)

    assert calls(distlab.predict(program, 8, NETWORK, FREE)) == [("all_reduce", 8, PARAMETERS * 2)]


def test_ranks_tell_each_other_which_parameters_they_used():
    """A number of four bytes for each of six parameters."""

    def program(rank, world_size):
        train(DistributedDataParallel(layers(), find_unused_parameters=True), 2)

    made = calls(distlab.predict(program, 8, NETWORK, FREE))
    assert sorted(made) == [("all_reduce", 8, 6 * 4), ("all_reduce", 8, PARAMETERS * 4)]


def test_copies_are_no_activations():
    """The layers that a transformer has copied are its parameters, and count once."""

    def program(rank, world_size):
        encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, 64, batch_first=True), 2)
        optimizer = torch.optim.SGD(encoder.parameters())
        encoder(torch.ones(2, 16, 64)).sum().backward()
        optimizer.step()

    each = 4 * (4 * 64 * 64 + 4 * 64 + 2 * (64 * 64 + 64) + 4 * 64)
    assert distlab.predict(program, 1, NETWORK, FREE).memory["parameters"] == 2 * each


def test_a_loss_is_printed_and_a_checkpoint_is_saved_without_data(tmp_path, capsys):
    def program(rank, world_size):
        model = layers()
        train(model, 1)
        print(f"loss {model(torch.ones(4, 64)).sum():.3f}")
        torch.save(model.state_dict(), tmp_path / "model.pt")
        dcp.save({"model": model.state_dict()}, checkpoint_id=tmp_path / "checkpoint")

    distlab.predict(program, 8, NETWORK, FREE)
    assert capsys.readouterr().out == "loss (no data)\n"
    assert not list(tmp_path.iterdir())


def evaluated(rank, world_size):
    """Losses in a tensor, a share of right answers, and numbers that ranks add up."""
    model = DistributedDataParallel(layers())
    train(model, 2)
    losses = torch.zeros(3)
    right = 0
    with torch.no_grad():
        for batch in range(3):
            answers = model(torch.ones(16, 64))
            losses[batch] = answers.mean().item()
            right += (answers[:, 0] > 0).sum().item()
    rows = torch.tensor(48)
    dist.all_reduce(rows)
    mean = torch.tensor([losses.mean().item()])
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    stop = torch.zeros(1)
    dist.all_reduce(stop, op=dist.ReduceOp.MAX)
    if not stop:
        print(f"{losses.mean():.2f} {right / 48:.1%} of {rows.item()} rows, {mean.item()}")


def test_ranks_add_up_what_they_know_as_if_all_had_the_same(capsys):
    distlab.predict(evaluated, 8, NETWORK, FREE)
    assert capsys.readouterr().out == "(no data) (no data) of 384 rows, (no data)\n"


def test_a_snapshot_is_loaded_without_its_data(tmp_path, capsys):
    file = tmp_path / "snapshot.pt"
    model = layers()
    torch.save({"model": model.state_dict(), "epoch": 3}, file)

    def program(rank, world_size):
        snapshot = torch.load(file, map_location="cuda:0")
        model = layers()
        model.load_state_dict(snapshot["model"])
        print(snapshot["epoch"], snapshot["model"]["0.weight"].sum().item())
        train(model, 1)

    distlab.predict(program, 8, NETWORK, FREE)
    assert capsys.readouterr().out == "3 (no data)\n"


def test_a_folder_for_checkpoints_is_not_left_empty(tmp_path):
    """Another run would look for a checkpoint in it."""

    def program(rank, world_size):
        (tmp_path / "checkpoints" / "last").mkdir(parents=True)
        (tmp_path / "logs").mkdir()
        (tmp_path / "logs" / "log.txt").write_text("begin")
        train(layers(), 1)
        torch.save({}, tmp_path / "checkpoints" / "last" / "model.pt")

    distlab.predict(program, 8, NETWORK, FREE)
    assert [path.name for path in tmp_path.iterdir()] == ["logs"]


def warns(rank, world_size):
    log = logging.getLogger("training")
    log.addHandler(logging.StreamHandler())
    for step in range(2):
        sys.stderr.write(f"\rstep {step}")
    sys.stderr.write("\n")
    log.warning("slow")
    train(layers(), 1)
    print("done")
    sys.exit()


def test_what_a_program_writes_is_in_its_own_stream(capsys):
    """Once, and of a progress bar only the last state; to end with status 0 is no failure."""
    distlab.predict(warns, 8, NETWORK, FREE)
    written = capsys.readouterr()
    assert written.out == "done\n"
    assert written.err == "step 1\nslow\n"


def ends_itself(rank, world_size):
    print("no config.yaml", file=sys.stderr)
    sys.exit(2)


def says_it_and_ends(rank, world_size):
    print("not enough GPUs")
    sys.exit("give up")


def raises(rank, world_size):
    print("about to load", file=sys.stderr)
    print("never shown")
    raise ValueError("no such layer")


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (
            ends_itself,
            "the program ended itself: exit status 2\nIts last lines:\nno config.yaml",
        ),
        (says_it_and_ends, "the program ended itself: give up\nIts last lines:\nnot enough GPUs"),
        (raises, "ValueError: no such layer\nIts last lines:\nabout to load\n"),
    ],
)
def test_the_last_lines_of_a_program_that_fails_are_in_its_error(program, words):
    error = str(raised(distlab.RankError, distlab.predict, program, 8, NETWORK, FREE))
    assert words in error
    assert "never shown" not in error


def stops_at(rank, world_size):
    stop = torch.tensor([layers()(torch.ones(1, 64)).sum().item()])
    dist.all_reduce(stop)
    while stop > 0:
        train(layers(), 1)


def received(rank, world_size):
    size = torch.zeros(1, dtype=torch.int64)
    dist.recv(size, src=1)
    train(nn.Linear(64, 64), size.item())


def masked(rank, world_size):
    values = torch.ones(8)
    train(nn.Linear(64, 64), values[values > 0].numel())


@pytest.mark.parametrize(
    ("program", "line"),
    [
        (reads, "if model(torch.ones(1, 64)).sum().item() > 0:"),
        (stops_at, "while stop > 0:"),
        (received, "train(nn.Linear(64, 64), size.item())"),
        (masked, "values[values > 0]"),
    ],
)
def test_what_depends_on_values_is_named_by_its_line(program, line):
    error = str(raised(distlab.RankError, distlab.predict, program, 8, NETWORK, FREE))
    assert "raised NotImplementedError: what comes next depends on the value of a tensor" in error
    assert line in error
