"""Virtual times against closed formulas and against cases computed by hand."""

import math
import subprocess
import sys

import pytest

from distlab.simulated import schedules
from distlab.simulated.events import Align, Callback, Collective, Compute, Mark, Message, Wait
from distlab.simulated.network import Link, Network
from distlab.simulated.simulation import simulate

ALPHA, BETA = 5e-6, 1 / 25e9
RANKS = (2, 3, 4, 5, 7, 8, 16, 33, 64)
ALGORITHMS = ("naive", "ring", "tree", "halving doubling", "recursive doubling", "whole ring")


def network(**others):
    return Network("5 us", "25 GB/s", **others)


def send(op, peer, num_bytes, tag=0):
    return Message(op, True, peer, num_bytes, ("0", tag))


def recv(op, peer, num_bytes, tag=0):
    return Message(op, False, peer, num_bytes, ("0", tag))


def collective(name, n, size, root=0, op=0, count=0, element=1, group="0"):
    sizes = {"all_to_all": (size,) * n, "all_reduce": (size, element)}.get(name, (size,))
    return Collective(op, name, group, count, tuple(range(n)), root, sizes, sizes)


def seconds(name, n, size, **others):
    result = simulate([[collective(name, n, size), Wait(0)]] * n, network(**others))
    assert result.unfinished == ((),) * n
    return max(result.clocks)


def close(formula):
    return pytest.approx(formula, rel=1e-9)


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
    assert seconds("broadcast", n, m) == close(steps * message)
    assert seconds("reduce", n, m) == close(steps * message)
    assert seconds("gather", n, m) == close(ALPHA + (n - 1) * BETA * m)
    assert seconds("scatter", n, m) == close(ALPHA + (n - 1) * BETA * m)
    assert seconds("all_gather", n, m) == close((n - 1) * message)
    assert seconds("reduce_scatter", n, m) == close((n - 1) * message)
    assert seconds("all_to_all", n, m) == close((n - 1) * message)
    assert seconds("barrier", n, 0) == close(steps * ALPHA)


def test_chunks_that_do_not_divide_take_the_time_of_the_largest_in_each_step():
    # 10 bytes on 4 ranks: chunks of 3, 3, 2 and 2 bytes, and each of the 6 steps moves one of each
    assert seconds("all_reduce", 4, 10, algorithms={"all_reduce": "ring"}) == close(6 * (ALPHA + 3 * BETA))


def test_chunks_are_cut_between_elements_and_empty_ones_are_not_sent():
    # 2 elements of 4 bytes on 4 ranks: two chunks, each handed on by 3 ranks to be added up and by 3 to be known
    result = simulate([[collective("all_reduce", 4, 8, element=4)]] * 4, network(algorithms={"all_reduce": "ring"}))
    assert [transfer.num_bytes for transfer in result.transfers] == [4] * 12


def test_the_default_all_reduce_is_the_quicker_of_ring_and_tree():
    assert seconds("all_reduce", 16, 64) == close(schedules.cost("tree", 64, 16, ALPHA, BETA))
    assert seconds("all_reduce", 16, 1 << 24) == close(schedules.cost("ring", 1 << 24, 16, ALPHA, BETA))


def test_messages_of_one_sender_leave_its_port_one_after_the_other():
    m = 25_000_000  # a millisecond of the port
    sender = [send(1, 1, m), send(2, 2, m), Wait(1), Mark(), Wait(2)]
    result = simulate([sender, [recv(1, 0, m), Wait(1)], [recv(1, 0, m), Wait(1)]], network())
    assert result.clocks == close((ALPHA + 2e-3, ALPHA + 1e-3, ALPHA + 2e-3))
    assert result.marks[0] == close((ALPHA + 1e-3,))


def test_messages_to_one_receiver_come_in_the_order_of_their_arrival():
    m = 25_000_000
    late = [Compute(0.5e-3), send(1, 0, m), Wait(1)]
    result = simulate(
        [[recv(1, 1, m), recv(2, 2, m), Wait(1), Mark(), Wait(2)], late, [send(1, 0, m), Wait(1)]], network()
    )
    # rank 2's message holds the port from ALPHA on, and rank 1's, which came half way through, waits for its end
    assert result.clocks == close((ALPHA + 2e-3, ALPHA + 2e-3, ALPHA + 1e-3))


def test_a_message_waits_for_its_receiver():
    m = 25_000
    programs = [[send(1, 1, m), Wait(1)], [Compute(1e-3), recv(1, 0, m), Wait(1)]]
    assert simulate(programs, network()).clocks == close((1e-3 + ALPHA + 1e-6,) * 2)


def test_with_a_handshake_the_sender_hears_of_its_receiver_a_latency_later():
    at_once = [[send(1, 1, 25_000), Wait(1)], [recv(1, 0, 25_000), Wait(1)]]
    assert simulate(at_once, network(handshake=True)).clocks == close((ALPHA + 1e-6, 2 * ALPHA + 1e-6))
    late = [[Compute(1e-3), send(1, 1, 25_000), Wait(1)], [recv(1, 0, 25_000), Wait(1)]]
    assert simulate(late, network(handshake=True)).clocks == close((1e-3 + 1e-6, 1e-3 + ALPHA + 1e-6))


