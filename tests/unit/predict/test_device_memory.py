"""What of a device's memory counts: storages, and on a named GPU all else that is there."""

import pytest

from distlab.simulated.devices import Device
from distlab.simulated.network import Link, Network
from distlab_predict import device_memory
from distlab_predict.held import Held, Level, Made
from distlab_predict.layouts import continued_step
from distlab_predict.nodes import PRODUCT, Recording
from distlab_predict.prediction import Prediction
from distlab_predict.streams import NodeLog

GIB = 1 << 30
MIB = 1 << 20
HOSTS = Network(hosts=[8, 8], inside=Link("3 us", "450 GB/s"), between=Link("5 us", "50 GB/s"))
MADE = (Made("model.py:3", "activations", 2, 3 * GIB), Made("", "parameters", 1, 1 * GIB))
LEVELS = (Level(0, {"parameters": GIB}), Level(1, {"parameters": GIB, "activations": 3 * GIB}))


def prediction(device: Device, reserved: int = 5 * GIB, needed: int = 4 * GIB) -> Prediction:
    """A step of a product and an all-gather in a host, with 4 GiB of storages at the peak."""
    return Prediction(16, HOSTS, device, [recording(reserved, needed)])


def recording(reserved: int, needed: int) -> Recording:
    log = NodeLog()
    log.compute("mm", 10, 0, kind=PRODUCT)
    log.call("world", "all_gather", tuple(range(8)), (1,) * 8)
    held = Held(MADE, reserved, needed, LEVELS)
    peak = {"activations": 3 * GIB, "parameters": GIB}
    return Recording(0, log.nodes, [(0, 2)], peak, "", held)


def test_a_device_without_a_name_holds_the_storages_and_nothing_else():
    step = prediction(Device("1 TFLOP/s", memory="4 GiB"))
    assert step.memory == {"activations": 3 * GIB, "parameters": GIB}
    assert step.reserved == 5 * GIB
    assert step.fits


def test_a_named_device_holds_what_nvidia_smi_would_show():
    """1 GiB of what is reserved is unused; the rest of the rows are outside of the storages."""
    step = prediction(Device.named("H100", memory="80 GiB"))
    assert step.memory == {
        "activations": 3 * GIB,
        "parameters": GIB,
        "fragmentation": GIB,
        "cuBLAS's workspaces": 64 * MIB,
        "CUDA context": 700 * MIB,
        "NCCL's buffers": 576 * MIB,
    }
    assert step.reserved == 5 * GIB + 64 * MIB
    outside = sum(step.memory[kind] for kind in device_memory.OUTSIDE)
    assert sum(step.memory.values()) == step.reserved + outside


@pytest.mark.parametrize(
    ("memory", "fits", "words"),
    [
        ("7 GiB", True, "yes"),
        ("6 GiB", True, "only after giving back what is kept for later"),
        ("5 GiB", False, "no, it has 5.0 GiB"),
    ],
)
def test_a_step_fits_if_the_allocator_can_give_back_in_time(memory, fits, words):
    """6.3 GiB are there at most, and 5.3 are needed."""
    step = prediction(Device.named("H100", memory=memory))
    assert step.fits is fits
    (line,) = [line for line in repr(step).splitlines() if "fits into the device" in line]
    assert line.endswith(words)


def test_each_recorded_rank_must_fit_not_only_the_one_that_takes_most():
    """The first rank takes 8 GiB and could do with 4; the second one takes 7 and needs them."""
    device = Device.named("H100", memory="7 GiB")
    ranks = [recording(8 * GIB, 4 * GIB), recording(7 * GIB, 7 * GIB)]
    step = Prediction(16, HOSTS, device, ranks)
    assert step.use.recording is ranks[0]
    assert step.needed == 7 * GIB + (64 + 700 + 576) * MIB
    assert step.fits is False
    assert Prediction(16, HOSTS, device, ranks[:1]).fits


def test_each_recorded_rank_of_a_deeper_model_must_fit():
    """Each further layer adds 1 GiB to what the second rank needs."""
    device = Device.named("H100", memory="8 GiB")
    first = recording(9 * GIB, 4 * GIB)
    few = Prediction(16, HOSTS, device, [first, recording(5 * GIB, 5 * GIB)])
    more = Prediction(16, HOSTS, device, [first, recording(6 * GIB, 6 * GIB)])
    step = continued_step(few, more, 3)
    assert step.needed == 8 * GIB + (64 + 700 + 576) * MIB
    assert step.num_bytes == 9 * GIB + (64 + 700 + 576) * MIB
    assert few.fits
    assert not step.fits


# --- NCCL ---


def noted(*calls: tuple[str, tuple[int, ...], int | None]) -> Recording:
    """What rank 0 has called: names, members and peers."""
    log = NodeLog()
    for name, members, peer in calls:
        log.call((name, members, peer), name, members, (1,) * len(members), peer)
    return Recording(0, log.nodes, [(0, len(calls))], {}, "")


HOST = tuple(range(8))
WORLD = tuple(range(16))


@pytest.mark.parametrize(
    ("calls", "mebibytes"),
    [
        ([], 0),
        ([("all_reduce", (0,), None)], 0),
        ([("all_reduce", HOST, None), ("all_gather", HOST, None)], 576),
        ([("all_reduce", HOST, None), ("all_gather", WORLD, None)], 576 + 384),
        ([("send", WORLD, 1), ("recv", WORLD, 1)], 16 * 12),
        ([("send", WORLD, 9)], 0),
        ([("all_to_all", HOST, None)], 7 * 32 * 12),
    ],
)
def test_each_communicator_has_buffers_for_each_neighbour(calls, mebibytes):
    """A ring and a tree in a host have 576 MiB; all-to-alls in a host have 2.6 GiB."""
    assert device_memory.nccl_bytes(noted(*calls), HOSTS) == mebibytes * MIB


# --- how it is shown ---


def test_memory_by_line_says_what_made_what_is_there():
    table = prediction(Device.named("H100")).memory_by_line()
    assert [" ".join(line.split()) for line in repr(table).splitlines()] == [
        "Predicted: what memory holds at its peak, rank 0",
        "made by as storages size",
        "model.py:3 activations 2 3 GiB",
        "(no line of the program) parameters 1 1 GiB",
        "together 4 GiB",
        "The memory of each stream counts at the time when it holds most.",
    ]


def test_the_picture_of_memory_has_each_kind_and_the_limits():
    axes = prediction(Device.named("H100", memory="80 GiB")).plot_memory()
    words = axes.figure.alt
    assert "memory of rank 0 in a step" in words
    assert "activations" in words
    assert "the device's memory: 80 GiB" in words


def test_a_limit_far_above_what_is_there_is_named_and_not_drawn():
    """4 GiB are there: a memory of 80 would make them a flat line, one of 7 does not."""
    for memory, is_drawn in (("80 GiB", False), ("7 GiB", True)):
        axes = prediction(Device.named("H100", memory=memory)).plot_memory()
        words = f"the device's memory, {memory}"
        (legend,) = axes.figure.legends or [axes.get_legend()]
        labels = [text.get_text() for text in legend.get_texts()]
        assert (words if is_drawn else f"{words}, is far above") in labels
        assert (axes.get_ylim()[1] > 7) == is_drawn
