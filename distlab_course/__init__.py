"""What the notebooks' learners read and build: algorithms, data, data parallelism, checkpoints, and their exercises."""
