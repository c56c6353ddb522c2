"""Notes what a program's operators read and write, so that it can be predicted as compiled.

Called by recorder.py, in the process of a rank that is recorded. What the program gives to
torch.compile is compiled, and its gradient. In a program that does not call torch.compile, it is
all of a model's forward and backward pass, and its loss. The optimizer, FSDP2's copies and
collectives never are. What follows a collective of DTensor's is compiled with what is before it, as
DTensor's own program is; what follows any other is not.
"""

import functools
import itertools
from bisect import bisect_right
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from distlab_predict import inductor, torch_groups
from distlab_predict import torch_fake as fake
from distlab_predict.dataflow import FUSED, HELD, OPAQUE, Access, Dataflow, Operation
from distlab_predict.fused import Fused, fused
from distlab_predict.memory import Journal
from distlab_predict.nodes import Stream, Wait
from distlab_predict.streams import NodeLog
from distlab_predict.torch_lines import number_in_backward, number_in_forward

NO_OTHER = -1  # the number of a call that is none of the others
# FSDP2's operators, which it calls between those of a model
OF_FSDP = {"all_gather_copy_in", "chunk_cat", "split_with_sizes_copy"}


class State(NamedTuple):
    """What the next operator depends on, besides its arguments.

    Attributes:
        operations: how many there were.
        unit: the number of the part of the program.
        statistics: how many storages without a tensor there are.
        is_in_call: whether the last operator was called by what the program has compiled.
        is_in_model, was_in_backward: where the program is.
    """

    operations: int
    unit: int
    statistics: int
    is_in_call: bool
    is_in_model: bool
    was_in_backward: bool


