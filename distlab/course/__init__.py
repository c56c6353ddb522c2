"""What learners read and build: algorithms, data, data parallelism, checkpoints. Runs under plain torchrun too."""
