"""Is a training program on several ranks the same as in one process, and if not, why?

    compare.py        the notebook's kernel (or pytest): runs the program in several worlds
    watch.py and the files that it calls
                      every rank: looks at the program while it runs there
    records.py        both sides: what was seen
    judging.py and the files that it calls
                      anywhere, without torch: findings from what was seen
    verdict.py        anywhere: what a person gets

The public function is `distlab.compare`; so this folder is not called that.
"""
