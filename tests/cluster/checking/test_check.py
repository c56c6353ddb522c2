"""`distlab.check` on real ranks: right answers, wrong ones, and whatever may be handed in."""

import dataclasses
import html
import importlib
import json
import os
import re
import sys

import pytest
import torch
import torch.distributed as dist

import distlab
from distlab.checking import Race, all_exercises
from distlab_course.algorithms import ALL_REDUCE
from tests.cluster.conftest import stop_what_runs
from tests.processes import python
from tests.refused import raised
from tests.tool import ROOT

PASSED = (
    "ring_all_reduce: passed. 20 cases with 1, 2, 3 and 4 ranks.\n"
    "4 MiB on a simulated network (5 µs, 12.5 GB/s): "
    "yours {}, ours 533 µs, the simulated library's 533 µs.\n"
    "The target, less than 600 µs, is {}."
)


pytestmark = pytest.mark.usefixtures("progress_file")


ring = ALL_REDUCE["ring"]


def stub(tensor):
    raise NotImplementedError("exercise 3.2")


def receives_first(tensor):
    if dist.get_world_size() > 1:
        dist.recv(tensor, src=(dist.get_rank() - 1) % dist.get_world_size())


def prints_much(tensor):
    for _ in range(1000):
        print("many words " * 10_000)


def test_a_right_answer_passes_and_is_remembered(usable, progress_file):
    """The verdict is one line; `progress` knows it then, and only right answers."""
    assert repr(distlab.check("ring_all_reduce", stub)) == "ring_all_reduce: not attempted"
    assert not progress_file.exists()
    assert repr(distlab.check("ring_all_reduce", ring)) == PASSED.format("533 µs", "met")
    assert distlab.check("ring_all_reduce", ring).passed
    best = pytest.approx(6 * (5e-6 + 2**20 / 12.5e9))
    assert json.loads(progress_file.read_text()) == {
        "passed": ["ring_all_reduce"],
        "best": {"ring_all_reduce": best},
    }
    (row,) = [row for row in distlab.progress().rows if row[0] == "05"]
    assert row[1].startswith("1 of ")


def takes_turns(tensor):
    """A ring in which half of the ranks receive before they send: right, and half as fast."""
    rank, n = dist.get_rank(), dist.get_world_size()
    chunks = tensor.tensor_split(n)
    for step in range(2 * (n - 1)):
        outgoing = chunks[(rank - step) % n]
        mine = chunks[(rank - step - 1) % n]
        arriving = torch.empty_like(mine)
        if rank % 2 == 0:
            dist.send(outgoing, dst=(rank + 1) % n)
        dist.recv(arriving, src=(rank - 1) % n)
        if rank % 2:
            dist.send(outgoing, dst=(rank + 1) % n)
        mine.copy_(mine + arriving if step < n - 1 else arriving)


def test_a_right_answer_is_drawn_and_its_best_time_kept(usable):
    """The answer's own messages come below the words; the best time is kept."""
    slow = distlab.check("ring_all_reduce", takes_turns)
    assert repr(slow) == PASSED.format("1.07 ms", "not met yet")
    assert distlab.progress().rows[5][-1] == "3.2 Ring all-reduce 1.07 ms"
    verdicts = [distlab.check("ring_all_reduce", one) for one in (ring, takes_turns)]
    assert distlab.progress().rows[5][-1] == "3.2 Ring all-reduce 533 µs"
    for verdict in (slow, *verdicts):
        assert len(verdict.run.messages) == 24
        assert {message.num_bytes for message in verdict.run.messages} == {2**20}
        shown = verdict._repr_html_()
        words = html.escape(f"{verdict.words}\nNext: 3.3 Reduce-scatter")
        assert f"{words}</pre><img src=" in shown
        assert "24 messages" in shown
    assert ">&nbsp;passed&nbsp;<" in shown
    wrong = distlab.check("sum_of_squares", with_all_reduce)._repr_html_()
    assert ">&nbsp;not yet&nbsp;<" in wrong
    assert "<img" not in wrong
    assert distlab.check("ring_all_reduce", stub)._repr_html_() is None


