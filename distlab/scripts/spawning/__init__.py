"""`distlab.spawn`: processes for one call of a function, forked from one that has torch already.

Runs in the process that calls it, as pytest's, or a script's. The function is ../spawn.py.
"""
