"""A cell's way: the files of distlab that run for one warm %%px cell, on both sides."""

import ast
import re
from pathlib import Path

MOST_FILES = 12
CONTRIBUTING = Path(__file__).parents[3] / "CONTRIBUTING.md"
NOTE = """
import os, sys, threading
import distlab

_folder, _seen = distlab.__path__[0] + os.sep, {}

def _note(frame, event, argument):
    name = frame.f_code.co_filename
    if event == "call" and name.startswith(_folder):
        _seen.setdefault(name[len(_folder):].replace(os.sep, "/"))

_everywhere = getattr(threading, "setprofile_all_threads", None) or sys.setprofile
"""
CELL = "tensor = torch.ones(1) * rank; dist.all_reduce(tensor); print(tensor.item())"


def files(notebook, warm_up):
    """The files that run code in the kernel and on rank 0, by their first call."""
    run = f"get_ipython().run_cell_magic('px', '', {CELL!r})"
    notebook.run("\n".join([run] * warm_up))
    notebook.run(f"%%px\n{NOTE}\n_everywhere(_note)")
    notebook.run(f"{NOTE}\nthreading.setprofile(_note)")
    notebook.run(f"_everywhere(_note)\n{run}\n_everywhere(None)")
    assert notebook.status == "ok"
    notebook.run("%%px\n_everywhere(None)")
    in_kernel = notebook.text("threading.setprofile(None); print(list(_seen))")
    on_rank = notebook.text("print(cluster.pull('_seen')[0].keys())")
    return ast.literal_eval(in_kernel.strip()), ast.literal_eval(re.search(r"\[.*\]", on_rank)[0])


def test_a_warm_cell_passes_few_files(notebook):
    """At most twelve, and CONTRIBUTING lists them."""
    in_kernel, on_rank = files(notebook, warm_up=3)
    way = list(dict.fromkeys([*in_kernel, *on_rank]))
    assert len(way) <= MOST_FILES
    section = CONTRIBUTING.read_text(encoding="utf-8").partition("## A cell's way")[2]
    listed = [line.split()[0] for line in section.split("```")[1].strip().splitlines()]
    assert sorted(listed) == sorted(way)