def with_all_reduce(tensor):
    tensor **= 2
    dist.all_reduce(tensor)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            ALL_REDUCE["whole ring"],
            "with 3 ranks and 8 numbers of float32, rank 0 sends 64 B where 48 B would do.",
        ),
        (
            lambda tensor: {}["a"],
            "it ends in RankError:\nrank 0 raised KeyError: 'a'\n  rank 0   test_check.py:",
        ),
        (lambda tensor: sys.exit(2), "it ends in RankError:\nrank 0 raised SystemExit: 2\n"),
        (lambda tensor: os._exit(3), "it ends in RankDied:\nrank 0 ended with exit status 3."),
        (prints_much, "rank 1 printed: many words many words"),
        (
            receives_first,
            "it ends in DeadlockError:\n2 of 2 ranks wait for each other; nobody will send.\n",
        ),
    ],
)
def test_a_wrong_answer_is_explained(usable, answer, words):
    """The verdict is as if the world were all there is; notebooks/solutions show many more."""
    verdict = distlab.check("ring_all_reduce", answer)
    assert not verdict.passed
    assert verdict.attempted
    assert words in repr(verdict)
    assert "rebuilt" not in repr(verdict)
    assert repr(distlab.check("ring_all_reduce", ring)) == PASSED.format("533 µs", "met")


def test_a_formula_is_judged_without_ranks(usable):
    """An exercise of one rank has arguments and values, and its verdicts name no rank."""
    verdict = distlab.check("chunks_pay_off", lambda n, alpha, beta: 1.0)
    assert repr(verdict).splitlines() == [
        "chunks_pay_off: not yet. With these arguments it gives wrong values:",
        "   given               expected   yours",
        "   [4, 1e-05, 1e-09]   20000      1       wrong",
    ]
    right = all_exercises()["chunks_pay_off"].function
    assert repr(distlab.check("chunks_pay_off", right)) == "chunks_pay_off: passed. 4 cases."


def test_an_answer_that_never_returns_is_ended(usable):
    """After the exercise's limit it is freed, and the verdict says where it was."""
    quick = dataclasses.replace(all_exercises()["ring_all_reduce"], seconds=0.5)

    def never(tensor):
        while True:
            tensor += 1

    words = "it ends in RankTimeout:\nrank 0 did not come back within 0.5 s.\n"
    assert words in repr(distlab.check(quick, never))


def test_groups_and_names_of_the_learner_outlive_a_check(usable):
    """A check that needs no rebuild leaves groups as they are, and `world_size` is what it was."""
    usable.client[:].execute("pair = dist.new_group([1, 3]); kept = torch.ones(1)", block=True)
    distlab.check("ring_all_reduce", ring)
    distlab.check("ring_all_reduce", dist.all_reduce)

    def use(rank, world_size):
        if rank in (1, 3):
            dist.all_reduce(kept, group=pair)  # noqa: F821
        return kept.item(), dist.get_world_size(), world_size  # noqa: F821

    assert usable.run(use) == [(1.0, 4, 4), (2.0, 4, 4), (1.0, 4, 4), (2.0, 4, 4)]


def test_names_of_the_notebook_mean_the_small_world(usable):
    """A function that came by value finds `rank` and `world_size` of its small world."""
    source = "def square():\n    assert world_size == dist.get_world_size()\n    return rank * rank"
    names = {}
    exec(source, names)
    square = names["square"]
    square.__module__ = "__main__"
    assert distlab.check("my_square", square).passed


