"""What `distlab explain` says of dumps that are made by hand."""

import json
import pickle
import re
import subprocess
import sys

import pytest

from distlab.scripts.explaining.command import explain
from distlab.scripts.explaining.reading import dumps_in
from tests.tool import ROOT
from tests.unit.scripts.explaining.dumps import Recorder, world, write_all
from tests.unit.scripts.explaining.large_job import write_job


@pytest.fixture(autouse=True)
def whole_sentences(monkeypatch):
    """Sentences are not broken into lines."""
    monkeypatch.setattr("distlab.words.COLUMNS", 10_000)


@pytest.fixture
def told(tmp_path, capsys):
    """A function that writes recorders' dumps, and returns the exit status and the report."""

    def tell(recorders, *options):
        status = explain([write_all(tmp_path, recorders), *options])
        return status, capsys.readouterr().out

    return tell


def test_a_rank_that_does_not_come_is_named_with_the_calls_that_lie_behind(told, monkeypatch):
    """Asynchronous calls: the first that is open counts; docs/explain.md shows what is said."""
    monkeypatch.setattr("distlab.words.COLUMNS", 80)
    ranks = world(4)
    for one in ranks:
        for _ in range(50):
            one.call("all_reduce", 12)
        if one.rank == 2:
            continue
        one.call("all_reduce", 14, state="started")
        for _ in range(9):
            one.call("all_gather_into_tensor", 20, state="scheduled")
    status, words = told(ranks)
    assert status == 0
    page = (ROOT / "docs/explain.md").read_text()
    (expected,) = re.findall(r"\$ distlab explain /shared/dumps\n(.*?)```", page, re.DOTALL)
    assert words == expected


def test_another_call_under_the_same_number_is_a_mismatch(told):
    """Both lines are in the table."""
    ranks = world(2)
    ranks[0].call("all_reduce", 3, state="started").call("barrier", 4, state="scheduled")
    ranks[1].call("barrier", 7, state="started")
    status, words = told(ranks)
    assert status == 0
    assert (
        "The ranks do not call the same collective: rank 0 calls all_reduce, rank 1 calls" in words
    )
    assert "train.py:3" in words
    assert "train.py:7" in words


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        ({"sizes": ((5,),)}, "rank 2 has float32[5], ranks 0-1 have float32[4]."),
        ({"dtype": "BFloat16"}, "rank 2 has bfloat16[4], ranks 0-1 have float32[4]."),
    ],
)
def test_sizes_and_types_that_differ_are_named(told, other, sentence):
    """A clash of the proof."""
    ranks = world(3)
    for one in ranks:
        one.call("all_reduce", 3, state="started", **(other if one.rank == 2 else {}))
    status, words = told(ranks)
    assert status == 0
    assert f"The ranks' all_reduce calls do not match: {sentence}" in words


def test_a_mismatch_that_has_completed_comes_first(told):
    """NCCL compares nothing: the ranks are out of step from there on."""
    ranks = world(2)
    ranks[0].call("all_reduce", 3).call("barrier", 4).call("all_reduce", 5, state="started")
    ranks[1].call("barrier", 8).call("all_reduce", 9)
    status, words = told(ranks)
    assert status == 0
    assert words.index("call number 1 of the default group: from there on") < words.index("wait")
    assert "rank 1   barrier(), train.py:8" in words


def test_a_mismatch_of_long_ago_has_its_lines(told):
    """The calls are not kept, but two dumps are read again."""
    ranks = world(4)
    for one in ranks:
        one.call("barrier", 2) if one.rank == 3 else one.call("all_reduce", 3)
        for _ in range(50):
            one.call("all_reduce", 4)
    ranks[0].call("all_reduce", 5, state="started")
    status, words = told(ranks)
    assert status == 0
    assert (
        "  ranks 0-2   all_reduce(), train.py:3 on rank 0\n  rank 3   barrier(), train.py:2"
        in words
    )


def test_a_rank_that_has_gone_on_from_a_call_that_does_not_match(told):
    """Its line is not in the table, where it waits in a later call."""
    ranks = world(2)
    ranks[0].call("all_reduce", 3, state="started")
    ranks[1].call("barrier", 8).call("all_reduce", 9, state="started")
    status, words = told(ranks)
    assert status == 0
    assert "  rank 0   all_reduce(), train.py:3\n  rank 1   barrier(), train.py:8" in words


