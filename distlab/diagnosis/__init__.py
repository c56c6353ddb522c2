"""Who waits for whom, which calls disagree, and the words for it: pure functions over what the ranks report."""
