"""Makes .venv for the project and skips what is done. Called by: make, with the system's python3; tools/matrix.py.

The syntax stays with Python 3.6, so that an old interpreter is told in one line what to do.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLDEST = (3, 10)
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
# The environment takes 2 GB with torch's CPU build and 6 GB with PyPI's on Linux, made for CUDA; pip unpacks beside it.
CPU_GB, CUDA_GB = 3, 9

# JupyterLab's own place for defaults inside an environment; the user's settings in the home directory are not touched.
LAB_OVERRIDES = {"@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False}}


class SetupError(Exception):
    """Something that the user has to change; the message is the one line they see."""


def check_python(version):
    """Raises SetupError when `version` (a tuple) is too old, or lacks the parts that make environments."""
    if tuple(version[:2]) < OLDEST:
        found = "{}.{}.{}".format(*version[:3])
        what = "name one that is here, or install one first: make lab PYTHON=python3.12"
        raise SetupError(f"Python must be 3.10 or newer, got {found} ({sys.executable}): {what}")
    for module in ("venv", "ensurepip"):
        if find_spec(module) is None:
            package = "python{}.{}-venv".format(*version[:2])
            raise SetupError(
                f"this Python has no module '{module}': apt-get install {package} (Debian, Ubuntu), then run the same "
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


def version_of(venv):
    """The Python that made `venv`, such as "3.11"; "" when it is missing, broken or half made."""
    config = venv / "pyvenv.cfg"
    if not all(path.exists() for path in (config, venv / "bin" / "python", venv / "bin" / "pip")):
        return ""
    found = re.search(r"^version\w* *= *(\d+\.\d+)", config.read_text(), flags=re.MULTILINE)
    return found.group(1) if found else ""


def make_venv(venv):
    """Makes an empty environment with pip in place of what is there, or leaves nothing behind."""
    looks_like_one = (venv / "pyvenv.cfg").is_file() or (venv / "bin").is_dir()
    if venv.is_symlink() or (venv.exists() and any(venv.iterdir()) and not looks_like_one):
        raise SetupError(f"{venv} is not a virtual environment: move it away, then run the same command again")
    status = 1
    try:
        status = subprocess.call([sys.executable, "-m", "venv", "--clear", str(venv)])
    finally:
        if status:
            shutil.rmtree(str(venv), ignore_errors=True)
    if status:
        raise SetupError(
            "the virtual environment could not be made: apt-get install python{}.{}-venv (Debian, Ubuntu) if it is "
            "missing, or read the lines above".format(*sys.version_info[:2])
        )


def run_pip(venv, arguments):
    """Runs pip in `venv`, which shows its progress; SetupError where it fails."""
    command = [str(venv / "bin" / "python"), "-m", "pip", "install"]
    # PIP_USER or a target directory in the user's configuration cannot work inside an environment.
    environment = dict(os.environ, PIP_USER="0", PIP_DISABLE_PIP_VERSION_CHECK="1")
    if subprocess.call(command + arguments, cwd=str(ROOT), env=environment):
        raise SetupError("pip failed: read its last lines above, then run the same command again")


def stamp_of(root, venv, pins):
    """What the environment was made from. It holds the path because an environment cannot be moved."""
    digest = hashlib.sha256(f"{version_of(venv)} {venv} {LAB_OVERRIDES}".encode())
    for path in (root / "pyproject.toml", pins):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def set_up(root, venv, torch_index="", python_chosen=False, pins=None):
    """Brings `venv` up to date, or returns at once when it is. Raises SetupError with one line."""
    pins = pins or root / "constraints.txt"
    here, version, stamp = "{}.{}".format(*sys.version_info[:2]), version_of(venv), venv / "distlab-setup.stamp"
    usable = version and not (python_chosen and version != here)
    if usable and stamp.is_file() and stamp.read_text() == stamp_of(root, venv, pins):
        return
    if not usable:
        check_python(sys.version_info)
    if not any(venv.glob("lib/python*/site-packages/torch")):
        check_disk(root, torch_index)
    if usable:
        print(f"Bringing {venv.name} (Python {version}) up to date.", flush=True)
    else:
        print(f"Making {venv.name} with Python {here}; the first time takes one to ten minutes.", flush=True)
        make_venv(venv)
    if torch_index:
        run_pip(venv, ["-c", str(pins), "--index-url", torch_index, "torch"])
    run_pip(venv, ["-c", str(pins), "-e", str(root) + "[lab,mpi,test]"])
    settings = venv / "share" / "jupyter" / "lab" / "settings"
    settings.mkdir(parents=True, exist_ok=True)
    (settings / "overrides.json").write_text(json.dumps(LAB_OVERRIDES, indent=2) + "\n")
    stamp.write_text(stamp_of(root, venv, pins))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python-chosen", action="store_true", help="replace an environment of another Python")
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv", help="the environment; its absolute path")
    parser.add_argument("--pins", type=Path, help="another file of versions than constraints.txt")
    options = parser.parse_args()
    try:
        set_up(ROOT, options.venv, os.environ.get("TORCH_INDEX", ""), options.python_chosen, options.pins)
    except (SetupError, OSError) as error:
        what = "" if isinstance(error, SetupError) else "the environment could not be made: "
        print(f"distlab: {what}{error}.", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ndistlab: interrupted; the same command continues.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
