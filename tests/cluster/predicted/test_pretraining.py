"""The course's pretraining step runs on real ranks, and a sharded one takes there what is predicted."""

import functools

import pytest

import distlab
from distlab_course.llama import Size
from distlab_course.pretraining import train

NETWORK, FREE = distlab.Network("5 us", "1 GB/s"), distlab.Device("1000000 PFLOP/s")
CLUSTER = {"n": 4, "timeout": 60, "network": NETWORK}
SMALL = functools.partial(train, size=Size(64, 8, 4, 128, 4, 256), length=32)


def test_a_sharded_step_takes_what_is_predicted(cluster):
    clocks = [cluster.clock()]
    for steps in (1, 2):
        cluster.run(functools.partial(SMALL, steps=steps))
        clocks.append(cluster.clock())
    second_step = clocks[2] - clocks[1] - (clocks[1] - clocks[0])
    assert distlab.predict(SMALL, 4, NETWORK, FREE).seconds == pytest.approx(second_step, rel=1e-9)


@pytest.mark.parametrize(
    "options", [{"tensor": 2}, {"pipeline": 2, "batch": 4}, {"pipeline": 2, "stages": 2, "batch": 4}]
)
def test_every_mesh_runs_on_real_ranks(cluster, options):
    before = cluster.clock()
    cluster.run(functools.partial(SMALL, steps=1, **options))
    assert cluster.clock() > before
