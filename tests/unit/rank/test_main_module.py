"""A program as `__main__` of a process that lives on: what it finds when it ends.

Runs in a process of its own, started by pytest, which runs one program after the other.
"""

import subprocess
import sys
import textwrap

RUN = """\
import os, sys, weakref, logging
import multiprocessing.util  # as in a rank, before the program
from distlab.rank.main_module import run_as_main
from distlab.wire.program import Program
weakref.finalize(Program, print, "not the program's")
for script in sys.argv[1:]:
    try:
        run_as_main(Program(name=script, folder="/"))
    except SystemExit as end:
        print("status", end.code)
    print("lives on", flush=True)
os._exit(0)
"""
# each with what is written; the last leaves a thread
PROGRAMS = (
    (
        """
        import os, sys
        child = os.fork()
        if child:
            _, status = os.waitpid(child, 0)
            print("child", os.waitstatus_to_exitcode(status))
        sys.exit(7)
        """,
        ["child 7", "status 7"],
    ),
    (
        """
        import multiprocessing, time
        def work():
            time.sleep(0.2)
            print("a process that is not joined", flush=True)
        multiprocessing.get_context("fork").Process(target=work).start()
        """,
        ["a process that is not joined"],
    ),
    (
        """
        import atexit, weakref
        class Kept: pass
        kept = Kept()
        weakref.finalize(kept, print, "finalized")
        atexit.register(print, "registered")
        """,
        ["registered", "finalized"],
    ),
    (
        """
        import logging, logging.handlers, sys
        target = logging.StreamHandler(sys.stdout)
        logging.getLogger().addHandler(logging.handlers.MemoryHandler(9, target=target))
        logging.warning("a log that is kept")
        """,
        ["a log that is kept"],
    ),
    (
        """
        import os, threading, time
        threading.Thread(target=time.sleep, args=(60,)).start()
        os._exit(0)
        """,
        [],
    ),
)


def test_a_program_ends_as_in_a_process_of_its_own(tmp_path):
    scripts = []
    expected = []
    for number, (source, lines) in enumerate(PROGRAMS):
        script = tmp_path / f"program_{number}.py"
        script.write_text(textwrap.dedent(source))
        scripts.append(str(script))
        expected += [*lines, "lives on"]
    command = [sys.executable, "-c", RUN, *scripts]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ran.stdout.splitlines() == expected, ran.stderr
