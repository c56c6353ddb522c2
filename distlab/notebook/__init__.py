"""What runs in the notebook's kernel.

`Cluster` and the life of its ranks, a cell and the wait for it, %%px, and what a person sees of it.
"""
