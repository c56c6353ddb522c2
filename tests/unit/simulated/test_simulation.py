"""Virtual times against closed formulas and against cases computed by hand."""

import math
import subprocess
import sys

import pytest

from distlab.simulated import notes, schedules
from distlab.simulated.events import Align, Callback, CollectiveCall, Compute, PointToPoint, Wait
from distlab.simulated.network import Link, Network
from distlab.simulated.simulation import simulate
from distlab.traces.virtual import from_simulation

ALPHA = 5e-6
BETA = 1 / 25e9
RANKS = (2, 3, 4, 5, 7, 8, 16, 33, 64)
ALGORITHMS = ("naive", "ring", "tree", "halving doubling", "recursive doubling", "whole ring")
M = 25_000_000  # bytes that hold a port for a millisecond
ONE = ALPHA + 1e-3  # seconds of a message of so many bytes


def network(**others):
    return Network("5 us", "25 GB/s", **others)


def send(op, peer, num_bytes=M):
    return PointToPoint(op, True, peer, num_bytes, ("0", 0))


def recv(op, peer, num_bytes=M):
    return PointToPoint(op, False, peer, num_bytes, ("0", 0))


def collective(name, n, size, op=0, count=0, element=1, group="0"):
    sizes = {"all_to_all": (size,) * n, "all_reduce": (size, element)}.get(name, (size,))
    return CollectiveCall(op, name, group, count, tuple(range(n)), 0, sizes)


def seconds(name, n, size, **others):
    result = simulate([[collective(name, n, size), Wait(0)]] * n, network(**others))
    assert result.unfinished == [[]] * n
    return max(result.clocks)


def clocks(*programs, machines=None, **others):
    return simulate(programs, machines or network(**others)).clocks


def close(formula):
    return pytest.approx(formula, rel=1e-9)


def test_a_call_is_named_as_the_program_wrote_it():
    """irecv and isend before both waits begin at one virtual moment, and none of them blocks."""
    both = [[recv(0, 1 - rank), send(1, 1 - rank), Wait(0), Wait(1)] for rank in (0, 1)]
    found = from_simulation(simulate(both, network()), range(2))
    ops = {event.op for event in found.events if event.kind != "wait"}
    assert ops == {"irecv", "isend"}
    blocking = simulate([[send(0, 1), Wait(0)], [recv(0, 0), Wait(0)]], network())
    found = from_simulation(blocking, range(2))
    assert [event.op for event in found.events] == ["send", "recv"]


