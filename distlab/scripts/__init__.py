"""A person's own programs on ranks: `distlab run` in the place of torchrun.

Runs in a process of its own, which a person starts in a terminal. run.py is the command; what a
rank does for it is rank/program.py.
"""