def test_a_missing_dump_is_missed(told):
    """By the ranks that the groups list."""
    ranks = world(4)
    for one in ranks:
        one.call("all_reduce", 3, state="started")
    status, words = told(ranks[:3])
    assert status == 0
    assert "Ranks 0-2 wait in all_reduce for rank 3, of which nothing is known." in words
    assert "There is no dump of rank 3: it died, or did not write one." in words


def test_messages_find_each_other_by_their_numbers(told):
    """Rank 0 sends two, rank 1 waits for a third."""
    ranks = world(2)
    ranks[0].message("send", 3, 1).message("isend", 4, 1).call("barrier", 5, state="started")
    ranks[1].message("recv", 3, 0).message("irecv", 4, 0).message("recv", 9, 0, state="started")
    status, words = told(ranks)
    assert status == 0
    assert "2 of 2 ranks wait for each other: rank 0 in barrier for rank 1, rank 1 in recv" in words


def test_a_batch_has_one_state_which_comes_last(told):
    """The messages in a batch stay "scheduled" in the recorder, when they are long over."""
    ranks = world(3)
    for one in ranks:
        near = [rank for rank in (one.rank - 1, one.rank + 1) if 0 <= rank < 3]
        for _ in range(3):
            batch = [(way, rank) for rank in near for way in ("isend", "irecv")]
            one.batch(6, batch)
    ranks[0].batch(6, [("irecv", 1)], state="started")
    status, words = told(ranks)
    assert status == 0
    assert (
        "Rank 0 waits for a message from rank 1, which is not in a call and has not sent" in words
    )
    assert "batch_isend_irecv(src=1)" in words


def pipeline(size, steps, bad=None, **options):
    """The recorders of stages that pass activations on, and of the last messages of each."""
    ranks = world(size, **options)
    for one in ranks:
        for step in range(steps):
            done = "completed" if step < steps - 1 else "scheduled"
            if one.rank and (one.rank, step) != bad:
                one.batch(6, [("irecv", one.rank - 1)], state=done)
            if one.rank < size - 1 and (one.rank, step) != bad:
                one.batch(8, [("isend", one.rank + 1)], state=done)
    return ranks


@pytest.mark.parametrize("buffer", [2000, 10])
@pytest.mark.parametrize("batches_count", [False, True])
def test_a_stage_that_leaves_out_a_micro_batch(told, buffer, batches_count):
    """Also where the recorder has forgotten older messages, and where they take numbers."""
    ranks = pipeline(3, 20, bad=(2, 19), buffer=buffer, batches_count=batches_count)
    for entry in ranks[0].entries + ranks[1].entries[:-2]:
        entry["state"] = "completed"
    status, words = told(ranks)
    assert status == 0
    assert "Rank 1 sends a message to rank 2, which is not in a call and has not" in words
    assert "train.py:8" in words
    assert ("has forgotten older messages" in words) == (buffer == 10)


@pytest.mark.parametrize("batches_count", [False, True])
def test_batches_of_some_ranks_do_not_shift_the_collectives_of_all(told, batches_count):
    """Ranks 0 and 1 exchange messages, rank 2 does not; then all call barrier, and rank 0 more."""
    ranks = world(3, batches_count=batches_count)
    for one in ranks:
        one.call("all_reduce", 3)
        if one.rank < 2:
            one.batch(5, [("isend", 1 - one.rank), ("irecv", 1 - one.rank)])
        one.call("barrier", 6)
    status, words = told(ranks)
    assert status == 1
    assert "Nothing waits" in words
    ranks[0].call("all_reduce", 7, state="started")
    status, words = told(ranks)
    assert status == 0
    assert "It is call number 3 of the default group; ranks 1-2 have made 2." in words


def test_a_group_that_was_made_again_begins_anew(told):
    """After destroy_process_group and a new init_process_group, numbers begin with 1 again."""
    ranks = world(2)
    for one in ranks:
        for _ in range(5):
            one.call("all_reduce", 3)
        one.restart()
        one.call("barrier", 4, state="started" if one.rank else "completed")
    ranks[1].entries[-1]["state"] = "completed"
    ranks[0].call("all_reduce", 5, state="started")
    status, words = told(ranks)
    assert status == 0
    assert "It is call number 2 of the default group; rank 1 has made 1." in words


