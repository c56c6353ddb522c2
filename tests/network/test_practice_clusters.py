"""Clusters on practice hosts: without daemons, and where namespaces are not allowed."""

import distlab
from distlab_course.practice import PracticeHosts, practice_hosts
from tests.cluster.conftest import stuck, sum_of_ranks
from tests.network.programs import place
from tests.refused import raised


def test_a_cluster_on_namespaces(hosts):
    """What goes between host and notebook goes over the cable, so that a cut one is silent."""
    with distlab.Cluster(hosts=hosts, timeout=20) as cluster:
        assert [where[0] for where in cluster.run(place)] == ["nodeA", "nodeA", "nodeB", "nodeB"]
        cluster.push({"kept": 1})
        hosts.cut("nodeB")
        words = str(raised(distlab.RankDied, cluster.run, sum_of_ranks))
        assert words.startswith(
            "ranks 2-3 were lost with host nodeB, which sent no heartbeat for 3.5 s.\n"
        )
        assert cluster.pull("kept", ranks=[0, 1]) == [1, 1]
        hosts.repair("nodeB")
        assert cluster.run(sum_of_ranks) == [6.0] * 4


def test_a_cluster_on_loopback_addresses(monkeypatch):
    """The same where namespaces cannot be made, but for host names and cables."""

    def refuses(self):
        raise OSError("not here")

    monkeypatch.setattr(PracticeHosts, "_make_network", refuses)
    with (
        practice_hosts({"nodeA": 1, "nodeB": 2}) as hosts,
        distlab.Cluster(hosts=hosts, timeout=20) as cluster,
    ):
        assert [where[1:6] for where in cluster.run(place)] == [
            ("0", "3", "0", "1", "0"),
            ("1", "3", "0", "2", "1"),
            ("2", "3", "1", "2", "1"),
        ]
        assert cluster.run(sum_of_ranks) == [3.0] * 3
        assert str(raised(distlab.DeadlockError, cluster.run, stuck)).startswith(
            "3 of 3 ranks wait"
        )
