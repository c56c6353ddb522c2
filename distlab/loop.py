"""A loop for the asynchronous work of ipyparallel's launchers, which the notebook's own thread waits for.

Runs on the notebook's kernel, called by processes.py.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable
from typing import Any

SECONDS = 5.0  # for the thread to end


class Loop:
    """An asyncio loop of its own, in a thread of its own, for ipyparallel's launchers."""

    def __init__(self) -> None:
        started: concurrent.futures.Future[Any] = concurrent.futures.Future()

        async def serve() -> None:
            ended = asyncio.Event()
            started.set_result((asyncio.get_running_loop(), ended))
            await ended.wait()

        # asyncio.run cancels what is left, and closes the loop and its descriptors
        self._thread = threading.Thread(target=lambda: asyncio.run(serve()), name="distlab-launcher", daemon=True)
        self._thread.start()
        self._loop, self._ended = started.result()

    def run(self, work: Any, check: Callable[[], None] = lambda: None) -> Any:
        """Do asynchronous work; `check` may raise meanwhile."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        while not concurrent.futures.wait([future], timeout=0.1).done:
            check()
        return future.result()

    def end(self) -> None:
        """End the loop and its thread."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(SECONDS)
