"""Who waits for whom, which calls disagree, what failed, and the words for it.

Functions of what the ranks have reported: no process is asked, started or ended here. They run on
the notebook's kernel. On every rank, too, run matching.py in checked mode, new_groups.py where a
group is made, and lines.py for what a remote call raised.
"""
