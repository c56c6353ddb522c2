"""Is a training program on several ranks the same as in one process, and if not, why?

    compare.py    the notebook's kernel, or pytest: runs the program in several worlds
    in_test.py    every rank of a test: the same, in worlds that the ranks build by themselves
    given.py      both: whether the program fits its arguments
    watching/     every rank: calls the program as if torchrun had started it, and looks at it
    records.py    both sides: what was seen
    judging/      anywhere, without torch: findings from what was seen
    findings.py   anywhere: what a finding is
    verdict.py    anywhere: what a person gets

The public function is `distlab.compare`; so this folder is not called that.
"""
