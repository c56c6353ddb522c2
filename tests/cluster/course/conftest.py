"""Clusters of several sizes, one after the other."""

import pytest

import distlab


@pytest.fixture(scope="module")
def sized(request, nothing_left):
    """A cluster of the size that a test asks for; it replaces the one before, which is quicker than a start."""
    return distlab.Cluster(request.param, timeout=60)


@pytest.fixture(scope="module", autouse=True)
def stopped(nothing_left):
    """The last cluster ends with the module."""
    yield
    if distlab.Cluster.current is not None:
        distlab.Cluster.current.stop()
