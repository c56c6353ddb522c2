"""On every rank: entry points, the log of its calls, its status, the watchdog that frees it.

Needs torch, cloudpickle and psutil only.
"""
