"""A plugin of pytest: a deadlock is reported after 0.2 s, as in tests/cluster."""

from distlab.notebook import seconds

seconds.UNMOVED, seconds.TICK = 0.2, 0.1
