"""A `runner` as another process sees it: started, asked, and ended.

Called by `judge`, which has answers called, and by `marking`, which has references called.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from distlab.checking.judging import AnswerFailed
from distlab_course.classroom.runner import give_up_rights
from distlab_course.piped import pipes_of

RUNNER = str(Path(__file__).with_name("runner.py"))
REPLY_SECONDS = 200.0  # for one reply of a runner, which gives up earlier unless it is harmed
END_SECONDS = 30.0  # for one that has replied to everything
MOST_BYTES = 1 << 30  # of one reply


class RunnerLost(Exception):
    """A runner ended, or does not reply."""


class RunnerProcess:
    """A process that calls a student's answers, or references; see runner.py."""

    def __init__(self, process: subprocess.Popen[bytes]):
        self._process = process
        self._stdin, self._stdout = pipes_of(process)
        self._pending = bytearray()  # of the reply that is arriving

    @classmethod
    def start(cls, folder: str) -> RunnerProcess:
        """Start a runner in a folder."""
        process = subprocess.Popen(
            # by its path, so that no file of a student's folder is imported
            [sys.executable, RUNNER],
            cwd=folder,
            start_new_session=True,
            preexec_fn=give_up_rights,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        return cls(process)

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """The reply to a question.

        Raises:
            RunnerLost: there is none.
            AnswerFailed: the call did not end well.
        """
        try:
            self._stdin.write(json.dumps(question).encode() + b"\n")
            reply = json.loads(self._line())
            if "failed" in reply:
                kind, message, stuck = reply["failed"]
                raise AnswerFailed(str(kind), str(message), bool(stuck))
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise RunnerLost(str(error)) from None
        return reply

    def _line(self) -> bytes:
        """The next line that the process writes."""
        until = time.monotonic() + REPLY_SECONDS
        while True:
            line, end, rest = self._pending.partition(b"\n")
            if end:
                self._pending = rest
                return bytes(line)
            remaining = max(0.0, until - time.monotonic())
            ready, _, _ = select.select([self._stdout], [], [], remaining)
            arrived = b""
            if ready:
                arrived = self._stdout.read(1 << 20)
            if not arrived or len(self._pending) > MOST_BYTES:
                raise RunnerLost("no reply")
            self._pending += arrived

    def end(self) -> None:
        """End it; its ranks end when it is gone."""
        with contextlib.suppress(OSError):
            self._stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._stdout.close()
        self._process.wait()
