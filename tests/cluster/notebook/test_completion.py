"""What a person who types is told: completion, Shift-Tab, `name?`, and advice on errors."""

import pytest

from tests.cluster.conftest import Notebook

RANKS_OF_NOTEBOOK = 2
DEFINED = "%%px\ndef my_function(x):\n    'What it is for.'\n\nmine = torch.ones(3)"


@pytest.fixture(autouse=True)
def defined(notebook):
    """A function and a tensor that only the ranks have."""
    notebook.run(DEFINED)


COMPLETED = {
    "%%px\nprint(world_s": ["world_size"],
    "%%px\ndist.all_red": ["all_reduce", "all_reduce_coalesced"],
    "%%px\nmine.resize_a": ["resize_as", "resize_as_", "resize_as_sparse_"],
    "%%px --targets 0\nmy_f": ["my_function"],
    "%px my_f": ["my_function"],
    "%%px --tim": ["--timeout"],
    "%%px --trace --ch": ["--check"],
    "%%px --co": ["--compare"],
    "distlab.check('ring_all": ["ring_all_reduce"],
    'distlab.hint("largest_o': ["largest_on"],
    "world_s": [],
    "%%px\nmine.no_such": [],
    "%%px\nno_such.a": [],
}


@pytest.mark.parametrize(("typed", "offered"), COMPLETED.items(), ids=range(len(COMPLETED)))
def test_completion_knows_the_ranks(notebook, typed, offered):
    """The ranks' names and attributes, the options of %%px, exercises in a check."""
    reply = notebook.client.complete(typed, len(typed), reply=True, timeout=60)["content"]
    assert reply["matches"] == offered
    assert offered == [] or offered[0].startswith(
        typed[reply["cursor_start"] : reply["cursor_end"]]
    )


def test_completion_keeps_pythons_words(notebook):
    """A word of Python, and names of the notebook, are still offered in a %%px cell."""
    notebook.run("rapid = 1")
    matches = notebook.client.complete("%%px\nra", 7, reply=True, timeout=60)["content"]["matches"]
    assert matches[0] == "rank"
    assert {"raise", "range", "rapid"} <= set(matches)


def test_shift_tab_and_a_question_mark(notebook):
    """Signatures of what only the ranks have; `name?` is an output, alike on all ranks."""
    ask = notebook.client.inspect
    found = ask("%%px\nmy_function", 16, reply=True, timeout=60)["content"]
    assert "What it is for." in found["data"]["text/plain"]
    assert not ask("my_function", 11, reply=True, timeout=60)["content"]["found"]
    assert not ask("%%px\nno_such", 12, reply=True, timeout=60)["content"]["found"]
    shown = notebook.text("%%px\nmy_function?").splitlines()
    assert [" ".join(line.split()) for line in shown] == [
        "ranks 0-1: Signature: my_function(x)",
        "Docstring: What it is for.",
        "Type: function",
    ]


ERRORS = {
    "print(rank)": "rank is a variable on the ranks, so begin the cell with %%px.",
    "mine + 1": "mine is a variable on the ranks, so begin the cell with %%px, "
    'or bring it here with cluster.pull("mine").',
    "no_such + 1": "",
}


@pytest.mark.parametrize(("source", "advice"), ERRORS.items())
def test_a_name_error_says_where_the_name_is(notebook, source, advice):
    """After the error itself, if the ranks have that name."""
    error, *more = notebook.run(source)
    assert error["ename"] == "NameError"
    assert "".join(one["text"] for one in more).strip() == advice


KEYS = {
    '%%px\noptions["le': ["length"],
    "%%px\noptions['": ["inner", "length"],
    "%px options['inner']['": [],
    "%%px\nmine['": [],
}


@pytest.mark.parametrize(("code", "keys"), KEYS.items())
def test_the_keys_of_a_dict_are_offered(notebook, code, keys):
    """Of rank 0's, and nothing else; not below a key, which would have to be evaluated."""
    notebook.run("%%px\noptions = {'length': 1, 'inner': {'a': 2}, 3: 4}")
    notebook.client.complete(code, len(code))
    reply = notebook.client.get_shell_msg(timeout=60)["content"]
    if keys:
        assert reply["matches"] == keys
    else:
        assert not {"length", "inner", "a"} & set(reply["matches"])


@pytest.mark.parametrize("asked", ["%%px --help", "%px -h", "%%px --help\n"])
def test_px_has_help(notebook, asked):
    """Options and an example, where IPython would refuse a cell magic without a cell."""
    reply = notebook.client.execute_interactive(asked, timeout=60, output_hook=lambda _: None)[
        "content"
    ]
    (page,) = reply["payload"]
    for words in ("--targets", "--timeout", "dist.all_reduce(tensor)"):
        assert words in page["data"]["text/plain"]


ADVISED = {
    "%%px\ninput('name: ')": "Ranks have no keyboard. Call input() in a cell without %%px",
    "cluster.run(lambda: 3)": (
        "cluster.run(fn, *args) calls fn(rank, world_size, *args): the function's first two"
    ),
    "cluster.run(lambda a, b, c: 3)": (
        "cluster.run(fn, *args) calls fn(rank, world_size, *args): the function's first"
    ),
    (
        "%%px\nopen('/dev/full', 'w').write('x' * 10**6)"
    ): "A file system is full. It is /dev/shm if a DataLoader has workers",
    ("def of_notebook(rank, n):\n    return cluster.n\n\ncluster.run(of_notebook)"): (
        "(TypeError: a Cluster stays in the notebook; a rank has `rank` and `world_size`). "
        "It uses cluster, which is the notebook's."
    ),
    (
        "import threading\nmy_lock = threading.Lock()\ncluster.run(lambda rank, n: my_lock)"
    ): "It uses my_lock, which is",
}


