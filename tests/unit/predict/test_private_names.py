"""Private names of torch that predictions use: each is a test, which fails by its name.

torch_changed.py has most of them replaced, and torch_fake.py asks the others about operators.
"""

import inspect

import pytest
import torch

from tests.private_names import attributes_set_by, found, source_of

C10D = "torch.distributed.distributed_c10d"
FAKE = "torch._subclasses.fake_tensor"
FSDP = "torch.distributed.fsdp._fully_shard"
DDP = "torch.nn.parallel.DistributedDataParallel"
PIPELINE = "torch.distributed.pipelining"

NAMES = [
    f"{C10D}._new_process_group_helper",
    f"{C10D}._resolve_process_group",
    # tensors without data
    f"{FAKE}.DataDependentOutputException",
    f"{FAKE}.DynamicOutputShapeException",
    f"{FAKE}.FakeTensorMode.__torch_dispatch__",
    f"{FAKE}.FakeTensorMode.dispatch",
    f"{FAKE}.FakeTensorConverter.set_tensor_memo",
    "torch._C._DisableTorchDispatch",
    "torch._C._autograd._get_sequence_nr",
    "torch._C._current_autograd_node",
    "torch._C._current_graph_task_id",
    "torch.Tag.inplace_view",
    "torch.autograd.graph._engine_run_backward",
    "torch.ops.aten._local_scalar_dense.default",
    "torch.ops.aten.add.Tensor._overloadpacket",
    "torch.ops.aten.add.Tensor._schema",
    "torch.utils._python_dispatch._disable_current_modes",
    # asynchronous tensor parallelism
    "torch._inductor.config._micro_pipeline_tp",
    "torch.distributed._symmetric_memory._group_name_to_store",
    # functional collectives
    "torch.distributed._functional_collectives.AsyncCollectiveTensor",
    "torch.distributed._functional_collectives._maybe_wrap_tensor",
    "torch.distributed._functional_collectives.wait_tensor",
    # meshes and DTensor
    "torch.distributed.device_mesh.DeviceMesh._is_current_rank_part_of_mesh",
    "torch.distributed.tensor._collective_utils.local_tensor_mode",
    "torch.distributed.tensor._sharding_prop.ShardingPropagator",
    "torch.ops.aten._foreach_sqrt.default",
    # DDP
    "torch.distributed._DEFAULT_FIRST_BUCKET_BYTES",
    "torch.distributed._compute_bucket_assignment_by_size",
    "torch.distributed._verify_params_across_processes",
    "torch.distributed.Reducer._rebuild_buckets",
    f"{DDP}._check_comm_hook",
    f"{DDP}._passing_sync_batchnorm_handle",
    # FSDP2
    f"{FSDP}._fsdp_init._get_post_forward_mesh_info",
    f"{FSDP}._fsdp_param._chunk_with_empty",
    # pipelines
    f"{PIPELINE}._utils._TensorMeta",
    f"{PIPELINE}.schedules._PipelineSchedule._maybe_compute_loss",
    f"{PIPELINE}.stage.InferenceMode.STATIC",
    f"{PIPELINE}.stage._PipelineStageBase.backward_one_chunk",
    f"{PIPELINE}.stage._PipelineStageBase.forward_one_chunk",
    f"{PIPELINE}.stage._normalize_model_output_as_tuple",
    f"{PIPELINE}.stage.InferenceMode.needs_dynamic",
    # layers, devices and the rest of a program
    "torch.amp.GradScaler._maybe_opt_step",
    "torch.cpu._current_stream",
    "torch.cpu._default_cpu_stream",
    "torch.nn.init._no_grad_trunc_normal_",
    "torch.optim.optimizer._get_foreach_kernels_supported_devices",
    "torch.ops.aten._scaled_dot_product_efficient_attention",
    "torch.ops.aten._scaled_dot_product_flash_attention",
    "torch.utils.data.dataloader._BaseDataLoaderIter.__next__",
]
# by which stages vote, in torch 2.13 and 2.14
VOTE = f"{PIPELINE}.schedules._PipelineSchedule._warmup_p2p"
votes = pytest.mark.skipif(
    torch.__version__ >= (2, 15), reason="Stages of torch 2.15 do not vote on shapes."
)


