"""What the portability report says of calls that ranks have seen, and how it folds them."""

import random
from itertools import permutations

import pytest

from distlab.diagnosis import nccl_orders, portability
from distlab.diagnosis.nccl_orders import OnRank
from distlab.wire.portability import Seen, SeenCall, SeenCollective, SeenMessage
from distlab.wire.source import Line
from tests.tool import ROOT

WORLD = ("0", "g", (0, 1, 2, 3))
PAIR = ("1", "g", (0, 1))
ROW, COLUMN, DIAGONAL = ("2", "g", (0, 1)), ("3", "g", (1, 2)), ("4", "g", (0, 2))


def line(number, file="train.py"):
    return Line(number, f"line {number} of {file}", "step", file)


def call(op="all_reduce", number=3, file="train.py", **given):
    method = op.replace("_", "")
    given = {"group": WORLD, "devices": ("cpu",), "dtypes": ("float32",), **given}
    return SeenCall(**{"op": op, "method": method, "line": line(number), "file": file, **given})


def of_calls(*calls, ranks=4, **seen):
    """The report where all ranks have made these calls."""
    counted = {}
    for one in calls:
        counted[one] = counted.get(one, 0) + 1
    return portability.portability({rank: Seen(calls=counted, **seen) for rank in range(ranks)})


ANY = call("recv", method="recv_anysource", number=7)


def test_a_right_program_has_one_line():
    assert of_calls().words() == "Nothing that NCCL lacks was seen: Python made no call of a group."
    assert (
        of_calls(call(), ranks=1).words() == "Nothing that NCCL lacks was seen: 1 call of 1 kind."
    )
    many = of_calls(call(), call("barrier"), call("broadcast"))
    assert many.words() == "Nothing that NCCL lacks was seen: 12 calls of 3 kinds."


def test_what_is_certain_comes_first():
    report = of_calls(call("barrier", is_first=True), ANY, ANY)
    assert report.words() == (
        "Does not work on NCCL:\n"
        "- recv from any source. NCCL must know the sender, so give recv its src.\n"
        "  ranks 0-3   train.py:7 in step   line 7 of train.py   2 times\n"
        f"  {portability.TORCH_SOURCE}/ProcessGroupNCCL.hpp\n"
        "May not work on NCCL:\n"
        "- barrier as the first call of its group, without a device. NCCL then guesses which GPU "
        "to use, and may hang if the guess is wrong. Call barrier(device_ids=[local_rank]), or "
        "give init_process_group a device_id.\n"
        "  ranks 0-3   train.py:3 in step   line 3 of train.py\n"
        f"  {portability.TORCH_DOCS}#torch.distributed.barrier"
    )


def test_ranks_and_lines_are_folded():
    """Ranks that called a line as often have one row; many lines are counted."""
    seen = {rank: Seen(calls={ANY: 2}) for rank in range(3)}
    seen[3] = Seen(calls={ANY: 5, call(method="recv_anysource", number=7, file="other.py"): 1})
    (finding,) = portability.portability(seen).findings
    rows = [(place.ranks, place.count) for place in finding.places]
    assert rows == [((0, 1, 2), 2), ((3,), 5), ((3,), 1)]
    lines = [call(method="recv_anysource", number=number) for number in range(10)]
    assert "\n  and 4 more lines\n" in of_calls(*lines).words()


def test_a_library_without_a_line_of_the_program_is_named_by_its_function():
    report = of_calls(call("recv", method="recv_anysource", line=None), ranks=1)
    assert "\n  rank 0   recv\n" in report.words()


@pytest.mark.parametrize(
    ("given", "what", "is_certain"),
    [
        ({"method": "monitored_barrier"}, "monitored_barrier", True),
        ({"method": "allgather_coalesced"}, "all_gather_coalesced", True),
        ({"reduce_op": "BXOR"}, "ReduceOp.BAND, BOR or BXOR", True),
        ({"dtypes": ("float32", "int16")}, "a tensor of type int16", True),
        ({"is_sparse": True}, "a sparse tensor", True),
        ({"is_left": True}, "a call whose Work nobody waited for", False),
    ],
)
def test_one_call(given, what, is_certain):
    (finding,) = of_calls(call(**given)).findings
    assert (finding.what, finding.is_certain) == (what, is_certain)


