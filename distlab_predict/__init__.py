"""What a program would do on machines that are not there: one rank of each role runs, without data.

    program -> predict.py -> recorder.py, which notes what one rank calls (nodes.py)
            -> timeline.py, which finds when, with costs.py
            -> prediction.py, which says what that means

costs.py asks kernels.py for what a kernel takes, and for a call placement.py, which knows where a
group is, and nccl.py, which chooses as NCCL does (nccl_tuning.py, nccl_groups.py). collectives.py
shows the result.

How sure that is, uncertainty.py says, and grounds.py what it rests on; prediction_shown.py has the
table and the picture. calibration.py learns from a measured step, or from a trace: kineto.py reads
it (kineto_file.py, kineto_gloo.py, kineto_names.py), and trace_rates.py and trace_calls.py find the
program in it.

For `predict.plan`, planner.py predicts the layouts that search.py finds worth it (layouts.py), and
plans.py says which is best, with reasons.py and plan_maps.py. interrupted.py keeps what was found
before a person interrupts.

All of this runs on the notebook's kernel, but recorder.py in a process that forks a child for each
rank: recording_process.py starts it, its program is recordings.py, and rank_children.py is a child.
There, group.py is the backend, streams.py and memory.py keep account (peaks.py and allocator.py say
what that is on a GPU, device_memory.py and memory_shown.py show it), and torch_fake.py,
torch_known.py and torch_changed.py change torch (with torch_patches.py, what it puts there is in
torch_groups.py, torch_layers.py and torch_values.py); no_data.py is the number that a tensor
without data gives. Where a program branches on one, deciding.py answers, and branches.py has it
recorded with both answers. Of a pipeline, torch_pipelines.py has few micro-batches run: repeats.py
repeats them for the others (repeats_noted.py is what was noted of one, repeats_moved.py what that
would be in another place, and torch_alike.py makes the tensors that the program gets).
"""
