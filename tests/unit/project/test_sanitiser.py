"""What tests/nbval.cfg overlooks when outputs are compared, and what it must not overlook."""

import re
from pathlib import Path

import pytest
from nbval.plugin import get_sanitize_patterns

from distlab.measure import format_bandwidth, format_bytes, format_seconds

CONFIG = Path(__file__).parents[2] / "nbval.cfg"

SECONDS = tuple(f"took {format_seconds(seconds)} median" for seconds in (3e-7, 12.3))
RATES = format_bandwidth(0.004), format_bandwidth(87.0)
EXAMPLES = {
    "<duration>": [
        SECONDS,
        ("latency 4.5 µs", "latency 9 µs"),
        ("  1.02 s  median", "   912 ms median"),
    ],
    "<rate>": [RATES, ("  12.3 GB/s", " 9 GB/s"), ("940 MB/s", "87.1 kB/s")],
    "<memory>": [("65 MB", "180.2 MB"), ("1.2 GB", "640 MB")],
    "<pid>": [
        ("pid=1", "pid=99999"),
        ("(PID: 12)", "(PID: 345)"),
        ("pid 4711     -", "pid 52       -"),
    ],
    "<address>": [("<function ring at 0x7f3a5c0d1e20>", "<function ring at 0x7f0011223344>")],
    "<port>": [("[127.0.0.1]:28549$0", "[127.0.0.1]:1$0"), ("localhost:8888", "localhost:1")],
    "<difference>": [
        (
            "its bound is 4e-7 (rounding explains up to 2e-6)",
            "its bound is 1.2e-8 (rounding explains up to 9e-7)",
        ),
        ("the largest difference 3e-08", "the largest difference 0"),
    ],
    "<size>": [
        ("<Figure size 239.844x300 with 1 Axes>", "<Figure size 240.1x301.5 with 1 Axes>"),
        # an image may have letters that look like an address
        ("data:image/png;base64,iV0x7f3a5c/zz=", "data:image/png;base64,iVBORw0="),
    ],
}

COMPARED = [
    ("rank 0", "rank 1"),
    ("timeout of 3 s", "timeout of 5 s"),
    *[("16 MiB", "32 MiB"), ("64 B", "128 B"), ("256 kB", "512 kB"), ("1 MB", "4 MB")],
    (format_bytes(1 << 20), format_bytes(1 << 21)),
    ("50 % of the data", "75 % of the data"),
    ("recv(src=1)", "recv(src=0)"),
    ("step 1.5", "step 2.5"),
    ("largest difference 0.25", "largest difference 0.5"),
    ("largest difference 2e-3", "largest difference 4e-7"),
    ("<Figure size 640x480 with 1 Axes>", "<Figure size 640x480 with 2 Axes>"),
    ("Writing /tmp/distlab-8f7_b9sf/toy.py", "Writing /tmp/distlab-lcy4o27y/toy.py"),
]


PATTERNS = get_sanitize_patterns(CONFIG.read_text(encoding="utf-8"))


def sanitise(text):
    for regex, replacement in PATTERNS:
        text = re.sub(regex, replacement, text)
    return text


def test_the_patterns_of_the_file():
    """At most eight; nbval reads each, which has a visible placeholder and an example."""
    assert 1 <= len(PATTERNS) <= 8
    assert len(PATTERNS) == len(
        re.findall(r"^regex:", CONFIG.read_text(encoding="utf-8"), flags=re.MULTILINE)
    )
    assert {re.search(r"<[a-z ]+>", replacement).group() for _, replacement in PATTERNS} == set(
        EXAMPLES
    )


@pytest.mark.parametrize(
    ("placeholder", "one", "other"),
    [(name, *pair) for name, pairs in EXAMPLES.items() for pair in pairs],
)
def test_two_runs_compare_equal(placeholder, one, other):
    """Two runs that differ in a measured or drawn value only compare equal."""
    assert sanitise(one) == sanitise(other)
    assert placeholder in sanitise(one)


@pytest.mark.parametrize(("one", "other"), COMPARED)
def test_the_lesson_is_compared(one, other):
    """A difference in what the lesson claims is still a difference."""
    assert sanitise(one) != sanitise(other)
