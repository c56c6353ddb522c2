"""Starting and ending processes: the fork server, ipyparallel's launchers, mpiexec, the reaper of orphans."""
