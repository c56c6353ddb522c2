"""What distlab_course.pretraining.train refuses before anything is made."""

import pytest

from distlab_course.engine import Engine
from distlab_course.pretraining import train
from distlab_course.sizes import Size

AGAIN = Engine(gathers_again=True)
SIZE = Size(64, 8, 4, 128, 4, 256)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"recompute": "some"}, r"recompute must be one of .*, got 'some'\."),
        ({"float8": True}, r"float8 must be one of .*, got True\."),
        ({"stages": 2}, r"stages must be 1 .*, got 2\. Call train\(\.\.\., pipeline=2, stages=2\)"),
        (
            {"batch": 8, "microbatches": 3},
            r"must divide the batch of 8, got 3\. Call train\(\.\.\., microbatches=3, batch=9\)",
        ),
        ({"dispatch": "racks"}, r"dispatch must be one of .*, got 'racks'\."),
        ({"dispatch": "hosts", "host": 0}, r"host must divide .*, got 0\. Call train\(.*'ranks'\)"),
        ({"expert": 2}, r"expert must be 1 for a size without experts, got 2\."),
        (
            {"compiles": True, "tensor": 2, "float8": "yes", "recompute": "none"},
            r"recompute must not be 'none' .* Call train\(\.\.\., recompute='op'\)",
        ),
        ({"engine": AGAIN}, r"recompute must be 'none' .*, got 'op'.* Call train\(.*'none'\)"),
        (
            {"engine": AGAIN, "compiles": True, "recompute": "none"},
            r"compiles must be False .* Call train\(\.\.\., engine=TORCH\)",
        ),
        (
            {"engine": Engine(recomputes_blocks=3), "recompute": "full"},
            r"recomputes_blocks must be 0 .*, got 3\..*recompute='none', engine=Engine\(.*=3\)\)",
        ),
        (
            {"engine": Engine(recomputes_long=True)},
            r"must be 'none' .*recomputes_long is, got 'op'\. Call train\(.*recompute='none'\)",
        ),
        ({"batch": 1, "pipeline": 2}, "must divide the batch of 1, got 2"),
    ],
)
def test_arguments_are_checked_first(options, words):
    with pytest.raises(ValueError, match=words):
        train(0, 1, size=SIZE, length=32, **options)