def test_groups_that_share_a_name_are_told_apart(told):
    """split_group gives the parts of a group one name."""
    halves = {0: [0, 1], 1: [0, 1], 2: [2, 3], 3: [2, 3]}
    ranks = [Recorder(rank, {"0": [0, 1, 2, 3], "5": half}) for rank, half in halves.items()]
    for one in ranks:
        one.call("all_reduce", 3, "5", state="completed" if one.rank < 2 else "started")
    ranks[3].entries.clear()
    status, words = told(ranks)
    assert status == 0
    assert "Rank 2 waits in all_reduce for rank 3, which is not in a call" in words
    assert "all_reduce(group of ranks 2-3)" in words


def test_a_dump_of_an_old_torch(told):
    """It has one number for messages and collectives, and neither types nor is_p2p."""
    ranks = world(2)
    for one in ranks:
        one.call("all_reduce", 3)
        one.message("send" if one.rank == 0 else "recv", 4, 1 - one.rank)
    ranks[0].call("barrier", 5, state="started")
    for one in ranks:
        for number, entry in enumerate(one.entries):
            entry["seq_id"] = number + 1
            entry["process_group"] = entry["process_group"][0]
            for name in ("collective_seq_id", "p2p_seq_id", "is_p2p", "input_dtypes"):
                del entry[name]
    status, words = told(ranks)
    assert status == 0
    assert "Rank 0 waits in barrier for rank 1, which is not in a call and has not called" in words
    assert "It is call number 2 of the default group; rank 1 has made 1." in words


def test_the_group_that_lacks_somebody_is_found_among_several(told):
    """Rank 0 waits in a group whose members have all called; and in one that lacks rank 3."""
    groups = {"1": [0, 1], "2": [2, 3], "3": [0, 2], "4": [1, 3]}
    ranks = world(4, groups)
    ranks[0].call("all_reduce", 3, "1", state="started").call(
        "all_reduce", 4, "3", state="scheduled"
    )
    ranks[1].call("all_reduce", 3, "1", state="started").call(
        "all_reduce", 4, "4", state="scheduled"
    )
    ranks[2].call("all_reduce", 3, "2").call("all_reduce", 4, "3", state="started")
    ranks[3].call("all_reduce", 3, "2").call("barrier", 8, state="started")
    status, words = told(ranks)
    assert status == 0
    assert (
        "Rank 1 waits in all_reduce for rank 3. Rank 3 waits in barrier for ranks 0-2. Ranks 0 and "
        "2 are in calls that every rank they need has made: they were running."
    ) in words
    assert "all_reduce(group of ranks 1 and 3)" in words
    assert "Rank 1: call number 1 of the group of ranks 1 and 3." in words


def test_groups_whose_members_gloo_does_not_list(tmp_path, capsys):
    """Rows and columns in another order on every second rank: who is in a group is not listed."""
    groups = {"1": [0, 1], "2": [2, 3], "3": [0, 2], "4": [1, 3]}
    orders = {0: "13", 1: "41", 2: "32", 3: "24"}
    for one in world(4, groups, backend="gloo"):
        for name in sorted(orders[one.rank]):
            one.call("all_reduce", 7, name)
        one.call("all_reduce", 7, orders[one.rank][0], state="scheduled")
        content = one.content()
        for about in content["pg_config"].values():
            about["ranks"] = "[]"
        (tmp_path / f"dump{one.rank}.pickle").write_bytes(pickle.dumps(content))
    status = explain([str(tmp_path)])
    words = capsys.readouterr().out
    assert status == 0
    assert "4 of 4 ranks wait for each other: they call all_reduce in different groups." in words
    assert "Rank 3: call number 2 of the group of ranks 2-3; rank 2 has made 1." in words


