"""On the kernel, and in checked mode on ranks: who waits for whom, which calls disagree, and the words for it.

Pure functions over what the ranks report.
"""