@pytest.mark.parametrize(
    "given",
    [
        {"reduce_op": "AVG"},
        {"dtypes": ("bool", "bfloat16", "float8_e4m3fn")},
        {"op": "barrier", "is_first": True, "names_device": True},
        {"op": "barrier"},
        {"op": "barrier", "is_first": True, "is_direct": False},
        {"is_left": True, "is_direct": False},
        {"op": "all_gather_object"},
        {"op": "isend", "thread": 1},
    ],
)
def test_what_nccl_does_as_well(given):
    assert of_calls(call(**given)).findings == ()


def test_objects_are_counted_by_what_the_program_called():
    """One all_gather_object makes two calls."""
    assert of_calls(*[call("all_gather_object")] * 2).findings == ()
    (finding,) = of_calls(*[call("all_gather_object")] * 6).findings
    assert [place.count for place in finding.places] == [3]


def test_tensors_on_the_cpu_are_certain_only_where_there_are_gpus():
    """Elsewhere the program may look whether there are some."""
    on_world = of_calls(call(), nccl_groups=(WORLD,), has_gpu=True)
    assert [one.is_certain for one in on_world.findings] == [True]
    without = of_calls(call(), nccl_groups=(WORLD,))
    assert [one.is_certain for one in without.findings] == [False]
    assert "There is no GPU here" in without.words()
    assert of_calls(call(), nccl_groups=(PAIR,), has_gpu=True).findings == ()
    on_gpu = call(devices=("cuda:0",))
    assert of_calls(on_gpu, ranks=1, nccl_groups=(WORLD,), has_gpu=True).findings == ()


ON_GPU = call(devices=("cuda:0",))


@pytest.mark.parametrize(
    ("places", "is_shared"),
    [
        ([("here", "GPU-1"), ("here", "GPU-1")], True),
        ([("here", "GPU-1"), ("here", "GPU-2")], False),  # by CUDA_VISIBLE_DEVICES
        ([("here", "cuda:0 of "), ("there", "cuda:0 of ")], False),
    ],
)
def test_ranks_on_one_gpu(places, is_shared):
    seen = {}
    for rank, (host, gpu) in enumerate(places):
        seen[rank] = Seen(calls={ON_GPU: 1}, host=host, gpus={"cuda:0": gpu})
    findings = portability.portability(seen).findings
    expected = [("several ranks of a group on one GPU", True)] if is_shared else []
    assert [(one.what, one.is_certain) for one in findings] == expected


def test_two_threads_count_in_one_group_only():
    assert of_calls(call(), call(thread=1, group=PAIR)).findings == ()
    (finding,) = of_calls(call(), call(thread=1, number=9)).findings
    assert [place.line.number for place in finding.places] == [3, 9]


def test_a_first_batch_needs_every_rank():
    batch = call("batch_isend_irecv", is_first=True, method="send")
    assert of_calls(batch).findings == ()
    (finding,) = of_calls(batch, ranks=2).findings
    assert finding.places[0].ranks == (0, 1)


# --- orders ---


def collectives(*groups):
    numbers = {}
    found = []
    for place, group in enumerate(groups):
        numbers[group] = numbers.get(group, 0) + 1
        found.append(SeenCollective(group, numbers[group], line(place)))
    return Seen(collectives=found)


def test_groups_in_the_same_order_are_no_circle():
    """Also if each rank is in others of them, and where one has made fewer calls."""
    seen = {
        0: collectives(ROW, DIAGONAL, ROW),
        1: collectives(ROW, COLUMN, ROW),
        2: collectives(COLUMN, DIAGONAL),
    }
    assert nccl_orders.groups_in_a_circle(seen) == []
    assert nccl_orders.groups_in_a_circle({0: collectives(WORLD, PAIR), 1: Seen()}) == []


def test_two_groups_in_two_orders():
    seen = {0: collectives(WORLD, PAIR, WORLD), 1: collectives(WORLD, WORLD, PAIR)}
    found = nccl_orders.groups_in_a_circle(seen)
    assert sorted(found, key=lambda place: (place.rank, place.line.number)) == [
        OnRank(0, line(1)),
        OnRank(0, line(2)),
        OnRank(1, line(1)),
        OnRank(1, line(2)),
    ]


