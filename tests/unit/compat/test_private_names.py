"""Private names of other libraries: each has a test, which fails by its name if a version lacks it.

compat/ uses most of them; methods.py, threads.py, quiescence.py, rpc_calls.py and the programs of
launch/ the rest.
Those that predictions need are in tests/unit/predict.
"""

import asyncio
import importlib.util
import inspect
import mmap
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from importlib import metadata
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.profiler import profile

from distlab.compat import ipyparallel as of_ipyparallel
from distlab.compat import ipython as of_ipython
from distlab.compat import torch as of_torch
from distlab.compat import torch_rpc as of_rpc
from distlab.compat import torch_watching as of_watching
from distlab.rank import methods, quiescence, raised, stores, threads
from tests.private_names import attributes_set_by, found, source_of, variables_of

C10D = "torch.distributed.distributed_c10d"
GROUP = "torch.distributed.ProcessGroup"
RPC = "torch.distributed.rpc"
CLIENT = "ipyparallel.Client"
MONITOR = "ipyparallel.controller.heartmonitor.HeartMonitor"
KERNEL = "ipykernel.kernelbase.Kernel"
SHELL = "IPython.core.interactiveshell.InteractiveShell"

FUNCTIONAL = [
    "all_gather_into_tensor",
    "all_gather_into_tensor_coalesced",
    "all_reduce",
    "all_reduce_coalesced",
    "all_to_all_single",
    "broadcast",
    "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced",
    "wait_tensor",
]
TORCH = [
    # groups
    f"{C10D}._world.pg_names",
    f"{C10D}._world.group_count",
    f"{C10D}._get_default_store",
    f"{C10D}._new_process_group_helper",
    f"{C10D}._set_pg_timeout",
    f"{C10D}._unregister_process_group",
    f"{C10D}.default_pg_timeout",
    "torch.ops._c10d_functional.all_reduce.default._schema",
    f"{GROUP}._device_types",
    f"{GROUP}._get_backend",
    f"{GROUP}._get_sequence_number_for_group",
    f"{GROUP}._register_backend",
    f"{GROUP}._set_default_backend",
    f"{GROUP}.BackendType.GLOO",
    *(f"{GROUP}.{method}" for method in (*methods.MESSAGE_METHODS, *methods.COLLECTIVE_METHODS)),
    "torch.distributed.Backend._plugins",
    "torch.distributed.Backend._BackendPlugin.creator_fn",
    "torch.distributed.ProcessGroupGloo._Options._timeout",
    f"torch.distributed.Work.{of_torch.SENDER}",
    f"torch.distributed.Work.{of_torch.OF_CLASS}",
    # what C++ begins for DDP
    "torch.distributed.Reducer._rebuild_buckets",
    "torch.distributed.Reducer._run_comm_hook",
    "torch.distributed.Reducer._push_all_rebuilt_params",
    "torch.distributed.Reducer._set_forward_pass_work_handle",
    "torch.distributed._broadcast_coalesced",
    "torch.distributed._verify_params_across_processes",
    # functional collectives
    *(f"torch.ops._c10d_functional.{name}" for name in FUNCTIONAL),
    # stores
    *(f"torch.distributed.Store.{method}" for method in stores.WAITING_METHODS),
    "torch.distributed.PrefixStore.underlying_store",
    "torch.distributed.FileStore.path",
    # tensors, autograd and the profiler
    "torch.Tensor._backward_hooks",
    "torch.UntypedStorage._cdata",
    "torch._C._autograd._KinetoEvent.device_resource_id",
    "torch._C._autograd._KinetoEvent.is_user_annotation",
    "torch._C._autograd._KinetoEvent.sequence_nr",
    "torch._C._autograd._profiler_enabled",
    "torch._C._current_graph_task_id",
    "torch._C._distributed_c10d._dump_fr_trace_json",
    "torch._guards.detect_fake_mode",
    "torch.autograd.Variable._execution_engine.queue_callback",
    "torch.ops.aten.add.Tensor._overloadpacket",
    "torch.utils.flop_counter.flop_registry",
]
# what is looked at while a training program is compared
WATCHING = "torch.distributed.pipelining.stage.PipelineStage"
TORCH_WATCHING = [
    "torch._C._dynamo.eval_frame._FrameAction.SKIP",
    "torch._C._dynamo.eval_frame._FrameExecStrategy",
    "torch._C._dynamo.eval_frame.set_code_exec_strategy",
    "torch._C._dynamo.eval_frame.set_eval_frame",
    "torch._C._functorch.peek_interpreter_stack",
    *(f"torch._C._nn.{name}" for name in of_watching.LOSSES_OF_TARGETS),
    "torch._VF.alpha_dropout",
    "torch._VF.dropout_",
    "torch._VF.feature_dropout",
    "torch._VF.feature_alpha_dropout",
    "torch._VF.gru",
    "torch._VF.lstm",
    "torch._VF.rnn_relu",
    "torch._VF.rnn_tanh",
    "torch.distributed.fsdp.FSDPModule._get_fsdp_state",
    "torch.distributed.tensor.Shard._split_tensor",
    "torch.nn.parallel.DistributedDataParallel._ddp_init_helper",
    *(f"{WATCHING}.{name}" for name in of_watching.REHEARSALS),
]
TORCH_RPC = [
    "torch._C._collect_all",
    "torch.distributed.autograd._init",
    f"{RPC}.PyRRef.to_here",
    f"{RPC}.TensorPipeAgent",
    f"{RPC}.api.PythonUDF",
    f"{RPC}.api._delete_all_user_and_unforked_owner_rrefs",
    f"{RPC}.api._destroy_rref_context",
    f"{RPC}.api._get_current_rpc_agent",
    f"{RPC}.api._init_rpc_states",
    f"{RPC}.api._invoke_rpc",
    f"{RPC}.api._is_current_rpc_agent_set",
    f"{RPC}.api._reset_current_rpc_agent",
    f"{RPC}.internal.RemoteException",
    f"{RPC}.internal._InternalRPCPickler._py_rref_reducer",
    f"{RPC}.internal._handle_exception",
    f"{RPC}.internal._pickler",
    f"{RPC}.internal._run_function",
    f"{RPC}.rref_proxy._local_invoke",
    f"{RPC}.rref_proxy._local_invoke_async_execution",
    "torch.distributed.optim.optimizer.functional_optim_map",
    "torch.distributed.optim.optimizer.logger",
]
IPYPARALLEL = [
    f"{CLIENT}._engines",
    f"{CLIENT}._io_loop",
    f"{CLIENT}._outstanding_dict",
    f"{CLIENT}._query_socket",
    f"{CLIENT}._send",
    f"{CLIENT}._update_engines",
    f"{CLIENT}.outstanding",
    f"{MONITOR}._check_missed",
    f"{MONITOR}.beat",
    f"{MONITOR}.handle_new_hearts",
    f"{MONITOR}.handle_pong",
    f"{MONITOR}.hearts",
    f"{MONITOR}.period",
    f"{MONITOR}.pong_stream",
    f"{MONITOR}.responses",
    "ipyparallel.controller.app.time",
    "ipyparallel.engine.app.IPEngine.enable_nanny",
    "ipyparallel.engine.app.IPEngine.init_engine",
    "ipyparallel.engine.app.IPEngine.init_signal",
    "ipyparallel.engine.app.IPEngine.max_heartbeat_misses",
    "ipyparallel.engine.app.IPEngine.out_stream_factory",
    "ipyparallel.engine.app.Kernel",
    "ipyparallel.engine.kernel.IPythonParallelKernel.control_msg_types",
    f"{of_ipyparallel.RUNS_CALL[0]}.IPythonParallelKernel.{of_ipyparallel.RUNS_CALL[1]}",
    "ipyparallel.serialize.serialize.pickle",
]
IPYTHON = [
    f"{SHELL}.{of_ipython.RUNS_CELL[1]}",
    f"{SHELL}.{of_ipython.SHOW_ERROR[0][1]}",
    f"{SHELL}._showtraceback",
    f"{SHELL}.run_ast_nodes",
    f"{SHELL}.run_cell_async",
    f"{SHELL}.safe_execfile",
    f"{SHELL}.safe_run_module",
    "ipykernel.debugger._is_debugpy_available",
    "ipykernel.iostream.OutStream._watch_pipe_fd",
    "ipykernel.ipkernel.sys",
    f"{KERNEL}._allow_stdin",
    f"{KERNEL}._publish_status",
    f"{KERNEL}.post_handler_hook",
    f"{KERNEL}.pre_handler_hook",
]
PYTEST = [
    "_pytest.assertion.pytest_runtest_protocol",
    f"{of_ipython.SHOW_ERROR[1][0]}.TestReport.{of_ipython.SHOW_ERROR[1][1]}",
    "_pytest.runner.SetupState.teardown_exact",
    "_pytest.runner.runtestprotocol",
    "_pytest.tmpdir.TempPathFactory.getbasetemp",
    "pytest.Config._do_configure",
    "pytest.Config.fromdictargs",
]