@pytest.mark.parametrize(("source", "words"), ADVISED.items())
def test_what_does_not_work_on_ranks_has_advice(notebook, source, words):
    assert words in notebook.text(source)


def test_a_mistake_in_the_learners_own_call_has_none(notebook):
    """The function itself had its rank and world size."""
    source = "def helper(x):\n    return x\n\ncluster.run(lambda rank, n: helper())"
    assert "cluster.run(fn, *args) calls" not in notebook.text(source)


HINT = (
    "torch.distributed works on the ranks, but this cell ran in the notebook. "
    "Begin the cell with %%px."
)
FORGOTTEN = [
    "dist.all_reduce(torch.ones(1))",
    "dist.get_rank()",
    "dist.barrier()",
    "dist.new_group([0, 1])",
    "dist.init_process_group()",
    "dist.init_device_mesh('cpu', (2,))",
    "dist.destroy_process_group()",
    "dist.get_node_local_rank()",
    "torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))",
    "dist._functional_collectives.all_reduce(torch.ones(1), 'sum', dist.group.WORLD)",
    "__import__('torch.distributed.rpc', fromlist=['rpc']).rpc_sync('worker', print)",
]


@pytest.mark.parametrize("call", FORGOTTEN)
def test_a_forgotten_px_is_recognised_in_what_torch_raises(notebook, call):
    """Any call of torch.distributed in the notebook: its line, torch's words and the hint."""
    notebook.run(
        "import torch, torch.distributed as dist, torch.distributed._functional_collectives\n"
        "step = None"
    )
    error, more = notebook.run(f"def step():\n    {call}\n\nstep()")
    shown = "\n".join(error["traceback"])
    assert more["text"].strip() == HINT
    assert "torch/distributed" not in shown
    assert "step()" in shown
    assert error["evalue"] in shown


NOT_FORGOTTEN = {
    "raise ValueError('Default process group has not been read')": "ValueError",
    "assert not 1": "AssertionError",
    "distlab.Cluster(0)": "ArgumentError",
    "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
    "try:\n    dist.all_reduce(torch.ones(1), group=dist.ProcessGroup(0, 1))\n"
    "finally:\n    dist.destroy_process_group()": "ValueError",
}


@pytest.mark.parametrize(("source", "kind"), NOT_FORGOTTEN.items())
def test_other_errors_are_shown_as_they_are(notebook, source, kind):
    """Errors of the same kinds that have another cause get no hint."""
    notebook.run("import torch, torch.distributed as dist")
    (error,) = notebook.run(source)
    assert error["ename"] == kind


@pytest.mark.new_python
@pytest.mark.parametrize("first", ["%load_ext distlab", "import distlab"])
def test_a_forgotten_px_without_a_cluster(nothing_left, first):
    """The hint says how to start the ranks, too; importing distlab is enough for it."""
    book = Notebook()
    book.run(f"{first}\nimport torch.distributed as dist")
    _, name = book.run("rank")
    assert name["text"].strip() == "rank is a variable on the ranks, so begin the cell with %%px."
    _, more = book.run("dist.get_world_size()")
    assert more["text"].strip() == f"{HINT} Start the ranks first: cluster = distlab.Cluster(4)."
    book.close(now=True)


def test_a_figure_that_a_rank_draws_has_its_rank(notebook):
    """Above each image stands whose it is."""
    source = (
        "%%px\n"
        "import matplotlib.pyplot as plt\n"
        "plt.plot([0, rank])\n"
        "None\n"
        "%matplotlib inline\n"
        "plt.show()"
    )
    shown = notebook.run(source)
    assert [one["data"]["text/plain"].split(":")[0] for one in shown] == [
        "rank 0",
        "rank 0",
        "rank 1",
        "rank 1",
    ]
    assert ["image/png" in one["data"] for one in shown] == [False, True, False, True]


def test_one_line_is_line_1_and_a_sleep_is_no_computation(notebook):
    """%px counts its line as the first; a rank that sleeps is said to sleep."""
    assert "line 1   1/0" in notebook.text("%px 1/0")
    assert "ranks 0-1  sleeping  line 3" in notebook.text(
        "%%px --timeout 1\nimport time\ntime.sleep(60)"
    )


def test_a_progress_bar_needs_no_widgets(notebook):
    """tqdm.auto does not warn."""
    assert "Warning" not in notebook.text(
        "%%px\nfrom tqdm.auto import tqdm\nfor _ in tqdm(range(2)):\n    pass"
    )


def test_a_forked_process_is_no_reason_to_warn(notebook):
    """As Python 3.12 does of any process with threads; a warning of the program's own is shown."""
    code = (
        "%%px\nimport os, warnings\n"
        "warnings.simplefilter('default', append=True)\n"
        "child = os.fork()\n"
        "if child == 0:\n    os._exit(0)\n"
        "os.waitpid(child, 0)\n"
        "warnings.warn('This process (pid=1) is multi-threaded, use of fork() may lead to '\n"
        "    'deadlocks in the child.', DeprecationWarning)\n"
        "warnings.warn('This process is slow')"
    )
    shown = notebook.text(code)
    assert "multi-threaded" not in shown
    assert "This process is slow" in shown
