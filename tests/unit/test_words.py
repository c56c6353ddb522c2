"""Lines for a person, broken where they are too long."""

import pytest

from distlab.words import columns_and_code, fitted, rank_list

CODE = "loss = model(x).sum()  # average the gradients of every rank"


@pytest.mark.parametrize(
    ("columns", "code"),
    [
        ("  ranks 0-3   line 12 in train   ", CODE),
        ("           line 7   ", CODE),
        ("  rank 0   my code/train.py:12 in <lambda>   ", CODE),
        ("  rank 2  computing                line 12 in train  ", CODE),
        ("  rank 1  waits through a: b  ", "float32[2]"),
        ("  rank 0  irecv(src=1) of train.py:3  float32[4]  train.py:9  ", "work.wait()"),
        ("  finished", ""),
        ("  rank 2   line 12 in train", ""),
        ("  rank 2  recv(src=1)  float32[2]  line 3", ""),
        ("", ""),
    ],
)
def test_the_code_of_a_row_is_right_of_its_position(columns, code):
    """A comment stays with its line, two spaces before it or not."""
    assert columns_and_code(columns + code) == (columns, code)


def test_a_long_row_keeps_a_comment_with_its_line():
    assert fitted(f"  ranks 0-3   line 12 in train   {CODE}") == [
        "  ranks 0-3   line 12 in train",
        f"          {CODE}",
    ]


def test_a_comment_that_does_not_fit_beside_its_line_stands_under_it():
    code = "qkv = qkv.unflatten(-1, (-1, 3, self.head))"
    comment = "# batch, position, head, 3, width of a head"
    row = f"              line 17 in forward   {code}  {comment}"
    assert fitted(row) == ["              line 17 in forward", " " * 22 + code, " " * 22 + comment]


@pytest.mark.parametrize("part", [" ", "a ", "a  ", ":1", "line 1  ", "  in a"])
def test_a_long_line_is_broken_soon(part):
    """A learner's message may have a million characters in one line, here fewer."""
    columns_and_code(" x" + part * 30_000)


def test_a_long_list_of_ranks_is_cut():
    """In a job of hundreds of ranks, every eighth one may wait."""
    words = rank_list(range(0, 512, 8))
    assert words == "ranks 0, 8, 16, 24, 32, 40, 48, 56 and 56 more"