def test_fsdp_in_two_groups_of_eight(told):
    """Sharding in eights, all-reduce in pairs: rank 5 has skipped a gather."""
    shards = {f"{1 + i}": list(range(8 * i, 8 * i + 8)) for i in range(2)}
    pairs = {f"{3 + i}": [i, i + 8] for i in range(8)}
    ranks = world(16, {**shards, **pairs})
    for one in ranks:
        shard = str(1 + one.rank // 8)
        pair = str(3 + one.rank % 8)
        for _ in range(10):
            one.call("all_gather_into_tensor", 30, shard)
            one.call("reduce_scatter_tensor", 31, shard)
            one.call("all_reduce", 32, pair)
        late = one.rank == 5
        state = "started" if one.rank < 8 else "completed"
        if not late:
            one.call("all_gather_into_tensor", 30, shard, state=state)
        one.call(
            "reduce_scatter_tensor", 31, shard, state="started" if one.rank < 8 else "completed"
        )
        one.call("all_reduce", 32, pair, state="scheduled")
    status, words = told(ranks)
    assert status == 0
    assert "rank 5 calls reduce_scatter_tensor" in words
    assert "ranks 0-4, 6 and 7 call all_gather_into_tensor" in words
    assert "call number 21 of the group of ranks 0-7" in words


def test_a_device_that_has_not_begun_what_others_have(told):
    """Where the recorder notes it, that is all that a dump says of devices."""
    ranks = world(3)
    for one in ranks:
        one.call("all_reduce", 3, state="scheduled" if one.rank == 1 else "started")
    status, words = told(ranks)
    assert status == 1
    assert "The calls do not explain it: each that has not completed was called alike by" in words
    assert "Ranks 0 and 2 have started it, but rank 1 has not, because something" in words


def test_dumps_of_open_calls_only(told):
    """As the debug server writes them for NCCL: without entries where all have completed."""
    ranks = world(3)
    for one in ranks:
        for _ in range(5):
            one.call("all_reduce", 3)
        if one.rank:
            one.call("barrier", 4, state="scheduled")
        one.entries = one.entries[5:]
    status, words = told(ranks)
    assert status == 0
    assert "Ranks 1-2 wait in barrier for rank 0, which is not in a call and has" in words
    assert "It is call number 6 of the default group.\n" in words


def test_calls_that_fell_out_of_the_buffer_are_no_missing_ones(told):
    """Each rank remembers ten calls."""
    ranks = world(2, buffer=10)
    for one in ranks:
        for _ in range(100 if one.rank else 90):
            one.call("all_reduce", 3)
    ranks[0].call("all_reduce", 4, state="started")
    status, words = told(ranks)
    assert status == 1
    assert "The calls do not explain it" in words


def test_a_recorder_that_was_off_is_told_how_to_turn_it_on(told):
    """Dumps without entries, as the debug server gives them."""
    status, words = told(world(2))
    assert status == 1
    assert "The recorder of ranks 0-1 was off, or has seen no call. TORCH_FR_BUFFER" in words


def gloo(size, groups):
    """The recorders of a gloo job, whose dumps list no members."""
    ranks = world(size, groups, backend="gloo")
    for one in ranks:
        one.lists_members = False
    return ranks


def test_groups_of_gloo_have_the_members_that_have_called_something(told):
    """Four ranks in four groups, each of which waits for its neighbour."""
    groups = {"1": [0, 1], "2": [1, 2], "3": [2, 3], "4": [0, 3]}
    ranks = gloo(4, groups)
    for one in ranks:
        first, second = one.groups.keys() - {"0"}
        one.call("all_reduce", 2, first).call("all_reduce", 2, second)
    for one, group in zip(ranks, groups, strict=True):
        one.call("all_reduce", 3, group, state="scheduled")
    status, words = told(ranks, "--world-size", "4")
    assert status == 0
    assert "4 of 4 ranks wait for each other: they call all_reduce in different groups." in words
    assert "rank 3  all_reduce(group of ranks 0 and 3)" in words


def test_a_group_of_gloo_in_which_nobody_else_has_called_anything(told):
    """The other members are not known, and the call has no words that claim them."""
    ranks = gloo(3, {"1": [0, 2]})
    ranks[0].call("all_reduce", 3, "1", state="scheduled")
    status, words = told(ranks)
    assert status == 0
    assert "Rank 0 waits in group 1, whose members gloo does not list. Any other" in words
    assert "all_reduce(group=1)" in words


def test_a_job_that_does_not_wait_is_told_so(told):
    """And how far apart the last calls are."""
    ranks = world(2)
    for one in ranks:
        one.call("all_reduce", 3)
    ranks[1].call("barrier", 4)
    ranks[0].call("barrier", 4)
    ranks[1].entries[-1]["time_created_ns"] += 2_000_000_000
    status, words = told(ranks)
    assert status == 1
    assert "Nothing waits, because every recorded call has completed." in words
    assert (
        "The last call of rank 1 (barrier(), train.py:4) began 2.0 s after that of rank 0" in words
    )


def test_lines_are_the_programs_on_the_machine_where_it_ran(told):
    """Not those of Python, of torch built there, or of C++."""
    ranks = world(2)
    ranks[0].call("all_reduce", 3, state="started")
    torch = "/build/pytorch/torch/"
    others = [
        ("c10d::ProcessGroupNCCL::allreduce", "??", 0),
        ("allreduce", f"{torch}csrc/distributed/c10d/Ops.cpp", 12),
        ("all_reduce", f"{torch}distributed/distributed_c10d.py", 2501),
        ("forward", f"{torch}nn/modules/module.py", 1700),
        ("reduce", "/home/me/project/torch/reduce.py", 5),
        ("step", "/opt/lib/python3.12/site-packages/trainer/loop.py", 8),
        ("_run_code", "/usr/lib/python3.12/runpy.py", 88),
        ("<module>", "/home/me/project/train.py", 9),
    ]
    ranks[0].entries[0]["frames"] = [
        {"name": name, "filename": file, "line": line} for name, file, line in others
    ]
    _, words = told(ranks, "--json")
    lines = json.loads(words)["ranks"][0]["lines"]
    assert [(line["file"], line["line"], line["in"]) for line in lines] == [
        ("/home/me/project/train.py", 9, ""),
        ("/home/me/project/torch/reduce.py", 5, "reduce"),
    ]


def test_findings_as_json(told):
    """For machines: the same ranks, calls and lines."""
    ranks = world(2)
    ranks[0].call("all_reduce", 3, state="started")
    status, words = told(ranks, "--json")
    found = json.loads(words)
    assert status == 0
    assert found["explained"]
    assert found["ranks"][0]["op"] == "all_reduce"
    assert found["ranks"][0]["waits_for"] == [1]
    assert found["ranks"][0]["lines"][-1] == {"file": "/home/me/train.py", "line": 3, "in": "step"}
    assert found["ranks"][1]["doing"] == "outside"


# --- files ---


class Harmful:
    """Runs a command when it is unpickled as usual."""

    def __reduce__(self):
        return print, ("harm",)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty."),
        (b"hello", "is neither a pickle nor JSON."),
        (b"\x80\x02}q", "cannot be read as a pickle ("),
        (pickle.dumps({"entries": [Harmful()]}), "wants to call builtins.print, as no flight"),
        (pickle.dumps([1, 2]), "has no key of a flight recorder's dump (entries, pg_config,"),
        (b'{"entries": [{"profiling_name": "a:b", "frames": 7}]}', "holds what no flight recorder"),
        (b'{"pg_config": {"0": {"ranks": [123456789]}}}', ""),
        (b'{"a": 1}', "has no key of a flight recorder's dump (entries, pg_config,"),
    ],
)
def test_what_is_no_dump_is_refused_by_name_and_rule(tmp_path, capsys, content, words):
    """Status 2, and nothing of it was run."""
    path = tmp_path / "trace_0"
    path.write_bytes(content)
    assert explain([str(path)]) == 2
    shown = capsys.readouterr()
    assert f"{path} {words}" in shown.err or (not words and "no job has more than" in shown.err)
    assert "harm" not in shown.out


