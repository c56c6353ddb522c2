"""distlab: learn and try distributed PyTorch on real process clusters, from a notebook."""

__version__ = "0.1.0"