def test_three_groups_in_a_circle():
    seen = {
        0: collectives(ROW, DIAGONAL),
        1: collectives(COLUMN, ROW),
        2: collectives(DIAGONAL, COLUMN),
    }
    assert {rank for rank, _ in nccl_orders.groups_in_a_circle(seen)} == {0, 1, 2}


def has_one_order(seen):
    """Whether some order of all collectives is that of every rank, tried one after another."""
    begun = [[(one.group, one.number) for one in of_rank.collectives] for of_rank in seen.values()]
    for order in permutations({node for nodes in begun for node in nodes}):
        if all(nodes == sorted(nodes, key=order.index) for nodes in begun):
            return True
    return False


def test_random_orders_are_judged_as_by_trying_all():
    chance = random.Random(0)
    verdicts = []
    for _ in range(300):
        members = [tuple(sorted(chance.sample(range(3), 2))) for _ in range(3)]
        groups = [(str(number), "g", ranks) for number, ranks in enumerate(members)]
        calls = [chance.choice(groups) for _ in range(4)]
        seen = {}
        for rank in range(3):
            own = [group for group in calls if rank in group[2]]
            seen[rank] = collectives(*chance.sample(own, len(own)))
        verdicts.append(has_one_order(seen))
        assert (nccl_orders.groups_in_a_circle(seen) == []) == verdicts[-1]
    assert 100 < sum(verdicts) < 280


def test_a_group_of_one_rank_has_any_order():
    alone = ("5", "g", (0,))
    seen = {0: collectives(alone, WORLD, alone), 1: collectives(WORLD)}
    assert nccl_orders.groups_in_a_circle(seen) == []


def messages(text, peer):
    """Messages with a peer: "S7 R" sends with tag 7, and receives; "1S 1R" are of batch 1."""
    found = []
    for place, word in enumerate(text.split()):
        batch, _, rest = word.rpartition("S" if "S" in word else "R")
        tag = int(rest or 0)
        found.append(SeenMessage("S" in word, PAIR, peer, tag, int(batch or 0), line(place)))
    return Seen(messages=found)


def pair(first, second):
    return {0: messages(first, 1), 1: messages(second, 0)}


@pytest.mark.parametrize(
    ("first", "second", "blocks"),
    [
        ("S R", "R S", False),
        ("S R", "S R", True),
        ("R S", "R S", True),
        ("1S 1R", "1R 1S", False),
        ("1S 1R", "S R", False),
        ("1S 1R 2S 2R", "1S 1R 2R 2S", False),
        ("S S R R", "R R S S", False),
        ("S R S R", "R S S R", True),
        ("S R", "S", False),  # the other rank has failed: nothing is known
    ],
)
def test_messages_of_two_ranks(first, second, blocks):
    assert bool(nccl_orders.messages_that_block_each_other(pair(first, second))) == blocks


@pytest.mark.parametrize(
    ("first", "second", "swapped"),
    [
        ("S7 S9", "R7 R9", False),
        ("S7 S9", "R9 R7", True),
        ("S7 S9", "R9", False),
        ("S7 S7", "R7 R7", False),
    ],
)
def test_tags(first, second, swapped):
    assert bool(nccl_orders.tags_in_other_order(pair(first, second))) == swapped


def test_nothing_is_said_of_orders_if_a_rank_receives_from_anybody_or_if_too_much_was_called():
    seen = pair("S7 S9", "R9 R7")
    assert len(portability.portability(seen).findings) == 1
    seen[1].calls = {call("recv", method="recv_anysource", group=PAIR): 1}
    whats = [one.what for one in portability.portability(seen).findings]
    assert whats == ["recv from any source"]
    seen = pair("S7 S9", "R9 R7")
    seen[0].is_whole = False
    assert portability.portability(seen).findings == ()


def test_every_finding_names_its_source():
    """docs/portability.md has it, too."""
    seen = pair("S7 S9 S R", "R9 R7 S R")
    seen[0].calls = {ANY: 1, call("barrier", is_first=True): 1, call(is_left=True): 1}
    page = (ROOT / "docs/portability.md").read_text()
    report = portability.portability(seen)
    assert len(report.findings) == 5
    for finding in report.findings:
        assert f"({finding.source})" in page
