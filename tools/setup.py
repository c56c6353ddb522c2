"""Makes .venv for the project and skips what is done. Called by: make, with the system's python3; tools/matrix.py.

The syntax stays with Python 3.6, so that an old interpreter is told in one line what to do.
"""

import argparse
import hashlib
import json
import os
import queue
import re
import shutil
import subprocess
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLDEST = (3, 10)
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
# The environment takes 2 GB with torch's CPU build and 6 GB with PyPI's on Linux, made for CUDA; pip unpacks beside it.
CPU_GB, CUDA_GB = 3, 9
TAIL = 12  # lines of pip's output that a failure shows

# JupyterLab's own place for defaults inside an environment; the user's settings in the home directory are not touched.
LAB_OVERRIDES = {"@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False}}

# What pip says -> what to do about it.
ADVICE = [
    (
        r"No space left on device",
        "the disk is full: free space; on Linux the CPU build of torch is gigabytes smaller: "
        "make clean; make lab TORCH_INDEX=" + CPU_INDEX,
    ),
    (
        r"name resolution|Name or service|Connection(Error| refused| reset)|Max retries|timed out|SSLError",
        "pip could not reach the package index: check the network or the proxy, then run the same command again",
    ),
    (
        r"No matching distribution found|Could not find a version",
        "a pinned version does not exist for this Python or platform: try another one, make lab PYTHON=python3.12",
    ),
    (r"ResolutionImpossible|conflicting dependencies", "the pinned versions disagree: change constraints.txt"),
]


class SetupError(Exception):
    """Something that the user has to change; the message is the one line they see."""


def newer_pythons():
    """Interpreters on PATH that are new enough and start, by name, newest first."""
    names = [f"python3.{minor}" for minor in range(14, OLDEST[1] - 1, -1)]
    return [name for name in names if shutil.which(name) and starts(name)]


def starts(name):
    """Whether an interpreter starts; a version manager puts names on PATH that only print an error."""
    return subprocess.call([name, "-c", ""], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) == 0


def check_python(version):
    """Raises SetupError when `version` (a tuple) is older than the project supports."""
    if tuple(version[:2]) >= OLDEST:
        return
    found = ".".join(str(part) for part in version[:3])
    others = newer_pythons()
    what = f"make lab PYTHON={others[0]}" if others else "install one, then: make lab PYTHON=python3.12"
    raise SetupError(f"Python must be 3.10 or newer, got {found} ({sys.executable}): {what}")


def check_venv_modules(version):
    """Raises SetupError when the parts of Python that make environments are not installed."""
    for module in ("venv", "ensurepip"):
        if find_spec(module) is None:
            name = "python{}.{}-venv".format(*version[:2])
            raise SetupError(
                f"this Python has no module '{module}': apt-get install {name} (Debian, Ubuntu), then run the same "
                "command again"
            )


def check_disk(directory, torch_index):
    """Raises SetupError when `directory` has less free disk than the environment takes with torch from that index."""
    cuda = sys.platform == "linux" and not torch_index.endswith("/cpu")
    needed_gb = CUDA_GB if cuda else CPU_GB
    free_gb = shutil.disk_usage(str(directory)).free / 1e9
    if free_gb < needed_gb:
        smaller = f", or take torch's CPU build, {CPU_GB} GB: make lab TORCH_INDEX={CPU_INDEX}" if cuda else ""
        raise SetupError(
            f"about {needed_gb} GB of free disk are needed, got {free_gb:.1f} GB in {directory}: free some space, "
            f"then run the same command again{smaller}"
        )


def venv_version(venv):
    """The Python version that made `venv`, such as "3.11.7"; None when it is missing, broken or half made."""
    config = venv / "pyvenv.cfg"
    if not config.is_file() or not (venv / "bin" / "python").exists() or not (venv / "bin" / "pip").exists():
        return None
    found = re.search(r"^version\w* *= *(\d+\.\d+\.\d+)", config.read_text(), flags=re.MULTILINE)
    return found.group(1) if found else None


def fingerprint(root, venv, version, pins):
    """What the environment was made from. It holds the path because an environment cannot be moved."""
    digest = hashlib.sha256()
    for path in (root / "pyproject.toml", pins):
        digest.update(path.read_bytes())
    digest.update(f"{version} {venv} {json.dumps(LAB_OVERRIDES, sort_keys=True)}".encode())
    return digest.hexdigest()


def is_current(root, venv, chosen_version=None, pins=None):
    """Whether nothing is left to do. `chosen_version` is that of an interpreter picked by hand, or None."""
    version = venv_version(venv)
    stamp = venv / "distlab-setup.stamp"
    if version is None or not stamp.is_file() or (chosen_version and not same_minor(version, chosen_version)):
        return False
    return stamp.read_text().strip() == fingerprint(root, venv, version, pins or root / "constraints.txt")


def same_minor(version, other):
    return version.split(".")[:2] == other.split(".")[:2]


def remove_venv(venv):
    """Removes an environment that cannot be used, and refuses what does not look like one."""
    if not venv.exists() and not venv.is_symlink():
        return
    if venv.is_symlink() or not ((venv / "pyvenv.cfg").is_file() or (venv / "bin").is_dir() or not any(venv.iterdir())):
        raise SetupError(f"{venv} is not a virtual environment: move it away, then run the same command again")
    shutil.rmtree(str(venv))


def make_venv(venv):
    """Makes an empty environment with pip, or leaves nothing behind."""
    command = [sys.executable, "-m", "venv", str(venv)]
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "universal_newlines": True}  # text= is Python 3.7
    try:
        done = subprocess.run(command, **output)
    except BaseException:
        remove_venv(venv)
        raise
    if done.returncode:
        for line in done.stdout.splitlines()[-TAIL:]:
            print("  venv: " + line, file=sys.stderr)
        remove_venv(venv)
        raise SetupError(
            "the virtual environment could not be made: apt-get install python{}.{}-venv (Debian, Ubuntu) if it is "
            "missing, or read the lines above".format(*sys.version_info[:2])
        )


