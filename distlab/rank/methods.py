"""The methods of torch's ProcessGroup by what they are, and the functions that a learner calls.

Tables for every rank, which whoever notes, compares, times or simulates a call reads.
"""

from distlab.compat import torch as private

ANY_SOURCE = -1  # in the place of the peer of a message
# functions that wait for their message, and keep its Work until its end
WAITS_FOR_MESSAGE = ("send", "send_object_list", "recv", "recv_object_list")
IMMEDIATE = ("isend", "irecv", "batch_isend_irecv")  # functions that do not wait for their messages
# methods of ProcessGroup by what they are; some have an old name and a new one
MESSAGE_METHODS = ("send", "recv", "recv_anysource")
_REDUCING = (
    "allreduce",
    "allreduce_coalesced",
    "reduce",
    "reduce_scatter",
    private.REDUCE_SCATTER_BASE,
)
_GATHERING = (
    "allgather",
    "allgather_coalesced",
    private.ALL_GATHER_BASE,
    "gather",
    "all_gather_single",
)
_EXCHANGING = (
    "broadcast",
    "scatter",
    "alltoall",
    "alltoall_base",
    "all_to_all_single",
    "reduce_scatter_single",
)
# several calls as one, and the function that a learner calls for each
TOGETHER = {
    "allreduce_coalesced": "all_reduce",
    "allgather_into_tensor_coalesced": "all_gather_into_tensor",
    "all_gather_single_coalesced": "all_gather_single",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_tensor",
    "reduce_scatter_single_coalesced": "reduce_scatter_single",
}
COLLECTIVE_METHODS = (
    *_REDUCING,
    *_GATHERING,
    *_EXCHANGING,
    "allgather_into_tensor_coalesced",
    "all_gather_single_coalesced",
    "reduce_scatter_tensor_coalesced",
    "reduce_scatter_single_coalesced",
    "barrier",
    "monitored_barrier",
)
# the root of those that have one, as torch's functions call the argument
ROOTED = {"broadcast": "src", "scatter": "src", "reduce": "dst", "gather": "dst"}
# the arguments with a place for what each rank sends
PLACES = {"allgather": "tensor_list", "gather": "gather_list", "alltoall": "output_tensor_list"}
