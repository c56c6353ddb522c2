"""In a terminal: what the ranks wrote, as text, and nothing of what a notebook shows meanwhile."""

from tests.processes import python

TYPED = """\
%load_ext distlab
import distlab
cluster = distlab.Cluster(2)
get_ipython().run_cell_magic("px", "", "import time; time.sleep(1.5); print('hello')")
exit
"""
IPYTHON = [
    "-m",
    "IPython",
    "--no-banner",
    "--colors=NoColor",
    "--no-confirm-exit",
    "--simple-prompt",
]


def test_what_ranks_wrote_is_shown_as_text(tmp_path):
    """The sorted form, once."""
    done = python(*IPYTHON, input=TYPED, variables={"IPYTHONDIR": str(tmp_path)})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("ranks 0-1: hello\n") == 1
    assert not [words for words in ("starting", "computing", "text/plain") if words in done.stdout]
