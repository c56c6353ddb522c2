"""Where torch's caching allocator puts blocks, by sequences whose answer is known by hand.

The sizes are those of c10/cuda/CUDACachingAllocator.cpp; each test says what a GPU would do.
"""

import itertools
import random

import pytest

from distlab_predict.allocator import ROUNDED, Allocator, is_expandable

MIB = 1 << 20


def reserved_for(sizes: list[int], is_expandable: bool = False) -> float:
    """MiB that are reserved for blocks that all live."""
    allocator = Allocator(is_expandable)
    for number, size in enumerate(sizes):
        allocator.take(number, 0, size)
    return allocator.reserved / MIB


@pytest.mark.parametrize(
    ("size", "segment"),
    [
        (0, 0),
        (1, 2),
        (1 * MIB, 2),
        (1 * MIB + 1, 20),
        (10 * MIB - 512, 20),
        (10 * MIB, 10),
        (15 * MIB, 16),
        (16 * MIB + 1, 18),
    ],
)
def test_a_segment_has_2_or_20_mib_or_the_blocks_size(size, segment):
    assert reserved_for([size]) == segment


def test_small_blocks_share_a_segment_and_take_512_bytes_at_least():
    """4,096 blocks of a byte fill 2 MiB; one more needs another segment."""
    assert reserved_for([1] * 4096) == 2
    assert reserved_for([1] * 4097) == 4


def test_blocks_of_up_to_10_mib_share_a_segment():
    """Three of 6 MiB are in 20 MiB; what is left, 2 MiB, takes a fourth one of 2 MiB."""
    assert reserved_for([6 * MIB] * 3) == 20
    assert reserved_for([6 * MIB] * 3 + [2 * MIB]) == 20
    assert reserved_for([6 * MIB] * 4) == 40


def test_a_large_block_is_not_cut_if_no_more_than_1_mib_would_be_left():
    """Of a segment of 20 MiB, 19 MiB are taken; its last MiB is lost until that block is freed."""
    allocator = Allocator(is_expandable=False)
    allocator.take(0, 0, 20 * MIB)
    allocator.give_back(0)
    allocator.take(1, 0, 19 * MIB)
    allocator.take(2, 0, MIB + 512)
    assert allocator.reserved == 40 * MIB
    allocator.give_back(1)
    allocator.take(3, 0, 20 * MIB)
    assert allocator.reserved == 40 * MIB


def test_a_block_takes_the_smallest_free_one_that_it_fits_into():
    """Segments of 40 and 30 MiB are free: 30 MiB go into the second, so 40 find the first one."""
    allocator = Allocator(is_expandable=False)
    allocator.take(0, 0, 40 * MIB)
    allocator.take(1, 0, 30 * MIB)
    allocator.give_back(0)
    allocator.give_back(1)
    allocator.take(2, 0, 30 * MIB)
    allocator.take(3, 0, 40 * MIB)
    assert allocator.reserved == 70 * MIB


def test_free_neighbours_merge_and_blocks_of_other_segments_do_not():
    """Three blocks of a segment become one again; two segments never do."""
    allocator = Allocator(is_expandable=False)
    for number in range(3):
        allocator.take(number, 0, 5 * MIB)
    for number in (0, 2, 1):
        allocator.give_back(number)
    allocator.take(3, 0, 20 * MIB)
    assert allocator.reserved == 20 * MIB
    allocator.take(4, 0, 20 * MIB)
    allocator.give_back(3)
    allocator.give_back(4)
    allocator.take(5, 0, 40 * MIB)
    assert allocator.reserved == 80 * MIB


def test_a_stream_does_not_use_what_another_has_freed():
    allocator = Allocator(is_expandable=False)
    allocator.take(0, "first", 20 * MIB)
    allocator.give_back(0)
    allocator.take(1, "second", 20 * MIB)
    assert allocator.reserved == 40 * MIB


def test_a_small_block_does_not_use_what_a_large_one_has_freed():
    allocator = Allocator(is_expandable=False)
    allocator.take(0, 0, 20 * MIB)
    allocator.give_back(0)
    allocator.take(1, 0, 512)
    assert allocator.reserved == 22 * MIB


# --- expandable segments ---


def test_an_expandable_segment_grows_by_pages_of_20_or_2_mib():
    """30 and 30 MiB are in three pages of 20, as the second one begins in the second page."""
    assert reserved_for([30 * MIB, 30 * MIB], is_expandable=True) == 60
    assert reserved_for([30 * MIB, 30 * MIB, 1], is_expandable=True) == 62
    assert reserved_for([30 * MIB, 30 * MIB]) == 60
    assert reserved_for([MIB, MIB, MIB], is_expandable=True) == 4


def test_what_two_blocks_leave_at_the_end_holds_a_larger_one():
    """After 20 and 20 MiB, 60 need another page of 20 only; single segments are lost for them."""
    wanted = {True: 60, False: 100}
    for expandable, reserved in wanted.items():
        allocator = Allocator(expandable)
        allocator.take(0, 0, 20 * MIB)
        allocator.take(1, 0, 20 * MIB)
        allocator.give_back(0)
        allocator.give_back(1)
        allocator.take(2, 0, 60 * MIB)
        assert allocator.reserved == reserved * MIB


def test_a_hole_is_taken_before_the_end_that_could_grow():
    """40 MiB are free at the end and 60 before: 30 go there, so that 40 still fit at the end."""
    allocator = Allocator(is_expandable=True)
    for number, size in enumerate((60, 20, 40)):
        allocator.take(number, 0, size * MIB)
    allocator.give_back(0)
    allocator.give_back(2)
    allocator.take(3, 0, 30 * MIB)
    allocator.take(4, 0, 40 * MIB)
    assert allocator.reserved == 120 * MIB


@pytest.mark.parametrize(
    ("environment", "expandable"),
    [
        ({}, False),
        ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, True),
        ({"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128, expandable_segments:true"}, True),
        ({"PYTORCH_ALLOC_CONF": "expandable_segments:True"}, True),
        ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"}, False),
    ],
)
def test_expandable_segments_are_asked_for_as_torch_is(environment, expandable):
    assert is_expandable(environment) is expandable


# --- any sequence ---


@pytest.mark.parametrize("expandable", [False, True])
def test_blocks_never_overlap_and_all_memory_comes_back(expandable):
    """A thousand random blocks: none overlaps another, and what is held is what lives."""
    numbers = random.Random(0)
    allocator = Allocator(expandable)
    living: dict[int, int] = {}
    for number in range(1000):
        size = numbers.choice([100, 5000, 3 * MIB, 11 * MIB, 50 * MIB])
        allocator.take(number, 0, size)
        living[number] = size
        if numbers.random() < 0.5:
            gone = numbers.choice(list(living))
            allocator.give_back(gone)
            del living[gone]
        assert sum(living.values()) <= allocator.held <= allocator.reserved
    places = sorted(
        (id(place.pool), place.block.address, place.block.size)
        for place in allocator._places.values()
    )
    for (pool, address, size), (next_pool, next_address, _) in itertools.pairwise(places):
        assert size % ROUNDED == 0
        assert pool != next_pool or address + size <= next_address
    for number in living:
        allocator.give_back(number)
    assert allocator.held == 0
