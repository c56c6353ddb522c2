"""Who waits for whom, which calls disagree, what failed, and the words for it.

Pure functions over what the ranks report. They run on the kernel, and in part on ranks.
"""