@pytest.mark.parametrize(
    "name", [*TORCH, *TORCH_WATCHING, *TORCH_RPC, *IPYPARALLEL, *IPYTHON, *PYTEST]
)
def test_it_is_there(name):
    if name in TORCH_RPC and of_rpc.RREF_PICKLER is None:
        pytest.skip("this build of torch has no RPC")
    found(name)


def test_a_name_that_is_missing_is_named():
    with pytest.raises(AttributeError, match="no attribute '_worlds'"):
        found(f"{C10D}._worlds.pg_names")


# what a method sets on its object, and no class shows
SET = [
    ("ipyparallel.AsyncResult", "_children"),
    ("ipyparallel.AsyncResult", "_metadata"),
    (CLIENT, "_query_stream"),
    (CLIENT, "_queue_handlers"),
    (MONITOR, "caller"),
    (SHELL, "user_ns_hidden"),
    ("ipykernel.iostream.OutStream", "_fid"),
    ("ipykernel.iostream.OutStream", "_original_stdstream_copy"),
    ("ipykernel.iostream.OutStream", "_original_stdstream_fd"),
    ("ipykernel.iostream.OutStream", "_should_watch"),
    ("ipykernel.iostream.OutStream", "pub_thread"),
]


@pytest.mark.parametrize(("kind", "attribute"), SET, ids=[".".join(pair) for pair in SET])
def test_an_object_gets_it(kind, attribute):
    assert attribute in {*attributes_set_by(found(kind)), *dir(found(kind))}


