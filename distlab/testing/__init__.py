"""pytest with ranks: a test that is marked `@pytest.mark.ranks(4)` runs on every rank of a cluster.

plugin.py runs in pytest's process, which finds the tests; on_rank.py runs one of them on a rank.
"""
