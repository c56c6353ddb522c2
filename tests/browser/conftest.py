"""A real JupyterLab on a free port and a real Chromium; the tests end what they start."""

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import uuid
from pathlib import Path

import nbformat
import psutil
import pytest
from nbformat.v4 import new_notebook

from tests.processes import marked, wait_until_gone
from tests.tool import ROOT

# for what a browser, a server or a kernel does on a busy machine; it takes seconds
PATIENCE_SECONDS = 240
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


class Lab:
    """A running JupyterLab: its address, its token, the directory it serves, and its end."""

    def __init__(self, folder: Path):
        self.root = folder / "project"
        shutil.copytree(ROOT / "notebooks", self.root / "notebooks")
        shutil.copytree(ROOT / "figs", self.root / "figs")
        self.token = secrets.token_hex(8)
        self.mark = f"lab-test-{uuid.uuid4()}"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.log = folder / "lab.log"
        variables = {**os.environ, "HOME": str(folder), "DISTLAB_TEST_MARK": self.mark}
        options = [
            "--no-browser",
            "--allow-root",
            "--ip=127.0.0.1",
            f"--port={self.port}",
            "--port-retries=0",
        ]
        options += [f"--ServerApp.root_dir={self.root}", f"--IdentityProvider.token={self.token}"]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "jupyterlab", *options, "--expose-app-in-browser"],
                cwd=self.root, env=variables, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def address(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}/{path}?token={self.token}"

    def write(self, name: str, cells) -> None:
        """A notebook of these cells beside the lessons; JupyterLab does not trust its outputs."""
        kernel = {
            "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}
        }
        nbformat.write(
            new_notebook(cells=[*cells], metadata=kernel), self.root / "notebooks" / name
        )

    def wait_until_up(self) -> None:
        """Return when the server answers; fail with its log when it ended or takes too long."""
        end = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < end and self.process.poll() is None:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(self.address("api/status"), timeout=2).close()
                return
            time.sleep(0.1)
        raise RuntimeError(f"JupyterLab did not start:\n{self.log.read_text()[-3000:]}")

    def stop(self) -> list[psutil.Process]:
        """End the server as Ctrl-C does, and return the processes that it left behind."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        return wait_until_gone(lambda: marked("DISTLAB_TEST_MARK", self.mark), 60)


@pytest.fixture(scope="session")
def chromium():
    """The path of an installed Chromium; without one the browser's tests are skipped."""
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip("no Chromium is installed: apt-get install chromium, or run .ci/run as root")
    return path


@pytest.fixture
def lab(chromium, tmp_path):
    """JupyterLab on a copy of the course; whatever a failed test left running is killed."""
    server = Lab(tmp_path)
    try:
        server.wait_until_up()
        yield server
    finally:
        for process in server.stop():
            process.kill()


@pytest.fixture
def page(chromium, lab):
    """A page of Chromium that remembers what it requested and what its console complained about."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, headless=True)
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(PATIENCE_SECONDS * 1000)
        page.requested, page.complaints = [], []
        page.on("request", lambda request: page.requested.append(request.url))
        page.on("websocket", lambda socket: page.requested.append(socket.url))
        page.on(
            "console",
            lambda message: (
                page.complaints.append(message.text) if message.type == "error" else None
            ),
        )
        page.on("pageerror", lambda error: page.complaints.append(str(error)))
        try:
            yield page
        finally:
            browser.close()