# parameters, by which a wrapper takes a call apart, and local variables, which are read in a frame
VARIABLES = [
    *((f"{C10D}._new_process_group_helper", name) for name in ("global_ranks_in_group", "backend")),
    *((f"{C10D}._new_process_group_helper", name) for name in ("group_name", "store", "timeout")),
    ("torch.distributed.new_group", "use_local_synchronization"),
    (f"{C10D}._set_pg_timeout", "group"),
    *((f"{RPC}.api._invoke_rpc", name) for name in ("to", "func", "rpc_type", "args", "kwargs")),
    (f"{RPC}.api._invoke_rpc", "rpc_timeout"),
    ("threading.Condition.wait", "timeout"),
    ("threading.Thread.join", "timeout"),
]


@pytest.mark.parametrize(
    ("function", "variable"), VARIABLES, ids=[":".join(pair) for pair in VARIABLES]
)
def test_a_function_has_the_variable(function, variable):
    assert variable in variables_of(found(function))


# modules that are known by their names: whose frames are looked for, whose loggers are silenced
MODULES = [
    of_torch.FUNCTIONAL_MODULE,
    of_torch.DTENSOR_MODULE,
    of_torch.DDP_MODULE,
    threads.DDP_HELPERS,
    "torch._subclasses.fake_tensor",
    "torch.distributed.tensor._collective_utils",
    of_ipython.HISTORY,
    *(module for module in quiescence.WAITING_FOR_WORK if module != of_ipython.HISTORY),
    *of_ipython.OF_THE_ENGINE,
]


@pytest.mark.parametrize("module", MODULES)
def test_a_module_has_the_name(module):
    assert importlib.util.find_spec(module) is not None


# what stands in the source of a module: an attribute that it sets, a text that it writes
TEXTS = [
    ("torch._dynamo.eval_frame", "_torchdynamo_orig_callable"),
    ("torch.distributed.distributed_c10d", "is not initialized in the world group map"),
    ("ipyparallel.engine.nanny", "class KernelNanny:"),
    ("ipyparallel.engine.nanny", "{self.__class__.__name__}.{engine_id}"),
    ("ipyparallel.engine.nanny", "Parent {self.pid} exited"),
    ("ipyparallel.engine.nanny", "Pipe closed"),
    ("IPython.core.interactiveshell", '"_dh"'),
    ("_pytest.runner", "session._setupstate"),
    ("_pytest.tmpdir", "_tmp_path_factory"),
]


