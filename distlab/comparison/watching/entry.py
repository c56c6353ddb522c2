"""What is called on a rank for a comparison.

Runs on every rank, called by compare.py, magics.py and, on ranks of a test, in_test.py. The
notebook's kernel imports it, to send these functions, and has no torch: what needs torch is
imported inside of them.
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable, Mapping
from typing import Any

from distlab.comparison.records import RankRecord, WatchOptions
from distlab.wire.namespace import bind_rank_globals


def watch_program(
    rank: int,
    world_size: int,
    train: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    options: WatchOptions,
) -> RankRecord:
    """Call train(rank, world_size, *args, **kwargs), and return what was seen of it.

    What it prints is shown only if it fails; warnings are shown by the plain runs.

    Runs on: every rank of a world that has just been built.
    """
    from distlab.comparison.watching import watch
    from distlab.comparison.watching.surroundings import own_surroundings

    bind_rank_globals(train, rank=rank, world_size=world_size)
    printed = io.StringIO()
    warned = io.StringIO()
    is_plain = options.perturbation is None and not options.detailed
    with own_surroundings(rank), contextlib.ExitStack() as kept:
        kept.enter_context(contextlib.redirect_stdout(printed))
        if not is_plain:
            kept.enter_context(contextlib.redirect_stderr(warned))
        try:
            return watch.watched(rank, world_size, train, args, dict(kwargs), options)
        except BaseException:
            kept.close()
            sys.stdout.write(printed.getvalue())
            sys.stderr.write(warned.getvalue())
            raise


def begin_watching() -> None:
    """Look at what the next cell does on this rank. Runs on: a rank."""
    from distlab.comparison.watching import watch

    watch.begin_watch(WatchOptions(detailed=True))


def end_watching() -> RankRecord:
    """End that, and return what was seen; an empty record if nothing looked. Runs on: a rank."""
    from distlab.comparison.watching import watch

    return watch.end_watch()
