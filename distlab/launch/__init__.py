"""Starting and ending processes: connections to hosts on the kernel; servers, engines and the guard as processes.

connection.py, hosts.py and mpiexec.py run on the notebook's kernel; fork_server.py, engine.py and reaper.py (the guard)
are programs; local.py runs on both sides.
"""
