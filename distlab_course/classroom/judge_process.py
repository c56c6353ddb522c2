"""Processes of `judge`, as the process sees them that marks: started, asked, and ended.

Called by `marking`, in a thread for each judge.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from distlab_course.classroom.judge import Decision, References
from distlab_course.classroom.signing import is_signed
from distlab_course.piped import pipes_of

JUDGE = str(Path(__file__).with_name("judge.py"))
VERDICT_SECONDS = 300.0  # for one exercise; a judge gives up earlier, unless it is harmed
NO_VERDICT = "{}: the process that checks it ended, or gave no verdict for {:.0f} s."


class Judge:
    """Decides with one process of `judge.py` after the other, each started when it is needed."""

    def __init__(self) -> None:
        self._process: JudgeProcess | None = None
        self._numbers = itertools.count()

    def decide(self, order: dict[str, Any], references: References) -> dict[str, Decision]:
        """What it says about each exercise of a notebook; a process gets each reference once.

        When a process is lost, the exercise that it was at has not passed, and the next process
        continues with those after it.
        """
        found: dict[str, Decision] = {}
        while left := [name for name in order["asked"] if name not in found]:
            number = next(self._numbers)
            try:
                if self._process is None:
                    self._process = JudgeProcess.start()
                process = self._process
                process.send({**order, "asked": left, "number": number}, references)
                for name in left:
                    found[name] = process.read_verdict(number, name)
            except (OSError, EOFError):
                self.end()
                lost = next(name for name in left if name not in found)
                found[lost] = Decision(False, NO_VERDICT.format(lost, VERDICT_SECONDS))
        return found

    def kill(self) -> None:
        """End its process at once."""
        if self._process is not None:
            self._process.kill()

    def end(self) -> None:
        """End its process; a runner and its ranks end when that is gone."""
        if self._process is not None:
            self._process.end()
            self._process = None


class JudgeProcess:
    """A running process of `judge.py`."""

    def __init__(self, process: subprocess.Popen[str], key: bytes):
        self._process = process
        self._stdin, self._stdout = pipes_of(process)
        self._key = key
        self._sent: set[str] = set()  # names of the references that it has

    @classmethod
    def start(cls) -> JudgeProcess:
        """Start a process, and give it the key with which it signs."""
        process = subprocess.Popen(
            # by its path, so that no file of a student's folder is imported
            [sys.executable, JUDGE],
            start_new_session=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started = cls(process, key=secrets.token_bytes(32))
        started._stdin.write(f"{started._key.hex()}\n")
        return started

    def send(self, order: dict[str, Any], references: References) -> None:
        """Send an order, with the references that it needs and that the process does not have."""
        new = {}
        for name in order["asked"]:
            if name in references and name not in self._sent:
                new[name] = references[name]
        self._stdin.write(json.dumps({**order, "references": new}) + "\n")
        self._stdin.flush()
        self._sent.update(new)

    def read_verdict(self, number: int, name: str) -> Decision:
        """The next line that the process has signed, for this exercise of this order.

        Raises:
            EOFError: none comes in time.
        """
        limit = threading.Timer(VERDICT_SECONDS, self.kill)
        limit.start()
        try:
            while line := self._stdout.readline():
                with contextlib.suppress(ValueError, TypeError):  # a line of somebody else's
                    text, signed = json.loads(line)
                    if not is_signed(self._key, text, signed):
                        continue
                    its_number, its_name, *decided = json.loads(text)
                    if its_number == number and its_name == name:
                        return Decision(*decided)
            raise EOFError
        finally:
            limit.cancel()

    def kill(self) -> None:
        """End it at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def end(self) -> None:
        """Let it end, and end it if it does not."""
        with contextlib.suppress(OSError):
            self._stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(VERDICT_SECONDS / 10)
        self.kill()
        self._stdout.close()
        self._process.wait()
