"""A call that fails or is refused, whose words a test then compares in full."""

import pytest

import distlab


def raised(kind, call, *args, **kwargs):
    """The error of that kind with which a call ends."""
    with pytest.raises(kind) as caught:
        call(*args, **kwargs)
    return caught.value


def refused(call, *args, kind=distlab.ArgumentError, **kwargs):
    """The error with which a call is refused; no cluster was started for it."""
    before = distlab.Cluster.current
    error = raised(kind, call, *args, **kwargs)
    assert distlab.Cluster.current is before
    return error
