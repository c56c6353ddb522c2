"""On both sides: the private parts of torch, ipyparallel and IPython, and the newest torch that was tested."""