def read_lines(stream, lines):
    for line in stream:
        lines.put(line)
    lines.put(None)


def show_progress(line, started, shown):
    """One line that moves on a terminal; in a log, a sign of life every twenty seconds. Returns the time shown."""
    now = time.time()
    text = f"  {now - started:4.0f} s  {line}"
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns - 1
        sys.stdout.write("\r" + text[:width].ljust(width))
        sys.stdout.flush()
        return now
    if now - shown >= 20:
        print(text, flush=True)
        return now
    return shown


def run_pip(venv, arguments, log):
    """Runs pip in `venv` with its whole output in `log`; raises SetupError with the last lines and what to do."""
    command = [str(venv / "bin" / "python"), "-m", "pip", "install", "--progress-bar", "off", *arguments]
    # PIP_USER or a target directory in the user's configuration cannot work inside an environment.
    environment = dict(os.environ, PIP_USER="0", PIP_DISABLE_PIP_VERSION_CHECK="1", PYTHONUNBUFFERED="1")
    started = shown = time.time()
    free = shutil.disk_usage(str(venv)).free
    doing = "starting pip"
    tail = []
    with open(str(log), "a") as file:
        file.write("$ {}\n".format(" ".join(command)))
        process = subprocess.Popen(
            command, cwd=str(ROOT), env=environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True,
        )  # fmt: skip
        lines = queue.Queue()
        threading.Thread(target=read_lines, args=(process.stdout, lines), daemon=True).start()
        try:
            while True:
                try:
                    line = lines.get(timeout=1)
                except queue.Empty:
                    line = ""
                if line is None:
                    break
                file.write(line)
                if line.strip():
                    tail = ([*tail, line.rstrip()])[-200:]
                if re.match(r" *(Collecting|Downloading|Processing|Installing|Building|Preparing)", line):
                    doing = re.sub(r"/\S*/", "", line.strip()).split(" (from")[0][:90]
                written = max(0, free - shutil.disk_usage(str(venv)).free) / 1e9  # pip says nothing while it unpacks
                shown = show_progress(f"{written:4.1f} GB  {doing}", started, shown)
            process.wait()
        except BaseException:
            process.terminate()
            process.wait()
            raise
        finally:
            if sys.stdout.isatty():
                sys.stdout.write("\r" + " " * (shutil.get_terminal_size().columns - 1) + "\r")
    if process.returncode:
        for line in tail[-TAIL:]:
            print("  pip: " + line, file=sys.stderr)
        raise SetupError("{}; all of pip's output is in {}".format(advice("\n".join(tail)), log))


def advice(output):
    """What to do about a failed pip, from what it printed."""
    for pattern, what in ADVICE:
        if re.search(pattern, output):
            return what
    return "pip failed: read its last lines above"


def install(root, venv, torch_index, log, pins):
    """Installs the project, editable, at the versions of the file `pins`; torch first when its index is given."""
    pinned = ["-c", str(pins)]
    if torch_index:
        print(f"  torch, from {torch_index}", flush=True)
        run_pip(venv, [*pinned, "--index-url", torch_index, "torch"], log)
    print(f"  the packages of pyproject.toml, at the versions of {pins.name}", flush=True)
    run_pip(venv, [*pinned, "-e", str(root) + "[lab,mpi,test]"], log)


def write_lab_overrides(venv):
    """Turns the "official Jupyter news" question off, for this environment only."""
    settings = venv / "share" / "jupyter" / "lab" / "settings"
    settings.mkdir(parents=True, exist_ok=True)
    (settings / "overrides.json").write_text(json.dumps(LAB_OVERRIDES, indent=2) + "\n")


def set_up(root, venv, torch_index="", python_chosen=False, pins=None):
    """Brings `venv` up to date, or returns at once when it is. Raises SetupError with one line."""
    here = ".".join(str(part) for part in sys.version_info[:3])
    pins = pins or root / "constraints.txt"
    if is_current(root, venv, here if python_chosen else None, pins):
        return
    version = venv_version(venv)
    usable = version is not None and not (python_chosen and not same_minor(version, here))
    started = time.time()
    if not usable:
        check_python(sys.version_info)
        check_venv_modules(sys.version_info)
        check_disk(root, torch_index)
        remove_venv(venv)
        print(f"Making {venv.name} with Python {here}; the first time takes one to ten minutes.", flush=True)
        make_venv(venv)
    else:
        print(f"Bringing {venv.name} (Python {version}) up to date.", flush=True)
        if not any(venv.glob("lib/python*/site-packages/torch")):
            check_disk(root, torch_index)
    log = venv / "setup.log"
    log.write_text("")
    install(root, venv, torch_index, log, pins)
    write_lab_overrides(venv)
    (venv / "distlab-setup.stamp").write_text(fingerprint(root, venv, venv_version(venv), pins) + "\n")
    print(f"Done in {time.time() - started:.0f} s.", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python-chosen", action="store_true", help="replace an environment of another Python")
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv", help="the environment; its absolute path")
    parser.add_argument("--pins", type=Path, help="another file of versions than constraints.txt")
    options = parser.parse_args()
    try:
        set_up(ROOT, options.venv, os.environ.get("TORCH_INDEX", ""), options.python_chosen, options.pins)
    except SetupError as error:
        print(f"distlab: {error}.", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"distlab: the environment could not be made: {error}.", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ndistlab: interrupted; the same command continues.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
