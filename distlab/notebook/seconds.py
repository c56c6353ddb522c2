"""How long the kernel waits for the ranks of a cell, and how often it looks at them, in seconds.

All times of that wait are on this page; those of starting processes, of hosts and of connections to
them, of RPC and of single programs stand as *_SECONDS in the modules that need them.

Runs on the notebook's kernel, read by this folder and by debugger/turns.py. `seconds.TICK` is
read each time it is used, so that a test can change it.

How late a deadlock is reported, after the last rank has entered its call: a look finds it after
TICK, later looks find it unmoved for UNMOVED, which the next TICK rounds up, and the ranks are free
within AGAIN:
0.25 + 0.7 + 0.25 + 0.2 = 1.4 s. A slow rank adds up to ANSWER a look; without load it stays under
  two seconds.
"""

# --- a cell ---

# Ranks that go on are interrupted this long after the first death; what the dead one wrote may
# still arrive meanwhile.
AFTER_DEATH = 1.0
TICK = 0.25  # between two looks at the ranks of a cell that has not ended
UNMOVED = 0.7  # for how long nothing has moved on any rank before a proof of a deadlock counts
LIVE_AFTER = 1.0  # before the newest lines of a cell are shown while it runs
PICTURE_AFTER = 2.0  # before the ranks are drawn while it runs
# between two looks at the memory of the ranks that are drawn: one costs each of them 9 ms
MEMORY_AGAIN = 2.0
OUTPUT = 60.0  # for what ranks have written, which may be much, to arrive
# for a rank to describe the exception of a %%px cell, or for its end to be reported
LAST_FAILURE = 10.0
# for a call of a group where a person may stop ranks: longer than anybody looks at a breakpoint
PAUSE = 86400.0

# --- a question over the control channel ---

ANSWER = 0.25  # a rank that does not answer is stopped, or compiled code holds Python's lock
# the same for a report: the watchdog of a rank that spins in Python waits for its turn
ANSWER_FOR_REPORT = 1.0

# --- ranks that are to be freed; own time leaves out the time that a rank waits for a CPU ---

AGAIN = 0.2  # before a rank that is not free is asked again
ASK_WHY = 1.0  # of its own time, before a rank that is not free is asked what it does
# of its own time, before a rank that is not free is ended; and before that, where another rank has
# failed, before its cell is
GIVE_UP = 3.0
GIVE_UP_LATE = 10.0  # the same for one that was idle, its message under way, or in an import
LIMIT = 60.0  # by the clock, for every rank

# --- processes and the group ---

# for all ranks to build the process group, to begin a trace, and to send what they recorded
BUILD = 60.0
DEATH = 0.2  # for the launcher to see the end of a process whose connections are lost
