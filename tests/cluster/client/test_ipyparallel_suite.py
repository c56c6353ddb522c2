"""ipyparallel's own tests of clusters, as installed, with the fork launcher in the place of the stock one."""

import os
import sys

import pytest

from distlab.launch import reaper

if sys.platform != "linux":
    pytest.skip("the fork launcher is for Linux", allow_module_level=True)

from ipyparallel.tests.conftest import (  # noqa: F401
    Cluster,
    Context,
    cluster_config,
    controller_launcher_class,
    ipython,
    ipython_dir,
)
from ipyparallel.tests.test_cluster import *  # noqa: F403

# of ipyparallel's tests, not of the launcher: they close ZeroMQ sockets in use, and event loops under their watchers
pytestmark = [
    pytest.mark.filterwarnings("ignore:Unregistering FD:UserWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
]


@pytest.fixture
def engine_launcher_class():
    """What ipyparallel's tests start their engines with."""
    return "fork"


@pytest.fixture(autouse=True, scope="module")
def ports_of_their_own(ipython_dir):  # noqa: F811
    """ipyparallel's controllers draw ports at random, and those of two runs of the tests at one time may meet."""
    with open(os.path.join(ipython_dir, "profile_default", "ipcontroller_config.py"), "a") as config:
        config.write("\nfrom distlab.wire.rendezvous import free_ports\nc.IPController.ports = free_ports(24)\n")


@pytest.fixture(autouse=True, scope="module")
def orphans_end():
    """A controller that is stopped while it starts leaves its schedulers behind, in these tests of ipyparallel's."""
    tag = f"{reaper.owner_of_this_process()}-suite"
    os.environ[reaper.TAG] = tag
    yield
    del os.environ[reaper.TAG]
    reaper.end(reaper.find(tag), patience=1)
