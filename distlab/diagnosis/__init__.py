"""Who waits for whom, which calls disagree, and how to say it: pure functions over what the ranks report."""