@pytest.mark.parametrize("n", RANKS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_an_all_reduce_takes_what_its_formula_says(algorithm, n):
    size = 4096 * n * (1 << (n.bit_length() - 1))  # divides into all chunks
    formula = schedules.cost(algorithm, size, n, ALPHA, BETA)
    assert seconds("all_reduce", n, size, algorithms={"all_reduce": algorithm}) == close(formula)


@pytest.mark.parametrize("n", RANKS)
def test_the_other_collectives_take_what_their_formulas_say(n):
    m = 1 << 20
    steps = math.ceil(math.log2(n))
    message = ALPHA + BETA * m
    all_at_once = ALPHA + (n - 1) * BETA * m
    formulas = dict.fromkeys(("broadcast", "reduce"), steps * message)
    formulas |= dict.fromkeys(("gather", "scatter"), all_at_once)
    formulas |= dict.fromkeys(("all_gather", "reduce_scatter", "all_to_all"), (n - 1) * message)
    assert {name: seconds(name, n, m) for name in formulas} == close(formulas)
    assert seconds("barrier", n, 0) == close(steps * ALPHA)


def test_chunks_are_cut_between_elements_and_empty_ones_are_not_sent():
    # 10 bytes on 4 ranks: chunks of 3, 3, 2 and 2 bytes, and each of the 6 steps moves one of each
    ring = {"all_reduce": "ring"}
    assert seconds("all_reduce", 4, 10, algorithms=ring) == close(6 * (ALPHA + 3 * BETA))
    # 2 elements of 4 bytes: two chunks, each handed on by 3 ranks to be added up and by 3 to be
    # known
    result = simulate([[collective("all_reduce", 4, 8, element=4)]] * 4, network(algorithms=ring))
    assert [transfer.num_bytes for transfer in result.transfers] == [4] * 12


@pytest.mark.parametrize(("size", "quicker"), [(64, "tree"), (1 << 24, "ring")])
def test_the_default_all_reduce_is_the_quicker_of_ring_and_tree(size, quicker):
    assert seconds("all_reduce", 16, size) == close(schedules.cost(quicker, size, 16, ALPHA, BETA))


def test_messages_of_one_sender_leave_its_port_one_after_the_other():
    sender = [send(1, 1), send(2, 2), Wait(1), Wait(2)]
    receiver = [recv(1, 0), Wait(1)]
    assert clocks(sender, receiver, receiver) == close([ALPHA + 2e-3, ONE, ALPHA + 2e-3])


def test_messages_to_one_receiver_come_in_the_order_of_their_arrival():
    late = [Compute(0.5e-3), send(1, 0), Wait(1)]
    found = clocks([recv(1, 1), recv(2, 2), Wait(1), Wait(2)], late, [send(1, 0), Wait(1)])
    # rank 2's message holds the port from ALPHA on, and rank 1's, which came half way through,
    # waits for its end
    assert found == close([ALPHA + 2e-3, ALPHA + 2e-3, ONE])


def test_with_a_handshake_the_sender_hears_of_its_receiver_a_latency_later():
    sends = [send(1, 1), Wait(1)]
    receives = [recv(1, 0), Wait(1)]
    assert clocks(sends, receives, handshake=True) == close([ONE, ALPHA + ONE])
    late = [Compute(1e-3)]
    assert clocks(late + sends, receives, handshake=True) == close([2e-3, 1e-3 + ONE])
    # and without, it waits for its receiver
    assert clocks(sends, late + receives) == close([1e-3 + ONE] * 2)


def test_both_directions_of_a_port_are_its_own():
    both = [[send(1, peer), recv(2, peer), Wait(1), Wait(2)] for peer in (1, 0)]
    assert clocks(*both) == close([ONE] * 2)


@pytest.mark.parametrize(
    ("calls", "expected"),
    [  # a millisecond between hosts, 0.1 inside
        ([(send, 2), (send, 3), (recv, 0), (recv, 1)], [1.01e-3, 2.01e-3, 1.01e-3, 2.01e-3]),
        ([(send, 1), (recv, 0), (send, 3), (recv, 2)], [0.101e-3] * 4),
    ],
)
def test_ranks_of_one_host_share_its_way_out_and_not_their_links_inside(calls, expected):
    hosts = Network(hosts=[2, 2], inside=Link("1 us", "100 GB/s"), between=Link("10 us", "10 GB/s"))
    programs = [[begin(1, peer, 10_000_000), Wait(1)] for begin, peer in calls]
    assert clocks(*programs, machines=hosts) == close(expected)


@pytest.mark.parametrize(("groups", "expected"), [("000", 3 * ONE), ("012", ALPHA + 3e-3)])
def test_collectives_of_a_group_take_turns_and_those_of_several_share_the_port(groups, expected):
    program = [
        collective("all_gather", 2, M, op=k, count=k, group=group) for k, group in enumerate(groups)
    ]
    assert clocks(*[[*program, Wait(0), Wait(1), Wait(2)]] * 2) == close([expected] * 2)


def test_a_collective_begins_for_each_member_when_it_comes():
    program = [collective("broadcast", 2, M), Wait(0)]
    assert clocks([Compute(1e-3), *program], program) == close([1e-3 + ONE] * 2)


def all_gathers(*ops):
    """Of a millisecond each, the first of which is 0."""
    return [collective("all_gather", 2, M, op=op, count=count) for count, op in enumerate(ops)]


def test_a_callback_goes_on_from_the_end_of_its_operation_beside_the_program():
    first, second = all_gathers(0, 3)
    chained = Callback(1, 0, [Compute(0.5e-3), second, Wait(3), Compute(0.1e-3)])
    program = [first, chained, Callback(2, 1, [Compute(1e-3)]), Compute(0.2e-3), Wait(0), Wait(2)]
    result = simulate([program] * 2, network())
    assert result.clocks == close([2 * ONE + 1.6e-3] * 2)
    # the program computes, then waits, at last for the callbacks: the second one has begun no
    # operation
    spans = [(span.begin, span.op) for span in result.spans if span.rank == 0]
    assert spans == [(0, None), (close(0.2e-3), 0), (close(ONE), 1)]


def test_collectives_of_a_group_go_in_the_order_in_which_they_were_really_called():
    """The program calls the second, whose rank comes there before the callback's."""
    first, of_callback, of_program = all_gathers(0, 2, 3)
    program = [first, Callback(1, 0, [Compute(1e-3), of_callback]), of_program, Wait(3)]
    other = [first, of_callback, of_program, Wait(3)]
    assert clocks(program, other) == close([3 * ONE + 1e-3] * 2)


def test_a_callback_that_has_not_ended_goes_on_in_the_next_simulation():
    first, second = all_gathers(0, 2)
    callback = Callback(1, 0, [Compute(0.5e-3), second, Wait(2), Compute(0.1e-3)])
    begun = simulate([[first, callback], [first]], network())
    assert [event for event, _ in begun.unfinished[0]] == [
        second,
        Callback(1, 0, [Wait(2), Compute(0.1e-3)]),
    ]
    result = simulate([[Wait(1)], [second]], network(), begun.clocks, begun.unfinished)
    # the other rank calls the second one at 0, for which its clock has not moved
    assert result.clocks[0] == close(2 * ONE + 0.5e-3 + 0.1e-3)
    assert result.unfinished == [[], []]


def test_what_an_earlier_cell_began_is_waited_for_in_a_later_one():
    programs = [[begin(1, peer), Align((1, 0)), Wait(1)] for begin, peer in ((send, 1), (recv, 0))]
    assert clocks(*programs) == close([ONE] * 2)


def test_a_rank_that_waits_for_nobody_keeps_its_clock():
    assert clocks([Compute(1e-3), recv(1, 1), Wait(1), Compute(1.0)], []) == [1e-3, 0.0]


def test_stragglers_compute_longer():
    assert clocks([Compute(1e-3)], [Compute(1e-3)], stragglers={1: 3.0}) == close([1e-3, 3e-3])


COUNTED = """
import sys, torch
from distlab.simulated.notes import NOTES, CountFlops
with CountFlops():
    torch.nn.Linear(3, 5)(torch.ones(2, 3))
print(NOTES.current.flops, "torch._dynamo" in sys.modules)
"""


def test_counting_operations_does_not_import_the_compiler():
    """torch would, for a mode that does not refuse it: a second and 70 MB a rank."""
    assert subprocess.check_output([sys.executable, "-c", COUNTED], text=True).split() == [
        "60",
        "False",
    ]


def test_what_is_isolated_computes_in_no_time():
    """An answer that calls distlab.compute takes no further step in its check."""
    notes.use(network())
    try:
        notes.compute(1.0)
        with notes.isolated() as program:
            notes.compute(1.0)
        assert program.events == []
        assert notes.NOTES.program.events == [Compute(1.0)]
    finally:
        notes.use(None)
