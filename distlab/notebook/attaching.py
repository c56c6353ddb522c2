"""The start of a cluster on engines that others started: they are asked where and what they are.

Runs on the notebook's kernel, called by starting.py; attached.py has found the engines.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from distlab.compat import ipyparallel as compat
from distlab.errors import HostError
from distlab.launch import this_host
from distlab.notebook import hosts
from distlab.notebook.launcher import Connected, Launcher
from distlab.wire.rendezvous import address_towards
from distlab.words import grouped, rank_list

ATTACH_SECONDS = 10.0  # for engines that run already to report where they are
WHERE_AND_PYTHON = (
    "__import__('socket').gethostname(), '%d.%d' % __import__('sys').version_info[:2]"
)


def connect_to_attached(
    launcher: Launcher, client: Any, cleanup: contextlib.ExitStack
) -> Connected:
    """Use engines that others started, which go on when this cluster ends."""
    cleanup.callback(client.close)
    again = launcher.plan.again
    engines = client.direct_view("all")
    try:
        # First, what any Python understands: a function travels as code, which another version of
        # Python would not survive.
        found = engines.apply_async(eval, WHERE_AND_PYTHON).get(timeout=ATTACH_SECONDS)
        names = [name for name, _ in found]
        ours = this_host.installed()
        _check_versions(names, [ours | {this_host.PYTHON: python} for _, python in found], again)
        theirs = engines.apply_async(this_host.installed).get(timeout=ATTACH_SECONDS)
        _check_versions(names, theirs, again)
    except HostError:
        raise
    except Exception as error:  # an engine may raise anything, as where distlab is not installed
        advice = "Each engine needs distlab, as installed here, and must be idle."
        raise HostError(f"The engines do not answer: {error}. {advice}") from error
    launcher.host_names = tuple(dict.fromkeys(names))
    return Connected(
        client,
        address=address_towards(compat.address_of_controller(client)),
        threads=launcher.plan.threads,
        host_of_rank=tuple(launcher.host_names.index(name) for name in names),
    )


def _check_versions(
    names: Sequence[str], versions: Sequence[Mapping[str, str]], again: str
) -> None:
    """Raise HostError if some engines have other versions than this notebook.

    Args:
        names: of each engine's host.
        versions: what is installed there, for each engine.
        again: what to do when the versions are the same.
    """
    troubles = []
    for rank, theirs in enumerate(versions):
        trouble = hosts.differences(theirs)
        if trouble:
            troubles.append((trouble, rank))
    if not troubles:
        return
    sentences = ["These engines cannot be used."]
    for trouble, ranks in grouped(troubles).items():
        where = ", ".join(dict.fromkeys(names[rank] for rank in ranks))
        sentences.append(f"The Python of {rank_list(ranks)} on {where} {trouble}.")
    sentences.append(f"They must be the same: install them there, {again}.")
    raise HostError(" ".join(sentences))
