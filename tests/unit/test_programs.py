"""A process that ends with its parent."""

import os
import sys

import pytest

from tests.processes import python

ORPHAN = """
import os, sys, time
from distlab.programs import end_with_parent
alive, sink = os.pipe()
if os.fork() == 0:
    parent = os.getpid()
    if os.fork() == 0:
        while {waits} and os.getppid() == parent:
            time.sleep(0.01)
        end_with_parent(parent)
        while not {waits} and os.getppid() == parent:
            time.sleep(0.01)
        time.sleep(0.2)
        os.write(sink, b"alive")
        os._exit(0)
    time.sleep(0 if {waits} else 0.5)
    os._exit(0)
os.close(sink)
os.wait()
print(os.read(alive, 10))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can do that")
@pytest.mark.parametrize("has_ended_before", [False, True])
def test_a_process_ends_with_its_parent(has_ended_before):
    """Also where the parent ends between the fork and the call: no signal would come then."""
    done = python("-c", ORPHAN.format(waits=has_ended_before))
    assert done.stdout == f"{b''}{os.linesep}"
