"""Small broken programs, each with its sentence; without distlab most hang, or lie.

The programs are in the files beside this one, by topic. `ZOO` holds (number of ranks, program,
error, sentence, options of Cluster.run). A program runs on every rank.
"""

import functools
import inspect
import os
import re
import tempfile

import torch
import torch.distributed as dist

ZOO = []


def breaks(*worlds, on=None, error="DeadlockError", since=(), **options):
    """The decorated program breaks on so many ranks; its docstring is the sentence.

    In it {n} is the number of ranks, and | a new line; its own lines are joined. Only the ranks
    `on` run it; left out, all of them. `since` is a version of torch and the sentence from then on.
    """

    def note(program):
        given = only(on, program)
        words = since[1] if since and torch.__version__ >= since[0] else program.__doc__
        words = re.sub(r"\s*\n\s*", " ", words.strip())
        for n in worlds:
            ZOO.append((n, given, error, words.replace("{n}", str(n)).replace("|", "\n"), options))
        return given

    return note


def only(ranks, program):
    """The program for every rank, which some ranks run, or all where `ranks` is None."""

    @functools.wraps(program)
    def of_some(rank, n):
        if rank in ranks:
            program(rank, n)

    return program if ranks is None else of_some


def right_programs(module):
    """The correct programs of a module; each returns True on every rank.

    Nothing may refuse one, or call it stuck.
    """
    broken = [program for _, program, *_ in ZOO]
    ours = [
        one
        for _, one in inspect.getmembers(module, inspect.isfunction)
        if one.__module__ == module.__name__
    ]
    return [
        one
        for one in ours
        if [*inspect.signature(one).parameters] == ["rank", "n"] and one not in broken
    ]


def folder_of_cluster():
    """A folder that all ranks of a cluster know, and that goes with it."""
    return os.environ["IPP_PROFILE_DIR"]


def new_folder():
    """An empty one in it."""
    return tempfile.mkdtemp(dir=folder_of_cluster())


def ones(count=2, dtype=torch.float32):
    return torch.ones(count, dtype=dtype)


def message(rank, sent, received, tags=(0, 0)):
    """Rank 0 sends a tensor, and rank 1 receives into one."""
    if rank == 0:
        dist.send(sent, dst=1, tag=tags[0])
    elif rank == 1:
        dist.recv(received, src=0, tag=tags[1])
