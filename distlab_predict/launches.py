"""How much a processor has to do until a kernel is launched. Plain numbers.

Used by streams.py, recorder.py and fused.py, in the process of a rank that is recorded. The unit is
an operator: an eager one that launches a kernel, from Python or from a backward pass, which takes
`Device.host` seconds. All else is a multiple of it, so that one number describes a processor.

What the multiples rest on. In a loop that does nothing else all of them take half as long as in a
program, whose code and data are in no cache: torch's Linear, two operators here, takes 13.5 us
beside an H100 (issue 2053 of github.com/NVIDIA/TransformerEngine). Beside a Grace, Transformer
Engine's takes 2.7 times as long as torch's, which no number here knows.

- An eager addition takes 8 us until the next one can begin, without a gradient, beside an A100
  (github.com/flagos-ai/Torch-FL, pull request 27). On a CPU, where nothing is launched, an addition
  takes 1.8 us, and one with a gradient 3.7 us. A node of the backward pass takes 1.6 times what an
  operator of the forward pass does, modules left out: they are taken to be alike. The rest of an
  operator's time is the CUDA driver's, 2 to 5 us, and the allocator's.
- A view with a gradient takes 3 us on that CPU, and less where one operator calls another in C++.
- torch.nn.Linear takes 8 us more there than the operators that it calls.
- DTensor takes 36 to 40 us for an operator, and 24 to 26 us with torch 2.10's quicker way, on a
  Skylake (github.com/pytorch/pytorch, pull request 166371).
- FSDP2 with three parameters a module takes 225 us of a forward pass and 350 us of a backward pass
  on that CPU. Beside GPUs a forward hook takes up to 1 ms (github.com/pytorch/pytorch, issue
  173680). What it calls is counted by itself, so this is the rest.
- AdamW's foreach implementation loops over parameters in Python, 5 to 10 us for each of them, and a
  DTensor's part is looked for and wrapped again.
- inductor's wrapper calls a Triton kernel in about half the time of an eager operator. Guards and
  the wrapper of AOTAutograd take about 100 us for each graph; both are estimates.
- A kernel that a person has fused (`compiled="by hand"`) is launched by Python or C++ like any
  operator. In Transformer Engine that is no less: besides its Linear, see above, 8 products of
  experts without casts take 267 us where they compute next to nothing (pull request 3134).
- An all-reduce of one rank by gloo takes 37 us on that CPU, and NCCL's records events as well.
"""

OPERATOR = 1.0  # that launches a kernel
VIEW = 0.2  # an operator that launches nothing
MODULE = 0.5  # the call of a module, besides its operators
DTENSOR = 2.5  # what DTensor adds to an operator
FSDP = 10.0  # what FSDP2 adds to a gathering of parameters, and to a reduction of gradients
CALL = 4.0  # a collective or a message
PARAMETER = 0.5  # each parameter of an optimizer
COMPILED = 0.6  # a kernel of a compiled graph
GRAPH = 10.0  # a compiled graph, besides its kernels
READ = 2.0  # to ask the device for a value, and to wake up when it is there
