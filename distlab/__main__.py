"""The commands of `distlab`, and of `python -m distlab`.

Run by a person, in a process of its own; each command imports only what it needs. Commands of other
packages are entry points of the group "distlab.commands", functions of the list of arguments, whose
docstrings begin with the command and what it does: the course has `course`, `lab` and `class`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence

Command = Callable[[list[str]], int]  # from its arguments to its exit status
NOBODY_READS = 141  # the exit status where stdout was closed, as of a program that SIGPIPE ends


def main() -> int:
    """Run the command that is named, one of distlab's own or of another package's.

    Returns the exit status.
    """
    try:
        try:
            return _run_command()
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes once more at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NOBODY_READS


def _run_command() -> int:
    """Run the command of the command line, or show the help; returns the exit status."""
    own: dict[str, Command] = {"run": run, "explain": explain, "doctor": doctor}
    given = sys.argv[1:]
    if given and given[0] in own:  # at once: to look for the commands of others takes a while
        return own[given[0]](given[1:])
    from importlib.metadata import entry_points

    others = {point.name: point for point in entry_points(group="distlab.commands")}
    named = _command_in(given, [*own, *others])
    if named:
        given.remove(named)
        command = own[named] if named in own else others[named].load()
        return command(given)
    commands = dict(own)
    for name, point in others.items():
        commands[name] = point.load()
    parser = _help_on(commands)
    if not given:
        parser.print_help(sys.stderr)
        return 2
    parser.parse_args(given)  # which shows the help or an error, and exits
    return 2


def _command_in(given: Sequence[str], names: Sequence[str]) -> str:
    """The first command among the words of a command line; "" if help is asked for before it."""
    for word in given:
        if word in ("-h", "--help"):
            return ""
        if word in names:
            return word
    return ""


def _help_on(commands: Mapping[str, Command]) -> argparse.ArgumentParser:
    """What reads a command line without a command, and says which there are."""
    lines = ["commands:"]
    for name, command in commands.items():
        lines.append(f"  {name:<8} {_what_it_does(command)}")
    called = "distlab"
    if os.path.basename(sys.argv[0]) == "__main__.py":
        called = "python -m distlab"
    lines += ["", f"{called} COMMAND --help says more about a command."]
    parser = argparse.ArgumentParser(
        called,
        description="Distributed PyTorch on real ranks.",
        epilog="\n".join(lines),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", metavar="COMMAND", choices=[*commands])
    return parser


def _what_it_does(command: Command) -> str:
    """The first sentence of a command's docstring: "write the lessons into a folder".

    The command itself, which stands before it, is left out.
    """
    text = " ".join((command.__doc__ or "").split())
    _, _, words = text.partition("`: ")
    sentence, _, _ = words.partition(". ")
    return sentence.rstrip(".")


def run(arguments: Sequence[str]) -> int:
    """`distlab run`: run a program for torchrun, as it is, on ranks that explain why they wait.

    Returns the exit status.
    """
    from distlab.scripts.run import run as run_program  # others need nothing of it

    return run_program(arguments)


def explain(arguments: Sequence[str]) -> int:
    """`distlab explain`: say why a job waits, from its flight recorder's dumps.

    Returns the exit status.
    """
    from distlab.scripts.explaining.command import explain as explain_dumps

    return explain_dumps(arguments)


def doctor(arguments: Sequence[str]) -> int:
    """`distlab doctor`: check what this machine can do, and say what to change.

    Returns the exit status: 1 if ranks cannot work.
    """
    from distlab.doctor import examine

    return examine(arguments)


if __name__ == "__main__":
    sys.exit(main())