@pytest.mark.parametrize("size", ["-2", "0", "99999999999"])
def test_a_world_size_that_cannot_be(tmp_path, capsys, size):
    """It is refused by name and rule."""
    ranks = world(2)
    assert explain([write_all(tmp_path, ranks), "--world-size", size]) == 2
    assert "--world-size must be the number of all ranks of the job, at" in capsys.readouterr().err


def test_entries_that_are_no_calls_are_left_out(tmp_path, capsys):
    """What has no name is nothing that a rank waits in."""
    path = tmp_path / "odd_0.json"
    path.write_text('{"entries": [{}, null, 5]}')
    assert explain([str(path)]) == 1
    assert "The recorder of rank 0 was off, or has seen no call." in capsys.readouterr().out


def test_lists_of_one_type_are_read():
    """Some versions of torch write them by a function, which is the only one that is known."""
    list_of_one = b"ctorch.jit._pickle\nbuild_intlist\n](K\x01e\x85R"
    (dump,) = dumps_in(b"\x80\x02}X\x07\x00\x00\x00entries" + list_of_one + b"s.")
    assert dump.content == {"entries": [1]}


def test_an_answer_that_wraps_the_dumps_of_all_ranks(tmp_path, capsys):
    """As a list, as a dict, and as the page of the debug server."""
    ranks = world(2)
    ranks[0].call("all_reduce", 3, state="started")
    contents = [one.content() for one in ranks]
    page = "".join(
        f"<h2>Rank {rank}: http://h:1</h2>\n<pre>{json.dumps(one)}</pre>"
        for rank, one in enumerate(contents)
    )
    answers = [
        json.dumps(contents),
        json.dumps({"rank0": contents[0], "rank1": json.dumps(contents[1])}),
        f"<html>{page}</html>",
    ]
    for answer in answers:
        path = tmp_path / "answer.json"
        path.write_text(answer)
        assert explain([str(path)]) == 0, answer
        assert "Rank 0 waits in all_reduce for rank 1" in capsys.readouterr().out


