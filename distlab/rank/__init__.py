"""What runs on every rank: entry points, the log of its calls, its status, and the watchdog.

It needs torch, cloudpickle and psutil only.
"""
