"""Programs that run by themselves: fork server, engine, controller, and the guard in reaper.py.

fork_server.py imports what preloading.py says, and forks children, which become what forked.py and
engine.py say and write into the files of logs.py. this_host.py is what the fork server of a host
says of it; the notebook's kernel asks it about its own machine, too.
"""
