"""What the recorder notes of a program that runs in the test's own process."""

import torch

from distlab_predict import torch_quick
from distlab_predict.recorder import Recorder


def kernels(program):
    """The kernels of a program without arguments, in their order."""
    recorder = Recorder(0)
    with torch_quick.QuickMode(allow_non_fake_inputs=True), recorder:
        program()
    return recorder.log.nodes


def compiled(make, prepare=lambda recorder: None, after=lambda: None, how=True):
    """What is noted of a model's forward and backward pass, as it would be compiled.

    Args:
        make: returns the model and its inputs. The sum of its results has the gradient 1.
        prepare: is called with the recorder before.
        after: is called after the backward pass.
        how: as of `distlab.predict(compiled=)`.
    """
    recorder = Recorder(0, how)
    prepare(recorder)
    with torch_quick.QuickMode(allow_non_fake_inputs=True), recorder:
        model, *inputs = make()
        recorder.before_module(torch.nn.Module(), ())
        result = model(*inputs)
        gradient = None
        if result.dim():
            gradient = torch.empty_like(result)
        result.backward(gradient)
        after()
        recorder.end_step()
        del result, gradient
    return recorder.recording("")


def step(recording):
    """The kernels of a recording's only step."""
    return recording.nodes[slice(*recording.steps[0])]
