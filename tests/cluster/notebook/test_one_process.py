"""A plain cell that would wait for other processes is told so before it blocks."""

import pytest

from tests.cluster.conftest import Notebook

JOIN = "dist.init_process_group('gloo', init_method='tcp://127.0.0.1:29511"
ONE_PROCESS = (
    "ClusterError: This kernel is one process, and init_process_group(world_size=2) would "
    "wait here for 1 more. With Cluster(2) and %%px the ranks already have a group, "
    "so begin the cell with %%px, and leave out init_process_group."
)
SPAWN = (
    "ClusterError: spawn starts new processes, and they cannot find {0}, which only this "
    "notebook has. distlab.spawn({0}, args, nprocs=2) sends it to processes that are just as "
    "new. Or use the ranks of a cluster, where cluster.run({0}) calls {0}(rank, world_size)."
)
REFUSED = {
    # the first cell that imports it
    f"import torch.distributed as dist\n{JOIN}', rank=0, world_size=2)": ONE_PROCESS,
    "dist.init_process_group('gloo', 'tcp://127.0.0.1:29511', None, 2, 0)": ONE_PROCESS,
    f"{JOIN}?rank=0&world_size=2')": ONE_PROCESS,
    f"def join():\n    {JOIN}', rank=0, world_size=2)\njoin()": ONE_PROCESS,
    "import os\nos.environ['WORLD_SIZE'] = '2'\ndist.init_process_group()": ONE_PROCESS,
    "import torch.multiprocessing as mp\ndef f(i): pass\nmp.spawn(f, nprocs=2)": SPAWN.format("f"),
    "mp.spawn(lambda i: 1, nprocs=2)": SPAWN.format("fn"),
}
OWN = """
import tempfile
from torch.distributed import init_process_group
def own(rank, world_size, path):
    dist.destroy_process_group()
    init_process_group('gloo', init_method=f'file://{path}', rank=rank, world_size=world_size)
    return dist.get_world_size()
print(cluster.run(own, tempfile.mktemp()))
"""
ALONE = "print(dist.get_world_size())\ndist.destroy_process_group()"
RIGHT = {
    (
        "os.environ.pop('WORLD_SIZE')\n"
        "dist.init_process_group("
        "'gloo', init_method='tcp://127.0.0.1:0', rank=0, world_size=1)\n"
        f"{ALONE}"
    ): "1",
    f"dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n{ALONE}": "1",
    "from torch.testing._internal.distributed.fake_pg import FakeStore\n"
    f"dist.init_process_group('fake', store=FakeStore(), rank=0, world_size=64)\n{ALONE}": "64",
    "mp.spawn(os.path.exists, nprocs=2)\nprint('spawned')": "spawned",
    "distlab.Cluster(2)\nNone": "2 ranks are ready (gloo).",
    f"cluster = distlab.Cluster.current{OWN}": "[2, 2]",
    (
        "import subprocess, sys\n"
        "script = 'import sys; from torch import distributed as dist; "
        "dist.init_process_group(init_method=sys.argv[1], '\n"
        "script += \"rank=1, world_size=2, backend='gloo'); dist.barrier()\"\n"
        "url = f'file://{tempfile.mktemp()}'\n"
        "other = subprocess.Popen([sys.executable, '-c', script, url])\n"
        "dist.init_process_group('gloo', init_method=url, rank=0, world_size=2)\n"
        "dist.barrier()\n"
        f"{ALONE}\n"
        "other.wait()\n"
        "None"
    ): "2",
    "dist.init_process_group('gloo', world_sizes=2)": (
        "TypeError: init_process_group() got an unexpected keyword argument 'world_sizes'"
    ),
}


pytestmark = pytest.mark.new_python  # which has not imported torch


@pytest.fixture(scope="module")
def plain_notebook(nothing_left):
    """A kernel without a cluster."""
    book = Notebook()
    book.run("%load_ext distlab\nimport distlab")
    yield book
    book.close()


def test_a_call_that_would_wait_for_nobody_is_refused(plain_notebook):
    """Before it blocks, whatever imports it; torch is not imported for that."""
    assert plain_notebook.text("import sys\nprint('torch' in sys.modules)").strip() == "False"
    for source, words in REFUSED.items():
        assert plain_notebook.text(source).strip() == words


def test_what_does_not_wait_for_nobody_is_left_alone(plain_notebook):
    """A world of one, a backend that does not wait, another process that has been started."""
    plain_notebook.run(
        "import os, torch.distributed as dist, torch.multiprocessing as mp\n"
        "os.environ['WORLD_SIZE'] = '2'"
    )
    for source, words in RIGHT.items():
        assert plain_notebook.text(source).strip() == words
