"""What a trace of torch.profiler calls collectives and number formats. Pure functions.

Called by kineto.py.
"""

# by the name in a trace, without underscores
COLLECTIVES = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "allgatherbase": "all_gather",
    "allgatherintotensorcoalesced": "all_gather",
    "reducescatter": "reduce_scatter",
    "reducescatterbase": "reduce_scatter",
    "reducescattertensorcoalesced": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoallv": "all_to_all",
    "alltoallbase": "all_to_all",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "send": "send",
    "recv": "recv",
}
# torch's names by those in a trace: C++ types, and c10's ScalarType in lower case
DTYPES = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "long int": "int64",
    "long": "int64",
    "int": "int32",
    "short": "int16",
    "signed char": "int8",
    "char": "int8",
    "unsigned char": "uint8",
    "byte": "uint8",
}


def collective_named(name: str) -> str:
    """Our name of a collective, "all_gather" of "_allgather_base"; the trace's if we have none."""
    return COLLECTIVES.get(name.replace("_", "").lower(), name)


def dtype_named(name: str) -> str:
    """The number format that a trace names: "bfloat16" of "c10::BFloat16"."""
    short = name.removeprefix("c10::").lower()
    return DTYPES.get(short, short)
