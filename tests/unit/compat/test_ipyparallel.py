"""What a rank's ipyparallel is imported without."""

from tests.processes import python

CODE = """
import sys
from distlab.compat.ipyparallel import cluster_module_later
with cluster_module_later():
    import ipyparallel
print("ipyparallel.cluster" in sys.modules, hasattr(ipyparallel, "nothing"))
from ipyparallel import ClusterManager
print(ClusterManager.__module__, ipyparallel.cluster.Cluster is ipyparallel.Cluster)
"""


def test_what_starts_clusters_is_loaded_when_it_is_used():
    assert python("-c", CODE).stdout == "False False\nipyparallel.cluster.cluster True\n"
