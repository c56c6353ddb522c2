"""Plans of clusters that are not started."""

from distlab.notebook.plan import Plan, make_plan


def plan_of(n: int | None = 2, **changed) -> Plan:
    """The plan of a cluster with these arguments, and else those that `Cluster` has by default."""
    given = {
        "backend": "gloo",
        "init_method": "tcp",
        "engines": None,
        "timeout": 30.0,
        "threads": None,
        "network": None,
        "preload": (),
        "hosts": None,
        "fresh": False,
    }
    return make_plan(n, **{**given, **changed})