@pytest.mark.parametrize("name", [*NAMES, pytest.param(VOTE, marks=votes)])
def test_it_is_there(name):
    found(name)


SET = [
    (f"{FAKE}.FakeTensorMode", "fake_tensor_converter"),
    (f"{FAKE}.FakeTensor", "constant"),
    (f"{FAKE}.FakeTensor", "fake_device"),
    (f"{PIPELINE}.stage.PipelineStage", "_inference_mode"),
    (f"{PIPELINE}.stage.PipelineStage", "_user_meta"),
    (f"{PIPELINE}.stage.PipelineStage", "args_recv_info"),
    (f"{PIPELINE}.stage.PipelineStage", "bwd_cache"),
    (f"{PIPELINE}.stage.PipelineStage", "grad_recv_info"),
    (f"{PIPELINE}.stage.PipelineStage", "output_chunks"),
    (f"{PIPELINE}.schedules._PipelineSchedule", "_internal_losses"),
    (f"{PIPELINE}.schedules._PipelineSchedule", "_loss_fn"),
]


@pytest.mark.parametrize(("kind", "attribute"), SET, ids=[".".join(pair) for pair in SET])
def test_an_object_gets_it(kind, attribute):
    kind = found(kind)
    declared = {name for base in kind.__mro__ for name in inspect.get_annotations(base)}
    assert attribute in declared | attributes_set_by(kind) | {*dir(kind)}


# parameters, in the order in which a replacement takes them
PARAMETERS = {
    f"{C10D}._new_process_group_helper": [
        "group_size",
        "group_rank",
        "global_ranks_in_group",
        "backend",
    ],
    f"{FAKE}.FakeTensorMode.dispatch": ["self", "func", "types", "args", "kwargs"],
    f"{PIPELINE}.schedules._PipelineSchedule._maybe_compute_loss": [
        "self",
        "stage",
        "output",
        "target_mbs",
        "mb_index",
        "loss_kwargs",
    ],
    VOTE: ["self", "stages", "has_backward"],
    f"{PIPELINE}.stage._PipelineStageBase.backward_one_chunk": [
        "self",
        "bwd_chunk_id",
        "loss",
        "full_backward",
        "last_backward",
    ],
    f"{PIPELINE}.stage._PipelineStageBase.forward_one_chunk": [
        "self",
        "fwd_chunk_id",
        "args",
        "kwargs",
        "save_forward_output",
    ],
    "torch.amp.GradScaler._maybe_opt_step": ["self", "optimizer", "optimizer_state"],
}


@pytest.mark.parametrize(
    "function", [pytest.param(name, marks=[votes] if name == VOTE else []) for name in PARAMETERS]
)
def test_a_function_has_the_parameters(function):
    given = [*inspect.signature(inspect.unwrap(found(function))).parameters]
    assert given[: len(PARAMETERS[function])] == PARAMETERS[function]


TEXTS = [
    # a DTensor's part, which torch_fake.py asks for
    ("torch.distributed.tensor._api", "_local_tensor"),
    # where FSDP2 and DTensor look up what is replaced
    (f"{FSDP}._fsdp_param", "_chunk_with_empty("),
    ("torch.distributed.tensor._collective_utils", "local_tensor_mode()"),
    ("torch.nn.init", "_no_grad_trunc_normal_("),
    ("torch.distributed.utils", "dist._verify_params_across_processes("),
    ("torch.nn.parallel.distributed", "dist.Reducer("),
]


@pytest.mark.parametrize(("module", "text"), TEXTS, ids=[": ".join(pair) for pair in TEXTS])
def test_a_module_has_the_text(module, text):
    assert text in source_of(module)
