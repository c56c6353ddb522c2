"""`distlab explain`: what a job did that does not run under distlab, from what it left behind.

Runs in a process of its own, which a person starts in a terminal; it needs neither torch nor ranks.
command.py is the command.
"""