def test_both_directions_of_a_port_are_its_own():
    m = 25_000_000
    both = [[send(1, 1, m), recv(2, 1, m), Wait(1), Wait(2)], [send(1, 0, m), recv(2, 0, m), Wait(1), Wait(2)]]
    assert simulate(both, network()).clocks == close((ALPHA + 1e-3,) * 2)


def test_ranks_of_one_host_share_its_way_out_and_not_their_links_inside():
    hosts = Network(hosts=[2, 2], inside=Link("1 us", "100 GB/s"), between=Link("10 us", "10 GB/s"))
    m = 10_000_000  # a millisecond between hosts, 0.1 inside
    calls = [send(1, 2, m), send(1, 3, m), recv(1, 0, m), recv(1, 1, m)]
    assert simulate([[call, Wait(1)] for call in calls], hosts).clocks == close((1.01e-3, 2.01e-3, 1.01e-3, 2.01e-3))
    calls = [send(1, 1, m), recv(1, 0, m), send(1, 3, m), recv(1, 2, m)]
    assert simulate([[call, Wait(1)] for call in calls], hosts).clocks == close((0.101e-3,) * 4)


def test_collectives_of_a_group_take_turns_and_those_of_several_share_the_port():
    m = 1 << 24
    for groups, expected in (("000", 3 * (ALPHA + BETA * m)), ("012", ALPHA + 3 * BETA * m)):
        program = [collective("all_gather", 2, m, op=k, count=k, group=group) for k, group in enumerate(groups)]
        result = simulate([[*program, Wait(0), Wait(1), Wait(2)]] * 2, network())
        assert result.clocks == close((expected,) * 2)


def test_a_collective_begins_for_each_member_when_it_comes():
    late = [Compute(1e-3), collective("broadcast", 2, 1000), Wait(0)]
    result = simulate([late, [collective("broadcast", 2, 1000), Wait(0)]], network())
    assert result.clocks == close((1e-3 + ALPHA + 1000 * BETA,) * 2)


def all_gathers(*ops):
    """Of a millisecond each, the first of which is 0."""
    return [collective("all_gather", 2, 25_000_000, op=op, count=count) for count, op in enumerate(ops)]


def test_a_callback_goes_on_from_the_end_of_its_operation_beside_the_program():
    first, second = all_gathers(0, 3)
    chained = Callback(1, 0, [Compute(0.5e-3), second, Wait(3), Compute(0.1e-3)])
    program = [first, chained, Callback(2, 1, [Compute(1e-3)]), Compute(0.2e-3), Mark(), Wait(0), Mark(), Wait(2)]
    result = simulate([program] * 2, network())
    one = ALPHA + 1e-3
    assert result.marks[0] == close((0.2e-3, one))
    assert result.clocks == close((2 * one + 1.6e-3,) * 2)
    # the program computes, then waits, at last for the callbacks: the second one has begun no operation
    assert [(span.begin, span.op) for span in result.spans if span.rank == 0] == [(0, None), (0.2e-3, 0), (one, 1)]


def test_collectives_of_a_group_go_in_the_order_in_which_they_were_really_called():
    """The program calls the second one; in virtual time its rank comes there long before the callback's."""
    first, of_callback, of_program = all_gathers(0, 2, 3)
    program = [first, Callback(1, 0, [Compute(1e-3), of_callback]), of_program, Wait(3)]
    other = [first, of_callback, of_program, Wait(3)]
    assert simulate([program, other], network()).clocks == close((3 * (ALPHA + 1e-3) + 1e-3,) * 2)


def test_a_callback_that_has_not_ended_goes_on_in_the_next_simulation():
    first, second = all_gathers(0, 2)
    callback = Callback(1, 0, [Compute(0.5e-3), second, Wait(2), Compute(0.1e-3)])
    begun = simulate([[first, callback], [first]], network())
    assert [event for event, _ in begun.unfinished[0]] == [second, Callback(1, 0, [Wait(2), Compute(0.1e-3)])]
    result = simulate([[Wait(1)], [second]], network(), begun.clocks, begun.unfinished)
    # the other rank calls the second one at 0, for which its clock has not moved
    assert result.clocks[0] == close(2 * (ALPHA + 1e-3) + 0.5e-3 + 0.1e-3)
    assert result.unfinished == ((), ())


def test_what_an_earlier_cell_began_is_waited_for_in_a_later_one():
    m = 25_000_000
    programs = [[begin(1, peer, m), Align((1, 0)), Wait(1)] for begin, peer in ((send, 1), (recv, 0))]
    assert simulate(programs, network()).clocks == close((ALPHA + 1e-3,) * 2)


def test_a_rank_that_waits_for_nobody_keeps_its_clock():
    result = simulate([[Compute(1e-3), recv(1, 1, 8), Wait(1), Compute(1.0)], []], network())
    assert result.clocks == (1e-3, 0.0)


def test_stragglers_compute_longer():
    assert simulate([[Compute(1e-3)]] * 2, network(stragglers={1: 3.0})).clocks == close((1e-3, 3e-3))


COUNTED = """
import sys, torch
from distlab.simulated.notes import NOTES, CountFlops
with CountFlops():
    torch.nn.Linear(3, 5)(torch.ones(2, 3))
print(NOTES.here.flops, "torch._dynamo" in sys.modules)
"""


def test_counting_operations_does_not_import_the_compiler():
    """torch would import it for a mode that does not ask it to leave that be: a second and 70 MB for each rank."""
    assert subprocess.check_output([sys.executable, "-c", COUNTED], text=True).split() == ["60", "False"]
