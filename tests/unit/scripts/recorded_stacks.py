"""Stacks of four ranks that hung, as the tools have written them; only folders are made up."""

TORCH = "/home/ada/.venv/lib/python3.11/site-packages/torch"
PYTHON = "/usr/lib/python3.11"

BARRIER = """Process 825: /home/ada/.venv/bin/python -u train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 825 (idle): "MainThread"
    barrier (torch/distributed/distributed_c10d.py:5356)
    _exception_logger.<locals>.wrapper (torch/distributed/c10d_logger.py:83)
    save (train.py:12)
    train (train.py:22)
    <module> (train.py:27)
"""

ALL_REDUCE = """Process 826: /home/ada/.venv/bin/python -u train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 826 (idle): "MainThread"
    all_reduce (torch/distributed/distributed_c10d.py:3252)
    _exception_logger.<locals>.wrapper (torch/distributed/c10d_logger.py:83)
    validate (train.py:7)
    train (train.py:24)
    <module> (train.py:27)
"""

COMPUTING = """Process 827: /home/ada/.venv/bin/python -u train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 827 (active+gil): "MainThread"
    train (train.py:20)
    <module> (train.py:27)
"""

RECV_WITH_LOCALS = f"""Process 331: /home/ada/.venv/bin/python -u train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 331 (idle): "MainThread"
    recv ({TORCH}/distributed/distributed_c10d.py:2799)
        Arguments:
            tensor: <Tensor at 0x7fd837433480>
            src: 1
            group: None
            tag: 3
            group_src: None
        Locals:
            work: <torch._C._distributed_c10d.Work at 0x7fd836e6d7f0>
    _exception_logger.<locals>.wrapper ({TORCH}/distributed/c10d_logger.py:83)
        Locals:
            args: (<Tensor at 0x7fd837433480>)
            kwargs: {{"src": 1, "tag": 3}}
    train (/home/ada/job/train.py:11)
        Locals:
            step: 41
    <module> (/home/ada/job/train.py:37)
Thread 368 (idle): "loader"
    loader (/home/ada/job/train.py:8)
    Thread.run ({PYTHON}/threading.py:982)
    Thread._bootstrap_inner ({PYTHON}/threading.py:1045)
    Thread._bootstrap ({PYTHON}/threading.py:1002)
"""

FULL_TENSOR = f"""Process 605: /home/ada/.venv/bin/python -u train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 605 (idle): "MainThread"
    OpOverloadPacket.__call__ ({TORCH}/_ops.py:1279)
    wait_tensor ({TORCH}/distributed/_functional_collectives.py:142)
    AsyncCollectiveTensor.wait ({TORCH}/distributed/_functional_collectives.py:1122)
    redistribute_local_tensor ({TORCH}/distributed/tensor/_redistribute.py:1766)
    Redistribute.forward ({TORCH}/distributed/tensor/_redistribute.py:1918)
    Function.apply ({TORCH}/autograd/function.py:625)
    DTensor.redistribute ({TORCH}/distributed/tensor/_api.py:731)
    DTensor.full_tensor ({TORCH}/distributed/tensor/_api.py:774)
    train (/home/ada/job/train.py:31)
"""

ALL_GATHER_OBJECT = f"""Current thread 0x00007fd8565e5b80 (most recent call first):
  File "{TORCH}/distributed/distributed_c10d.py", line 4287 in all_gather
  File "{TORCH}/distributed/c10d_logger.py", line 83 in wrapper
  File "{TORCH}/distributed/distributed_c10d.py", line 3513 in all_gather_object
  File "{TORCH}/distributed/c10d_logger.py", line 83 in wrapper
  File "/home/ada/job/train.py", line 12 in train
  File "/home/ada/job/train.py", line 37 in <module>
"""

WITH_THREADS = f"""Thread 0x00007fd8355116c0 (most recent call first):
  File "/home/ada/job/train.py", line 8 in loader
  File "{PYTHON}/threading.py", line 982 in run
  File "{PYTHON}/threading.py", line 1045 in _bootstrap_inner
  File "{PYTHON}/threading.py", line 1002 in _bootstrap

Current thread 0x00007fd8565e5b80 [python] (most recent call first):
  File "{TORCH}/distributed/utils.py", line 286 in _verify_param_shape_across_processes
  File "{TORCH}/nn/parallel/distributed.py", line 1064 in __init__
  File "/home/ada/job/train.py", line 35 in train
  File "/home/ada/job/train.py", line 37 in <module>
"""

IMPORTING_IN_SAVE = f"""Stack (most recent call first):
  File "<frozen importlib._bootstrap>", line 241 in _call_with_frames_removed
  File "{TORCH}/distributed/checkpoint/_storage_utils.py", line 33 in _storage_setup
  File "{TORCH}/distributed/checkpoint/state_dict_saver.py", line 193 in save
  File "/home/ada/job/train.py", line 30 in train
"""

PAGE = f"""<section class="content">
    <h1>Stacks</h1>
        <h2>Rank 0: http://node1:38429/handler/dump_traceback?</h2>

            <pre>Current thread 0x00007f128affd6c0 (most recent call first):
  &lt;no Python frame&gt;

Thread 0x00007f12b1658b80 (most recent call first):
  File "{TORCH}/distributed/distributed_c10d.py", line 3252 in all_reduce
  File "{TORCH}/distributed/c10d_logger.py", line 83 in wrapper
  File "/home/ada/job/train.py", line 12 in train
  File "/home/ada/job/train.py", line 13 in &lt;module&gt;
</pre>
        <h2>Rank 1: http://node1:50957/handler/dump_traceback?</h2>

            <pre>Current thread 0x00007fb8a37fe6c0 (most recent call first):
  <no Python frame>

Thread 0x00007fb8ca1e7b80 (most recent call first):
  File "/home/ada/job/train.py", line 11 in train
  File "/home/ada/job/train.py", line 13 in <module>
</pre>
"""

DUMPED_PAGE = f"""=== Rank 0: http://node1:38429/handler/dump_traceback? ===
Thread 0x00007f12b1658b80 (most recent call first):
  File "{TORCH}/distributed/distributed_c10d.py", line 3252 in all_reduce
  File "/home/ada/job/train.py", line 12 in train

=== Rank 1: http://node1:50957/handler/dump_traceback? ===
Error: 408
"""

AGENT = f"""Process 821: /home/ada/.venv/bin/python /home/ada/.venv/bin/torchrun train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 821 (idle): "MainThread"
    _invoke_run ({TORCH}/distributed/elastic/agent/server/api.py:923)
    run ({TORCH}/distributed/run.py:1019)
    <module> (/home/ada/.venv/bin/torchrun:8)
"""
