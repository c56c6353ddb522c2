"""Traces of torch.profiler: what is read of them, and what is refused."""

import gzip
import json

import pytest

from distlab.errors import ArgumentError
from distlab_predict.kineto import read
from tests.unit.predict.kineto_events import called, gloo, kernel, launch, nccl, operator, write


def product(begin, microseconds):
    return operator("aten::mm", begin, microseconds, [(4, 8), (8, 2)], ["c10::BFloat16"] * 2)


def test_an_operator_of_a_cpu_takes_its_own_time(tmp_path):
    path = write(tmp_path / "trace.json", [operator("aten::linear", 0, 50), product(10, 30)])
    (linear,) = read(path).operators
    assert (linear.name, linear.seconds) == ("linear", pytest.approx(50e-6))
    (inside,) = linear.parts
    assert (inside.name, inside.seconds) == ("mm", pytest.approx(30e-6))
    assert inside.dims == [[4, 8], [8, 2]]
    assert inside.dtypes == ["bfloat16", "bfloat16"]


def test_an_operator_of_a_gpu_takes_what_its_kernels_take(tmp_path):
    events = [
        operator("aten::linear", 0, 50),
        product(10, 30),
        launch(12, 1),
        launch(14, 2),
        launch(45, 3),
        kernel(100, 500, 1),
        kernel(600, 20, 2),
        kernel(620, 7, 3),
        kernel(700, 9, 4),  # launched before the trace began
    ]
    (linear,) = read(write(tmp_path / "trace.json.gz", events)).operators
    assert linear.seconds == pytest.approx(527e-6)
    assert linear.parts[0].seconds == pytest.approx(520e-6)


def test_threads_are_apart(tmp_path):
    backward = operator("aten::mul", 5, 5, [(1,)], ["float"], thread=101)
    path = write(tmp_path / "trace.json", [product(0, 50), backward])
    assert [one.name for one in read(path).operators] == ["mm", "mul"]


def test_collectives_of_nccl_have_their_bytes_and_ranks(tmp_path):
    events = [
        product(0, 5),
        nccl(10, 100, "allreduce", 1000, 1000, 2),
        nccl(200, 300, "_allgather_base", 10, 80, 8, "BFloat16"),
        nccl(500, 400, "_reduce_scatter_base", 80, 10, 8, "Half"),
    ]
    found = read(write(tmp_path / "trace.json", events)).collectives
    seconds = [one.end - one.begin for one in found]
    assert [(one.name, one.num_bytes, one.ranks) for one in found] == [
        ("all_reduce", 4000, 2),
        ("all_gather", 20, 8),
        ("reduce_scatter", 20, 8),
    ]
    assert seconds == pytest.approx([100e-6, 300e-6, 400e-6])


def test_collectives_of_gloo_are_of_the_only_group(tmp_path):
    path = write(tmp_path / "trace.json", [product(0, 5), gloo(10, 100, 256)], ranks=3, rank=2)
    trace = read(path)
    (found,) = trace.collectives
    assert (trace.rank, trace.source) == (2, "trace.json")
    assert (found.name, found.num_bytes, found.ranks) == ("all_reduce", 1024, 3)


def test_an_all_reduce_that_gloo_runs_to_reduce_and_scatter_is_named_so(tmp_path):
    """Before it, and under way with it, are all-reduces of as many numbers."""
    events = [
        product(0, 5),
        called(10, 5, "allreduce_", [[256]]),
        called(30, 5, "_reduce_scatter_base_", [128], [256]),
        called(40, 5, "allreduce_", [[256]]),
        gloo(20, 100, 256),
        gloo(32, 110, 256),
        gloo(42, 130, 256),
        called(300, 5, "reduce_scatter_", [[64]]),
        gloo(310, 10, 64),
        gloo(320, 30, 64),
    ]
    found = sorted(
        read(write(tmp_path / "trace.json", events)).collectives, key=lambda one: one.begin
    )
    assert [(one.name, one.num_bytes, one.ranks) for one in found] == [
        ("all_reduce", 1024, 2),
        ("reduce_scatter", 512, 2),
        ("all_reduce", 1024, 2),
        ("reduce_scatter", 256, 2),
    ]
    seconds = [one.end - one.begin for one in found]
    assert seconds == pytest.approx([100e-6, 110e-6, 130e-6, 40e-6])


