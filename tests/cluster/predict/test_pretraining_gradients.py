"""The course's pretraining step on a mesh of real ranks has the gradients of one process, clipped.

It needs ranks that are not rebuilt between tests: of equal meshes, DTensor caches the groups of the
first.
"""

import dataclasses
import functools

import pytest
import torch

from distlab_course.engine import Engine
from distlab_course.experts import balance, routers
from distlab_course.sizes import Experts, Latent, Size
from tests.cluster.conftest import stop_what_runs
from tests.cluster.predict.filled_models import (
    BATCH,
    gradients_of_train,
    model_of_one_process,
    models_of_train,
)

CLUSTER = {"n": 4, "timeout": 60, "preload": ["torch.distributed.fsdp"]}
DENSE = Size(64, 2, 4, 128, 4, 256)
DEEP = dataclasses.replace(DENSE, layers=4)
NORMED = dataclasses.replace(DENSE, kv_heads=2, head=32, normed=True)
# two of four experts for a token, and one layer without
MIXTURE = dataclasses.replace(NORMED, layers=3, experts=Experts(4, 2, 48, shared=32, dense=1))
EXPERTS = dataclasses.replace(DENSE, experts=Experts(4, 2, 48))
IN_GROUPS = Experts(
    8, 2, 32, dense=1, scores="sigmoid", scale=2.5, groups=4, groups_chosen=2, balanced=True
)
LATENT = dataclasses.replace(DENSE, layers=3, experts=IN_GROUPS, latent=Latent(32, 48, 16, 8, 24))
APART = Engine(experts_apart=True)

ONCE = Engine(casts_once=True)
ALL = Engine(casts_once=True, gathers_again=True, repeats_keys=False)
AGAIN = Engine(gathers_again=True, repeats_keys=False)
LONG = Engine(gathers_again=True, recomputes_long=True)
LONG_QUERIES = dataclasses.replace(LATENT, latent=Latent(32, None, 16, 8, 16))


@pytest.fixture(autouse=True, scope="module")
def cluster_ends(shared):
    """The threads of its many groups would go on beside the tests of other modules."""
    yield
    stop_what_runs()


@pytest.mark.parametrize(
    ("size", "options"),
    [
        (DENSE, {"tensor": 2, "recompute": "full"}),
        (DENSE, {"pipeline": 2, "tensor": 2}),
        (DENSE, {"tensor": 2, "microbatches": 4}),
        (DENSE, {"pipeline": 2, "tensor": 2, "microbatches": 4}),
        (DEEP, {"pipeline": 2, "stages": 2}),
        (DENSE, {"microbatches": 2, "reshard": False}),
        (NORMED, {"tensor": 2}),
        (MIXTURE, {}),
        (MIXTURE, {"expert": 2, "microbatches": 2}),
        (MIXTURE, {"expert": 4, "recompute": "full"}),
        (MIXTURE, {"expert": 4, "tensor": 2}),
        (LATENT, {"expert": 2, "tensor": 2}),
        (LATENT, {"expert": 2, "pipeline": 2}),
        (LONG_QUERIES, {"expert": 4, "tensor": 4}),
        (MIXTURE, {"expert": 2, "dispatch": "ranks"}),
        (MIXTURE, {"expert": 4, "tensor": 2, "dispatch": "hosts", "host": 2}),
        (LATENT, {"expert": 4, "dispatch": "ranks", "recompute": "full"}),
        (LATENT, {"expert": 4, "dispatch": "hosts", "host": 2, "microbatches": 2}),
        (MIXTURE, {"expert": 2, "engine": APART}),
        (LATENT, {"expert": 4, "dispatch": "ranks", "engine": APART}),
        (NORMED, {"tensor": 2, "recompute": "none", "engine": AGAIN}),
        (DENSE, {"tensor": 2, "pipeline": 2, "recompute": "none", "engine": AGAIN}),
        (NORMED, {"tensor": 2, "microbatches": 4, "recompute": "none", "engine": AGAIN}),
        (LATENT, {"expert": 2, "tensor": 2, "recompute": "none", "engine": AGAIN}),
        (LATENT, {"expert": 2, "tensor": 2, "recompute": "none", "engine": LONG}),
        (LONG_QUERIES, {"expert": 4, "recompute": "none", "engine": LONG}),
        (DENSE, {"recompute": "none", "engine": Engine(recomputes_blocks=1)}),
    ],
    ids=["dense"] * 2
    + ["one sequence"] * 2
    + ["dense"] * 2
    + ["normed"]
    + ["mixture"] * 4
    + ["latent"] * 3
    + ["once a rank", "once a host"] * 2
    + ["apart"] * 2
    + ["gathered again"] * 4
    + ["computed again"] * 3,
)
def test_a_step_on_a_mesh_has_the_clipped_gradients_of_one_process(cluster, size, options):
    data = 4 // options.get("tensor", 1) // options.get("pipeline", 1)
    norm, model = model_of_one_process(size, data)
    expected = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert norm > 1.2  # else nothing is clipped
    names = set()
    for found in cluster.run(functools.partial(gradients_of_train, size=size, **options)):
        names |= set(found)
        for name, gradient in found.items():
            torch.testing.assert_close(gradient, expected[name], rtol=1e-3, atol=1e-5, msg=name)
    assert names == set(expected)


