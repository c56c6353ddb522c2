"""Jobs that hang on purpose: what is shown of their stacks, and how they end."""

import http.server
import subprocess
import sys
import threading
import time

import psutil

from distlab_course import jobs
from distlab_course.terminal import free_port

STACK = """\
Stack (most recent call first):
  File "/opt/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3252 in f
  File "/opt/lib/python3.11/site-packages/torch/distributed/c10d_logger.py", line 83 in wrapper
  File "/home/ada/a job/train.py", line 15 in average
"""
PAGE = f"""<style> body {{ Thread: 1 }} </style>
    <h2>Rank 0: http://node1:38429/handler/dump_traceback?</h2>
            <pre>Current thread 0x00007f (most recent call first):
  <no Python frame>

Thread 0x00008f (most recent call first):
{STACK.partition(chr(10))[2]}</pre>
"""


def test_stacks_are_shown_as_on_every_machine():
    """Without folders, numbers of torch's lines, and what torch logs with."""
    assert (
        jobs.without_folders(STACK)
        == """\
Stack (most recent call first):
  File "torch/distributed/distributed_c10d.py", in f
  File "train.py", line 15 in average
"""
    )


def test_a_page_of_stacks_in_words():
    """Without tags, styles and addresses."""
    assert (
        jobs.stacks_on(PAGE)
        == """\
Rank 0: http://.../handler/dump_traceback?
Current thread 0x00007f (most recent call first):
  <no Python frame>
Thread 0x00008f (most recent call first):
  File "torch/distributed/distributed_c10d.py", in f
  File "train.py", line 15 in average"""
    )


def test_a_job_ends_with_whoever_reads():
    """Standard input ends when the notebook's kernel does; then nothing of the job is left."""
    sleeper = "import subprocess, sys; subprocess.run(['sleep', '600'])"
    command = [sys.executable, "-m", "distlab_course.guarded_job", sys.executable, "-c", sleeper]
    guard = subprocess.Popen(command, stdin=subprocess.PIPE)
    processes = []
    while len(processes) < 2:  # the command, and what it has started
        assert guard.poll() is None
        processes = psutil.Process(guard.pid).children(recursive=True)
        time.sleep(0.01)
    guard.communicate()
    _, alive = psutil.wait_procs(processes, timeout=10)
    assert alive == []
    assert guard.returncode != 0


def test_a_job_that_ends_by_itself():
    """Its exit status is that of the guard."""
    command = [sys.executable, "-m", "distlab_course.guarded_job", sys.executable, "-c", "exit(7)"]
    guard = subprocess.Popen(command, stdin=subprocess.PIPE)
    assert guard.wait(timeout=30) == 7
    guard.communicate()


def test_a_page_is_read_as_soon_as_its_server_listens(monkeypatch):
    """The server is a process of its own, and may begin later than the job gets stuck."""
    monkeypatch.setattr(jobs, "PAUSE", 0.05)

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_error(500, "no tables")

        def log_message(self, *_):
            pass

    def serve_later():
        time.sleep(0.3)
        with http.server.HTTPServer(("localhost", port), Page) as server:
            server.handle_request()

    port = free_port()
    server = threading.Thread(target=serve_later)
    server.start()
    assert "no tables" in jobs.read_page(port, "stacks")
    server.join()