def test_a_call_whose_run_is_not_in_the_trace_counts_as_none(tmp_path):
    events = [product(0, 5), gloo(10, 100, 256), called(30, 5, "_reduce_scatter_base_", [8], [256])]
    (found,) = read(write(tmp_path / "trace.json", events)).collectives
    assert (found.name, found.num_bytes) == ("all_reduce", 1024)


def test_messages_have_two_ranks_in_groups_of_any_size(tmp_path):
    events = [product(0, 5), nccl(10, 100, "send", 1000, 1000, 4)]
    (found,) = read(write(tmp_path / "gpu.json", events)).collectives
    assert (found.name, found.num_bytes, found.ranks) == ("send", 4000, 2)
    path = write(tmp_path / "cpu.json", [product(0, 5), gloo(10, 100, 256, "recv")], ranks=3)
    (found,) = read(path).collectives
    assert (found.name, found.num_bytes, found.ranks) == ("recv", 1024, 2)


def test_a_trace_lasts_from_its_first_operator_or_kernel_to_the_last_end(tmp_path):
    path = write(tmp_path / "cpu.json", [product(5, 10), product(30, 5)])
    assert read(path).seconds == pytest.approx(30e-6)
    events = [product(0, 10), launch(2, 1), kernel(50, 10, 1), kernel(100, 20, 1)]
    assert read(write(tmp_path / "gpu.json", events)).seconds == pytest.approx(70e-6)


def test_events_without_a_name_or_a_time_are_left_out(tmp_path):
    events = [product(0, 5) for _ in range(3)]
    del events[0]["name"]
    del events[1]["ts"]
    events[2]["dur"] = "long"
    path = write(tmp_path / "trace.json", [*events, product(9, 5), 7])
    assert len(read(path).operators) == 1


def test_a_compressed_file_needs_no_name_that_says_so(tmp_path):
    path = write(tmp_path / "trace.json.gz", [product(0, 5)])
    assert len(read(path.rename(tmp_path / "trace.json")).operators) == 1


def refused(path):
    """What is said of a file that is no such trace."""
    with pytest.raises(ArgumentError) as error:
        read(path)
    return str(error.value)


def test_a_trace_without_shapes_is_refused(tmp_path):
    event = operator("aten::mm", 0, 5)
    del event["args"]["Input Dims"]
    path = write(tmp_path / "trace.json", [event])
    assert refused(path) == (
        f"trace must be one with the shapes of its operators, got '{path}'. Write one with "
        'profile(record_shapes=True) and prof.export_chrome_trace("trace.json").'
    )


@pytest.mark.parametrize("content", ["{}", "[1]", "no JSON", '{"traceEvents": [{"ph": "M"}]}'])
def test_what_is_no_trace_is_refused(tmp_path, content):
    path = tmp_path / "trace.json"
    path.write_text(content)
    assert refused(path).startswith("trace must be a ")
    assert "record_shapes=True" in refused(path)


def test_a_damaged_file_is_refused(tmp_path):
    path = tmp_path / "trace.json.gz"
    whole = gzip.compress(json.dumps(list(range(10000))).encode())
    path.write_bytes(whole[: len(whole) // 2])
    assert refused(path).endswith("It ends early, or is damaged. Copy it again.")
    path.write_bytes(b"no gzip")
    assert "Not a gzipped file" in refused(path)
    assert "No such file" in refused(tmp_path / "other.json")
    (tmp_path / "cut.json").write_bytes(b'{"traceEvents": [')
    assert "It is not JSON, or ends early." in refused(tmp_path / "cut.json")
    assert "trace must be the path of a file, got 5." in refused(5)