def biases_of_train(rank, world_size, **options):
    return [router.bias for router in routers(models_of_train(rank, world_size, **options))]


def test_the_biases_of_routers_move_as_in_one_process(cluster):
    """Some experts have few tokens, some many."""
    _, model = model_of_one_process(LATENT, 2)
    loads = [router.counts / router.counts.mean() for router in routers([model])]
    assert max(load.max() for load in loads) > 1.5
    balance(routers([model]), [])
    expected = [router.bias for router in routers([model])]
    run = functools.partial(biases_of_train, size=LATENT, expert=4, tensor=2)
    for found in cluster.run(run):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("size", "options"),
    [
        (DENSE, {"float8": "yes"}),
        (DENSE, {"float8": "gathered", "recompute": "full"}),
        (DENSE, {"float8": "yes", "tensor": 2}),
        (NORMED, {"float8": "yes", "tensor": 2, "recompute": "none"}),
        (DENSE, {"float8": "gathered", "tensor": 2, "recompute": "full"}),
        (DENSE, {"float8": "yes", "tensor": 2, "batch": 1}),
        (DENSE, {"float8": "gathered", "tensor": 2, "batch": 1, "recompute": "full"}),
        (NORMED, {"float8": "yes", "tensor": 2, "recompute": "none", "engine": AGAIN}),
        (
            DENSE,
            {
                "float8": "gathered",
                "tensor": 2,
                "batch": 1,
                "recompute": "none",
                "engine": AGAIN,
            },
        ),
        (DENSE, {"float8": "yes", "engine": ONCE}),
        (NORMED, {"float8": "gathered", "tensor": 2, "engine": ONCE}),
        (DENSE, {"float8": "yes", "tensor": 2, "recompute": "none", "engine": ALL}),
        (EXPERTS, {"float8": "yes", "expert": 2}),
        (EXPERTS, {"float8": "gathered", "expert": 4, "recompute": "full"}),
        (EXPERTS, {"float8": "yes", "expert": 4, "dispatch": "hosts", "host": 2}),
    ],
    ids=["dense"] * 3
    + ["normed", "dense"]
    + ["one sequence"] * 2
    + ["gathered again"] * 2
    + ["cast once"] * 3
    + ["experts"] * 2
    + ["once a host"],
)
def test_a_step_in_float8_has_the_gradients_of_one_process(cluster, size, options):
    """But for sums in another order, which may round to the next number in float8.

    That is far less than what float8 itself changes.
    """
    size = dataclasses.replace(size, layers=1)
    data = 4 // options.get("tensor", 1)
    batch = options.get("batch", BATCH)
    _, model = model_of_one_process(size, data, float8=True, batch=batch)
    _, exact = model_of_one_process(size, data, batch=batch)
    for found in cluster.run(functools.partial(gradients_of_train, size=size, **options)):
        for name, parameter in model.named_parameters():
            of_float8 = (parameter.grad - exact.get_parameter(name).grad).norm()
            assert (found[name] - parameter.grad).norm() < 0.1 * of_float8, name
