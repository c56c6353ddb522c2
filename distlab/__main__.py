"""The command line: `python -m distlab doctor`."""

from __future__ import annotations

import argparse
import sys


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line and run the command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m distlab", description="Learn distributed PyTorch on real ranks.")
    parser.add_argument("command", choices=["doctor"], help="what this machine can do, and what to change")
    parser.add_argument("--clean", action="store_true", help="end processes of clusters whose notebook is gone")
    chosen = parser.parse_args(arguments)
    from distlab.client.doctor import main as run_doctor

    return run_doctor(clean=chosen.clean)


if __name__ == "__main__":
    sys.exit(main())
