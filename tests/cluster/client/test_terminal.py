"""Outside of a notebook, in a script and in IPython's terminal: what the ranks wrote, as text, and no sign of life."""

import pytest

from tests.processes import python

SCRIPT = """\
import time
import distlab

def slowly(rank, world_size):
    time.sleep(1.5)
    print("hello")
    return rank

with distlab.Cluster(2) as cluster:
    print(cluster.run(slowly))
"""
CELL = """\
%load_ext distlab
import distlab
cluster = distlab.Cluster(2)
get_ipython().run_cell_magic("px", "", "import time; time.sleep(1.5); print('hello')")
cluster.stop()
exit
"""
IPYTHON = ["-m", "IPython", "--no-banner", "--colors=NoColor", "--no-confirm-exit", "--simple-prompt"]


@pytest.mark.parametrize(("command", "typed"), [(["-c", SCRIPT], ""), (IPYTHON, CELL)], ids=["script", "ipython"])
def test_what_ranks_wrote_is_shown_as_text(command, typed, tmp_path):
    """The sorted form, once, and nothing of what a notebook shows meanwhile."""
    done = python(*command, input=typed, variables={"IPYTHONDIR": str(tmp_path)})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("ranks 0-1: hello\n") == 1
    assert not [words for words in ("starting", "computes", "text/plain") if words in done.stdout]
