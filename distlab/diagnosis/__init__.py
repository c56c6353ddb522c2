"""On the kernel, and in part on ranks: who waits for whom, which calls disagree, and the words for
it.

Pure functions over what the ranks report.
"""