class Compiled:
    """The operators of a program with what they read and write.

    Attributes:
        flow: the operators.

    Args:
        log: of the nodes.
        journal: of the storages.
        by_hand: whether a person has fused the kernels, which the program launches one by one.
    """

    def __init__(self, log: NodeLog, journal: Journal, by_hand: bool = False):
        self._log = log
        self._by_hand = by_hand
        self._journal = journal
        self.flow = Dataflow()
        self._unit = 0
        self._is_in_model = False
        self._was_in_backward = False
        self._stream: Stream = None  # that the model computes on
        self._says_what = False  # whether the program calls torch.compile
        self._in_call = 0  # the number of the call that is under way; 0 for none
        self._of_forward: dict[int, int] = {}  # numbers of calls, by the operator's number
        # by the number of a call: the next operator's number when it began, and when it ended
        self._begins = [0]
        self._ends = [0]
        self._last = 0  # number of the call of the last operator
        # operators of this part of the program, by what they compute
        self._known: dict[Hashable, Operation] = {}
        self._statistics = 0  # how many storages without a tensor there are
        log.touch = self._touch

    def enter(self) -> None:
        """Note that a module is called."""
        self._is_in_model = True
        self._was_in_backward = False
        if self._stream is None:
            self._stream = self._log.current()

    def add(self, called: inductor.Called) -> None:
        """Note an operator whose kernel is the next node."""
        is_backward = self._is_in_backward()
        made = called.made or fake.tensors_in(fake.changed(called.operator, called.args))
        called = called._replace(made=made)
        call = self._call_of(is_backward)
        if not self._is_compiled(called) or (self._says_what and not call):
            self._break()
            self._note(OPAQUE, False, is_backward, _all_of(called.given), _all_of(made))
            return
        reads = self._accesses(inductor.read_by(called))
        size = max((tensor.numel() for tensor in (*called.given, *made)), default=0)
        parts = inductor.parts_of(called, self._by_hand)
        signature = self._signature(called, parts, is_backward)
        repeated = self._known.get(signature)
        if repeated is not None:
            storages = [access.storage for access in self._written(parts[0])]
            operation = self._operation(FUSED, True, is_backward, size)
            self.flow.repeat(operation, repeated, storages)
            return
        for part in parts:
            writes = self._written(part)
            operation = self._operation(part.role, True, is_backward, size)
            operation.is_by_rows = inductor.is_by_rows(called)
            self.flow.add(operation, reads, writes)
            if signature is not None:
                self._known[signature] = operation

    def _touch(self, given: Sequence[Tensor], made: Sequence[Tensor]) -> None:
        """Note the tensors of a collective or a message, which is the next node."""
        if not self._log.is_functional:
            self._break()
        collective = self._note(
            OPAQUE, False, self._is_in_backward(), _all_of(given), _all_of(made)
        )
        collective.is_by_rows = all(tensor.shape[:1] != (1,) for tensor in given)

    def end(self, steps: Sequence[tuple[int, int]], waits: Sequence[Wait] = ()) -> Fused:
        """What the compiled program has its device do instead.

        Args:
            steps: by step, the index of its first node, and the number of nodes at its end.
            waits: of the program for its device.
        """
        bounds = {bound for step in steps for bound in step}
        groups = torch_groups.with_micro_pipelines()
        return fused(self._log.nodes, self.flow, bounds, waits, groups, self._by_hand)

    # --- parts of a program that are like others ---

    def begin_part(self, is_backward: bool) -> None:
        """Begin a pass of a stage of a pipeline, which is compiled by itself.

        A backward pass calls no module, so it is said here that it is a model's: another backward
        pass and messages may come before it.
        """
        self._break()
        self._last = 0
        self._is_in_model = is_backward
        self._was_in_backward = False

    def state(self) -> State:
        """Where the program is."""
        operations = len(self.flow.operations)
        is_in_call = self._last != 0
        places = (self._is_in_model, self._was_in_backward)
        return State(operations, self._unit, self._statistics, is_in_call, *places)

    def go_on(self, state: State) -> None:
        """Go on as after a part that was repeated."""
        self._unit = state.unit
        self._statistics = state.statistics
        self._last = NO_OTHER if state.is_in_call else 0
        self._is_in_model = state.is_in_model
        self._was_in_backward = state.was_in_backward
        self._known.clear()

    # --- what is compiled ---

    def compile(self, model: Any = None, **options: Any) -> Any:
        """Stand in for torch.compile: what it returns is noted as compiled when it is called."""
        if model is None:
            return functools.partial(self.compile, **options)
        self._says_what = True
        if isinstance(model, torch.nn.Module):
            model.compile(**options)  # it calls this method again, with a function
            return model

        @functools.wraps(model)
        def call(*args: Any, **kwargs: Any) -> Any:
            outside = self._in_call
            if not outside:  # a part of what is compiled is compiled with it
                self._in_call = len(self._begins)
                self._begins.append(number_in_forward() + 1)
            try:
                result = model(*args, **kwargs)
            finally:
                self._in_call = outside
                if not outside:
                    self._ends.append(number_in_forward() + 1)
            if not outside:
                self._hold(fake.tensors_in(result))
            return result

        return call

    def _call_of(self, is_backward: bool) -> int:
        """The number of the call that has called this operator, or the one of its gradient."""
        call = self._in_call
        if is_backward:
            call = self._call_in_forward(number_in_backward())
        if not is_backward or fake.repeats_forward():
            self._of_forward.setdefault(number_in_forward(), call)
        if call != self._last:
            self._break()
        self._last = call
        return call

    def _call_in_forward(self, number: int) -> int:
        """The number of the call that an operator of the forward pass was a part of.

        An operator that makes others with a gradient, as DTensor's loss does, is known by when it
        was called, and the sum of two gradients, which is of no operator, by what was before it.
        """
        call = self._of_forward.get(number)
        if call is not None:
            return call
        call = bisect_right(self._begins, number) - 1
        if 0 < call < len(self._ends) and number < self._ends[call]:
            return call
        return self._last

    def _is_in_backward(self) -> bool:
        is_now = fake.is_in_backward()
        if is_now:
            self._was_in_backward = True
        elif self._was_in_backward:  # what follows is no model's until a module is called
            self._was_in_backward = False
            self._is_in_model = False
        return is_now

    def _is_compiled(self, called: inductor.Called) -> bool:
        if not self._is_in_model or called.name in OF_FSDP or called.name.startswith("_foreach"):
            return False
        return self._log.current() is self._stream

    def _break(self) -> None:
        """Begin another part of the program, which is compiled by itself."""
        self._unit += 1
        self._known.clear()

    # --- what is read and written ---

    def _hold(self, tensors: Iterable[Tensor]) -> None:
        """Note that the program has these tensors, so that they must be written."""
        parts = itertools.chain.from_iterable(map(fake.in_memory, tensors))
        self._note(OPAQUE, False, self._is_in_backward(), _all_of(parts), [], node=HELD)

    def _note(
        self,
        role: str,
        is_compiled: bool,
        is_backward: bool,
        reads: Iterable[tuple[Tensor, int]],
        writes: Iterable[tuple[Tensor, int]],
        node: int | None = None,
    ) -> Operation:
        operation = self._operation(role, is_compiled, is_backward, 0)
        if node is not None:
            operation.node = node
        self.flow.add(operation, self._accesses(reads), self._accesses(writes))
        return operation

    def _operation(self, role: str, is_compiled: bool, is_backward: bool, size: int) -> Operation:
        index = len(self._log.nodes)
        is_again = fake.repeats_forward()
        return Operation(index, role, self._unit, is_compiled, is_backward, is_again, size)

    def _signature(
        self, called: inductor.Called, parts: Sequence[inductor.Part], is_backward: bool
    ) -> Hashable:
        """What an operator computes: one that computes the same is left out by the compiler.

        Returns:
            None for one that is never left out.
        """
        if len(parts) != 1 or parts[0].role == OPAQUE or called.name in inductor.RANDOM:
            return None
        if fake.changes_arguments(called.operator):
            return None
        arguments = self._described((called.args, tuple(called.kwargs.items())))
        signature = (called.operator, is_backward, arguments)
        try:
            hash(signature)
        except TypeError:
            return None
        return signature

    def _described(self, value: Any) -> Any:
        """An argument of an operator: a tensor by what its storage holds, and its place there."""
        if isinstance(value, (tuple, list)):
            return tuple(self._described(one) for one in value)
        if isinstance(value, Tensor):
            storage = self._journal.number_of(value)
            if storage is None:
                return id(value)
            held = self.flow.value_of(storage)
            return held, value.shape, value.stride(), value.storage_offset(), value.dtype
        return type(value), value

    def _written(self, part: inductor.Part) -> list[Access]:
        accesses = []
        for tensor, is_reduced in part.writes:
            accesses += self._accesses([(tensor, tensor.nbytes)], is_reduced)
        if part.statistics:
            self._statistics += 1
            storage = -self._statistics
            self.flow.sizes[storage] = part.statistics
            accesses.append(Access(storage, 0, part.statistics, is_reduced=True))
        return accesses

    def _accesses(
        self, tensors: Iterable[tuple[Tensor, int]], is_reduced: bool = False
    ) -> list[Access]:
        """The parts of storages that these tensors are, each with the bytes that are used."""
        accesses = []
        for tensor, num_bytes in tensors:
            storage = self._journal.number_of(tensor)
            if storage is None:  # a number of the program's own, and no tensor of the device
                continue
            size = tensor.untyped_storage().nbytes()
            self.flow.sizes[storage] = max(size, self.flow.sizes.get(storage, 0))
            begin = int(tensor.storage_offset()) * tensor.element_size()
            accesses.append(Access(storage, begin, min(num_bytes, size), is_reduced))
        return accesses


def _all_of(tensors: Iterable[Tensor]) -> list[tuple[Tensor, int]]:
    return [(tensor, tensor.nbytes) for tensor in tensors]
