"""In the notebook's kernel: `Cluster`, the life of its ranks, a cell and the wait for it, %%px,
what is shown.
"""
