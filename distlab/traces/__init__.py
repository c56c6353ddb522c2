"""What ranks did over time, real or simulated: read from their records, shown as a `Trace`.

Runs on the notebook's kernel.
"""
