"""Starting and ending processes: on the kernel the ways to hosts, in processes of their own servers, engines, guard.

connection.py, hosts.py, mpiexec.py and slurm.py run on the notebook's kernel; fork_server.py, engine.py and reaper.py
(the guard) are programs; local.py runs on both sides.
"""
