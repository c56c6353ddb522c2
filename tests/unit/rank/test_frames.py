"""Whether a frame is code of a cell, looked at from inside of what an engine would have called."""

import sys

import pytest

from distlab.compat import ipython
from distlab.rank import frames

RUNS_CELL = "def run_code(code, names):\n    exec(code, names)\n"
LOOP_STEP = "def _run(callback):\n    return callback()\n"


def function(place, text):
    """A function with the module and the name of one of a library's."""
    module, name = place
    names = {"__name__": module}
    exec(compile(text, f"/usr/lib/{name}.py", "exec"), names)
    return names[name]


@pytest.mark.parametrize(("has_cell", "executes"), [(True, True), (False, False)])
def test_a_loop_that_a_cell_runs_is_the_cells(has_cell, executes):
    """Also between two of its steps, as with nest_asyncio; not so the loop of the engine."""
    step = function(ipython.LOOP_STEP, LOOP_STEP)
    names = {"step": step, "look": lambda: frames.is_executing(sys._getframe(1))}
    code = compile("found = step(look)", "<cell>", "exec")
    if has_cell:
        function(ipython.RUNS_CELL, RUNS_CELL)(code, names)
    else:
        exec(code, names)
    assert names["found"] == executes
