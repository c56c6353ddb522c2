"""What lab 09 shows of an error of torch's own."""

from distlab_course.mismatched_job import PROGRAM, shortened

# as torch 2.13 writes it under TORCH_DISTRIBUTED_DEBUG=DETAIL
DEVICES = (
    "TensorDeviceTypes=TensorOptions(dtype=float (default), device=cpu, layout=Strided (default), "
    "requires_grad=false (default), pinned_memory=false (default), memory_format=(nullopt))"
)
CALL = "CollectiveFingerPrint(SequenceNumber=4, OpType=ALLREDUCE, TensorShape=[{}], "
ERROR = f"""Traceback (most recent call last):
  File "/tmp/work/epoch.py", line 22, in <module>
    train(images)
  File "/tmp/work/epoch.py", line 15, in train
    dist.all_reduce(seen)
  File "/usr/lib/torch/distributed/distributed_c10d.py", line 3245, in all_reduce
    work = group.allreduce([tensor], opts)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
RuntimeError: Detected mismatch between collectives on ranks. Rank 2 is running collective: \
{CALL.format(1)}TensorDtypes=Float, {DEVICES}), but Rank 0 is running collective: \
{CALL.format(8)}TensorDtypes=Float, {DEVICES}).Collectives differ in the following aspects: ...
"""


def test_an_error_is_shortened_to_what_a_reader_compares():
    assert shortened(ERROR).splitlines() == [
        "epoch.py, line 15 in train: dist.all_reduce(seen)",
        "RuntimeError: Detected mismatch between collectives on ranks.",
        "  Rank 2 is running collective:",
        f"    {CALL.format(1)}TensorDtypes=Float, ...)",
        "  Rank 0 is running collective:",
        f"    {CALL.format(8)}TensorDtypes=Float, ...)",
    ]


def test_the_calls_are_on_the_lines_that_the_exercise_names():
    """Line 14 is the one that rank 2 leaves out, and line 15 the one where it fails."""
    lines = PROGRAM.splitlines()
    assert [line.strip() for line in lines[13:15]] == [
        "dist.all_reduce(gradient)",
        "dist.all_reduce(seen)",
    ]
