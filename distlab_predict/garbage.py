"""Python's search for garbage, where hundreds of thousands of objects are made, and all stay.

Called by timeline.py and recording_process.py, on the notebook's kernel, and by rank_children.py
and repeats.py, in the process of a rank that is recorded. Each search looks through all of them
again, which takes longer than to make them.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def left_alone() -> Iterator[None]:
    """Meanwhile Python does not look for garbage."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