def test_the_file_of_a_teacher(usable, tmp_path, monkeypatch):
    """What TEACHING.md shows, in a file that the ranks cannot import."""
    guide = (ROOT / "TEACHING.md").read_text()
    source = re.search(r"```python\n(import torch.*?)```", guide, flags=re.DOTALL)[1]
    (tmp_path / "my_exercises.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("my_exercises")
    assert distlab.check("messages_to_rank_0", 3).passed
    verdict = repr(distlab.check("messages_to_rank_0", 4))
    assert verdict.endswith("Rank 0 needs no message to itself.")

    def answer(tensor):
        if dist.get_rank() != 0:
            return dist.send(tensor, dst=0)
        total = tensor.clone()
        part = torch.empty_like(tensor)
        for _ in range(dist.get_world_size() - 1):
            dist.recv(part)
            total += part
        return total

    assert distlab.check("sum_to_rank_0", answer).passed
    assert "sum_to_rank_0" in distlab.exercises()
    assert "my course" in {row[0] for row in distlab.progress().rows}
    assert "yours" in repr(distlab.check("sum_to_rank_0", lambda tensor: tensor))

    untimed = all_exercises()["sum_to_rank_0"]
    race = Race(1000, 1e-3, 1.0)
    timed = dataclasses.replace(untimed, forbids=[], limits=None, race=race)
    # with messages, and with a collective, whose time is not kept
    for one in (answer, timed.function):
        assert repr(distlab.check(timed, one)).endswith("The target, less than 1.00 s, is met.")
        assert distlab.progress().rows[-1][-1].startswith("sum_to_rank_0 ")


def test_importing_distlab_is_enough():
    """The course's exercises are found through their entry point."""
    done = python("-c", 'import distlab; print(distlab.check("step_of_7b", 2.1))')
    assert done.stdout.startswith("step_of_7b: passed. "), done.stderr


def test_calls_of_the_groups_of_a_case_before_do_not_count(usable):
    """Each case makes groups of its own, whose names come again in the next."""

    def leaders_alone(tensor, first, inside, leaders):
        if dist.get_rank() == first:
            dist.reduce(tensor, dst=first, group=inside)
            dist.all_reduce(tensor, group=leaders)
        dist.broadcast(tensor, src=first, group=inside)

    words = (
        "The ranks do not call the same collective: rank 0 calls reduce, rank 1 calls broadcast.\n"
    )
    assert words in repr(distlab.check("hierarchical_all_reduce", leaders_alone))


def test_groups_that_an_answer_has_destroyed_do_not_count(usable):
    """Case by case more ranks make it, under a number that a world of the next case gets."""

    def destroys_its_group(tensor):
        everyone = dist.new_group(range(dist.get_world_size()))
        dist.destroy_process_group(everyone)
        return ring(tensor)

    assert distlab.check("ring_all_reduce", destroys_its_group).passed


def test_a_check_takes_no_virtual_time():
    """On a simulated cluster the clocks stand still during a check."""
    with distlab.Cluster(4, network=distlab.Network("5 us", "1 GB/s")) as cluster:
        cluster.run(lambda rank, n: dist.all_reduce(torch.ones(1000)))
        before = cluster.clock()
        assert distlab.check("ring_all_reduce", ring).passed
        assert cluster.clock() == before > 0


def test_a_check_starts_a_cluster_where_none_runs(capsys):
    """It says so, and the cluster stays for what follows; a stub and a value need none."""
    stop_what_runs()
    distlab.check("my_square", stub)
    distlab.check("who_waits_for_whom", "recv")
    assert distlab.Cluster.current is None
    right = distlab.check("my_square", lambda: dist.get_rank() ** 2)
    assert repr(right).startswith("my_square: passed.")
    said = "No cluster was running here, so the check starts one, distlab.Cluster(4).\n"
    assert capsys.readouterr().out == said
    started = distlab.Cluster.current
    assert not distlab.check("my_square", dist.get_rank).passed
    assert capsys.readouterr().out == ""
    assert distlab.Cluster.current is started
    assert started.run(lambda rank, n: n) == [4] * 4
    started.stop()
    eight = dataclasses.replace(all_exercises()["my_square"], worlds=(5,))
    assert distlab.check(eight, lambda: dist.get_rank() ** 2).passed
    assert distlab.Cluster.current.n == 5


def test_a_check_needs_a_cluster_that_is_large_enough():
    """The error says how to make one; a cluster that is too small stays."""
    with distlab.Cluster(2) as small:
        error = raised(distlab.ArgumentError, distlab.check, "ring_all_reduce", ring)
        words = (
            "cluster must be of 4 ranks or more for this exercise, got 2. "
            "Call distlab.Cluster(4), and check again."
        )
        assert str(error) == words
        assert small.run(lambda rank, n: n) == [2, 2]
