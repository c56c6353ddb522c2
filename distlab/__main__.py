"""The command line: `python -m distlab doctor`."""

from __future__ import annotations

import argparse
import sys


def main() -> int:
    """Parse the command line and run the command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m distlab", description="Learn distributed PyTorch on real ranks.")
    parser.add_argument("command", choices=["doctor"], help="what this machine can do, and what to change")
    parser.add_argument("--clean", action="store_true", help="end processes of clusters whose notebook is gone")
    chosen = parser.parse_args()
    from distlab.client import doctor  # only now, so that --help is there at once

    return doctor.main(clean=chosen.clean)


if __name__ == "__main__":
    sys.exit(main())
