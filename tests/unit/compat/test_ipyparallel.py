"""What a rank's ipyparallel is imported without."""

from tests.processes import python

CODE = """
import sys
from distlab.compat.ipyparallel import defer_cluster_module
with defer_cluster_module():
    import ipyparallel
print("ipyparallel.cluster" in sys.modules, hasattr(ipyparallel, "nothing"))
from ipyparallel import ClusterManager
print(ClusterManager.__module__, ipyparallel.cluster.Cluster is ipyparallel.Cluster)
"""


def test_what_starts_clusters_is_loaded_when_it_is_used():
    assert python("-c", CODE).stdout == "False False\nipyparallel.cluster.cluster True\n"


FAILS = """
import sys
from distlab.compat.ipyparallel import defer_cluster_module
from distlab.compat.ipython import debugger_hidden, modules_unread
import ipykernel.ipkernel
before = ipykernel.ipkernel.sys
for change in (defer_cluster_module, debugger_hidden, modules_unread):
    try:
        with change():
            raise ImportError(change.__name__)
    except ImportError as error:
        print(error)
modules = {name: sys.modules.get(name, before) for name in ("ipyparallel.cluster", "debugpy")}
print([name for name, module in modules.items() if module is not before])
print(ipykernel.ipkernel.sys is before)
"""


def test_a_change_is_undone_where_what_it_was_made_for_fails():
    """And the error is that of what failed."""
    shown = python("-c", FAILS).stdout.split("\n")
    assert shown == ["defer_cluster_module", "debugger_hidden", "modules_unread", "[]", "True", ""]
