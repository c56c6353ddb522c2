"""A rank's debugger counts lines as the notebook shows the cell."""

import subprocess
import sys

from distlab.notebook.magics import with_first_line

CELL = """def step(x):
    y = x + 1
    z = y + 1
    return z

if rank == 1:
    breakpoint()
print(step(rank))
"""
# what a rank does with a cell, and a person who types one line after the other
RANK = """
import ast, linecache, os, sys
from distlab.debugger import console
from distlab.rank.this_rank import THIS_RANK
THIS_RANK.rank = 1
os.environ["RANK"] = "7"  # a learner may have changed it
cell, *lines = sys.argv[1:]
def send(answer):
    line = lines.pop(0)
    print(answer.asks + line)
    console.CONSOLE.receive(line + "\\n")
console.CONSOLE.send, console.CONSOLE.is_open = send, True
sys.breakpointhook = console.pause
file = f"/tmp/a folder/ipykernel_{os.getpid()}/123.py"
linecache.cache[file] = len(cell), None, cell.splitlines(True), file
names = {"rank": 1, "__name__": "__main__"}
for statement in ast.parse(cell).body:
    exec(compile(ast.Module([statement], []), file, "exec"), names)
"""
SHOWN = """> line 8
-> breakpoint()
(rank 1) b 5
Breakpoint 1 at line 5
(rank 1) tbreak 3
Breakpoint 2 at line 3
(rank 1) c
Deleted breakpoint 2 at line 3
> line 3 in step
-> y = x + 1
(rank 1) l
  1  \t# %%px --timeout 60
  2  \tdef step(x):
  3  ->\t    y = x + 1
  4  \t    z = y + 1
  5 B\t    return z
  6  \t
  7  \tif rank == 1:
  8  \t    breakpoint()
  9  \tprint(step(rank))
[EOF]
(rank 1) until 4
> line 4 in step
-> z = y + 1
(rank 1) b
Num Type         Disp Enb   Where
1   breakpoint   keep yes   at line 5
(rank 1) w
  line 9
-> print(step(rank))
> line 4 in step
-> z = y + 1
(rank 1) rank
1
(rank 1) rank == 2
False
(rank 1) c
> line 5 in step
-> return z
(rank 1) c
3
"""


def said(*lines):
    """What a rank in the cell writes, and what is typed to it."""
    command = [sys.executable, "-c", RANK, with_first_line("%%px --timeout 60", CELL), *lines]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    return done.stdout


def test_every_command_counts_lines_as_the_notebook_does():
    """Where it stops, `l`, `b`, `tbreak`, `until`, `w`; and `rank` is the variable."""
    typed = [line.partition(") ")[2] for line in SHOWN.splitlines() if line.startswith("(rank 1) ")]
    assert said(*typed) == SHOWN


def test_help_lists_the_command_that_the_notebook_takes():
    shown = said("help", "help rank", "c")
    assert " rank " in shown.partition("Documented commands")[2].replace("\n", " ")
    assert "Go to the debugger of another rank that has also stopped." in shown
