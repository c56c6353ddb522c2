"""A call that is refused, whose words a test then compares in full."""

import pytest

import distlab


def refused(call, *args, kind=distlab.ArgumentError, **kwargs) -> Exception:
    """The error with which a call is refused; no cluster was started for it."""
    with pytest.raises(kind) as caught:
        call(*args, **kwargs)
    assert distlab.Cluster.current is None
    return caught.value