@pytest.mark.parametrize(("module", "text"), TEXTS, ids=[": ".join(pair) for pair in TEXTS])
def test_a_module_has_the_text(module, text):
    assert text in source_of(module).replace("'", '"')


# Words of torch's C++, by which raised.py, readable.py, failures.py and advice.py know an error. A
# wrong one would make the rank that waited look like the one that failed.
OF_CPP = [
    "Timed out waiting",
    "Connection was likely closed",
    "Connection closed by peer",
    "Read error",
    "Write error",
    "Socket closed",
    "pair closure",
    "client socket has timed out",
    "Timed out after ",
    "seconds waiting for clients",
    "wait timeout",
    "Timeout waiting for key",
    "Could not resolve the process group",
    "No backend type associated with device type",
    "Pair is not",
    "ran for more than set timeout",
    "expect_autograd_hooks_",
    "torch.distributed.ddp.reducer",
    "autograd::engine::evaluate_function",
]


@pytest.fixture(scope="module")
def library():
    """The bytes of torch's library, which has the words of its C++ and of gloo's."""
    folder = Path(torch.__file__).parent / "lib"
    path = next(path for path in folder.glob("libtorch_cpu.*") if path.suffix in (".so", ".dylib"))
    with (
        path.open("rb") as file,
        closing(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)) as all,
    ):
        yield all


@pytest.mark.parametrize("words", OF_CPP)
def test_an_error_of_cpp_has_the_words(library, words):
    assert library.find(words.encode()) >= 0


def test_the_words_are_read_as_those_of_a_wait():
    """What gloo and stores say if a peer did not come is no fault of the rank that waited."""
    assert [words for words in OF_CPP[:7] if not raised.WAITED.search(words)] == []


def test_gloos_thread_has_the_name_gloo_tcp_loop():
    """quiescence.py knows by it which thread's wakeups to count."""
    comms = Path("/proc/self/task")
    if not comms.is_dir():
        pytest.skip("threads have names in /proc only")
    store = dist.HashStore()
    with ThreadPoolExecutor(2) as ranks:
        limit = timedelta(seconds=20)
        groups = list(ranks.map(lambda rank: of_torch.gloo_group(store, rank, 2, limit), range(2)))
        names = {path.read_text().strip() for path in comms.glob("*/comm")}
    assert quiescence.GLOO_LOOP in names
    del groups


def test_a_row_of_the_profiler_has_the_name_of_a_backward_pass():
    """traces/computing.py knows by it that C++ computes for autograd."""
    with profile() as recorded:
        torch.ones(2, requires_grad=True).sum().backward()
    rows = [event.name for event in recorded.events()]
    assert any(name.startswith("autograd::engine::evaluate_function") for name in rows)


def test_the_event_loop_has_what_it_plans():
    """quiescence.py looks whether the loop will call something of the learner's."""
    loop = asyncio.new_event_loop()
    with closing(loop):
        loop.call_later(60, print)
        loop.call_soon(print)
        assert [handle._callback for handle in (*loop._scheduled, *loop._ready)] == [print, print]
    assert (asyncio.Handle._run.__module__, asyncio.Handle._run.__name__) == of_ipython.LOOP_STEP


def test_a_thread_waits_in_the_module_threading():
    """threads.py reads the limit of a wait in the frame of threading's function."""
    assert {threading.Thread.join.__module__, threading.Condition.wait.__module__} == {"threading"}


def test_rpc_has_the_transports_that_can_be_freed():
    if of_rpc.RREF_PICKLER is None:
        pytest.skip("this build of torch has no RPC")
    given = inspect.signature(dist.rpc.TensorPipeRpcBackendOptions.__init__).parameters
    assert {"_transports", "_channels"} <= {*given}


@pytest.mark.parametrize("name", ["shell_channel_thread", "_supports_kernel_subshells"])
def test_ipykernel_asks_for_subshells(name):
    """Before a cell with a top-level await; ipykernel 6 has none."""
    if metadata.version("ipykernel") < "7":
        pytest.skip("ipykernel has subshells since 7")
    assert name in {*dir(found(KERNEL)), *attributes_set_by(found(KERNEL))}
