"""Programs that run by themselves: the fork server, an engine, the controller, and the guard in
reaper.py.

this_host.py is what the fork server of a host says of it; the notebook's kernel asks it about its
own machine, too.
"""