def test_a_rank_that_did_not_answer_the_debug_server(tmp_path, capsys):
    """The page has an error in the place of its dump."""
    ranks = world(2)
    ranks[0].call("all_reduce", 3, state="started")
    path = tmp_path / "page.html"
    answer = json.dumps(ranks[0].content())
    path.write_text(
        f"<h2>Rank 0: http://h:1</h2><pre>{answer}</pre>"
        "<h2>Rank 1: http://h:2</h2><p>Failed to fetch</p><pre>refused</pre>"
    )
    assert explain([str(path)]) == 0
    assert "There is no dump of rank 1" in capsys.readouterr().out


def test_whose_dump_it_is(tmp_path, capsys):
    """A person says it, or its name does, or its messages do."""
    ranks = world(2)
    ranks[0].message("send", 3, 1, state="started")
    ranks[1].call("barrier", 4, state="started")
    first, second = ranks[0].write(tmp_path), ranks[1].write(tmp_path)
    unnamed = first.rename(tmp_path / "first")
    assert explain([str(unnamed), f"1={second}"]) == 0
    assert "Read 2 dumps: rank 0 by its groups, rank 1 as given." in capsys.readouterr().out
    second = second.rename(tmp_path / "second")
    assert explain([str(unnamed), str(second)]) == 2
    assert f"Say which rank it is: 0={second}" in capsys.readouterr().err
    assert explain([str(unnamed), f"0={second}"]) == 2
    assert "got two of rank 0" in capsys.readouterr().err


def test_other_files_of_a_folder_are_left_out(tmp_path, capsys):
    """They are named; where none is a dump, that is an error."""
    ranks = world(1)
    ranks[0].call("all_reduce", 3)
    folder = tmp_path / "traces"
    folder.mkdir()
    (folder / "notes.txt").write_text("hello")
    assert explain([str(folder)]) == 2
    assert "No file there is a dump" in capsys.readouterr().err
    ranks[0].write(folder)
    assert explain([str(folder)]) == 1
    assert "notes.txt is neither a pickle nor JSON." in capsys.readouterr().out
    assert explain([str(tmp_path / "none*")]) == 2
    assert "FILES must be files that exist" in capsys.readouterr().err


def test_a_large_job(tmp_path, capsys):
    """Forty ranks; large_job.py makes one of 512, to measure with."""
    write_job(tmp_path / "dumps", 40, calls=100)
    assert explain([str(tmp_path / "dumps")]) == 0
    words = capsys.readouterr().out
    assert "Ranks 32-36, 38 and 39 wait in all_gather_into_tensor for rank 37, which" in words
    assert "Ranks 5, 13, 21 and 29 wait in all_reduce for rank 37, which is not in a call" in words


def test_large_dumps_are_read_by_several_processes(tmp_path):
    """With what a single one says, and without a warning."""
    write_job(tmp_path / "dumps", 16, calls=20)
    code = (
        "import sys; from distlab.scripts.explaining import command, gathering; "
        "gathering.LARGE = int(sys.argv[2]); sys.exit(command.explain(sys.argv[1:2]))"
    )
    said = []
    for large in (0, 10**9):
        command = [sys.executable, "-W", "error", "-c", code, str(tmp_path / "dumps"), str(large)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert (ended.returncode, ended.stderr) == (0, "")
        said.append(ended.stdout)
    assert said[0] == said[1]
