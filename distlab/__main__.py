"""The command line: `python -m distlab doctor`."""

from __future__ import annotations

import argparse
import sys


def main() -> int:
    """Parse the command line and run the command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m distlab", description="Learn distributed PyTorch on real ranks.")
    parser.add_argument("command", choices=["doctor"], help="what this machine can do, and what to change")
    parser.add_argument("--clean", action="store_true", help="end processes of clusters whose notebook is gone")
    parser.add_argument("--hosts", metavar="A,B", help="look at these hosts, which ssh reaches, instead")
    parser.add_argument("--python", metavar="PATH", help="with --hosts: the Python there, else that of this command")
    parser.add_argument("--interface", metavar="NAME", help="with --hosts: their network interface for the ranks")
    chosen = parser.parse_args()
    from distlab.client import doctor  # only now, so that --help is there at once

    if chosen.hosts:
        return doctor.look_at_hosts(chosen.hosts.split(","), chosen.python, chosen.interface)
    return doctor.main(clean=chosen.clean)


if __name__ == "__main__":
    sys.exit(main())
