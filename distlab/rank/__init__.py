"""On every rank: entry points, the log of its calls, its status, the watchdog that frees it.

Needs torch and the standard library only.
"""
