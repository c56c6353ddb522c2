"""Notes few micro-batches of a pipeline, and repeats what was noted for the others.

Called by torch_pipelines.py, in the process of a rank that is recorded. A schedule of torch's
pipelining calls a stage once for each micro-batch: a forward pass, on the last stage the loss, and
a backward pass. The first micro-batch is noted by itself, as FSDP gathers parameters there, and
gradients begin. The next two are compared: what was noted of the first of them must be what was
noted of the second, with other numbers of nodes and storages. Then it is noted again for each of
the others, without running them. Whatever does not fit is noted as it runs; if that is no longer
possible, as a forward pass was left out, the program runs again from the beginning with all of its
micro-batches.

What is not repeated: a pass that prints, that reads values which the program itself has written,
that changes a number of one of its modules, that asks for a truth which only data decides, or that
gathers parameters, as FSDP does if it reshards them after each forward pass. A function that counts
its calls elsewhere, as in a global variable, is not found out.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

from distlab_predict import garbage
from distlab_predict.compiled import Compiled
from distlab_predict.dataflow import Operation
from distlab_predict.memory import Journal
from distlab_predict.repeats_compared import BACKWARD, FORWARD, LOSS, Patterns
from distlab_predict.repeats_moved import moved
from distlab_predict.repeats_noted import Call, Noted, Place, calls_of, changes_older
from distlab_predict.streams import NodeLog
from distlab_predict.torch_alike import (
    CannotRepeat,
    Results,
    are_alike,
    check,
    described,
    made_like,
    parts_of,
    storages_of,
)


class Again(BaseException):
    """The program must run again, with all of its micro-batches.

    It is no Exception, so that no program catches it.
    """


class Repeats:
    """The passes of a rank's stages.

    Args:
        log, journal, compiled: of the rank.
        state: returns what must not change while a pass runs that is to stand for others, as the
            length of what was printed.
        may_repeat: whether any is repeated.
    """

    def __init__(
        self,
        log: NodeLog,
        journal: Journal,
        compiled: Compiled | None,
        state: Callable[[], Hashable],
        may_repeat: bool,
    ):
        self._log = log
        self._journal = journal
        self._compiled = compiled
        self._state = state
        self._may_repeat = may_repeat
        self._is_in_part = False
        self._patterns = Patterns()
        # of micro-batches whose backward pass is to come, by stage, micro-batch and pass
        self._places: dict[tuple[Any, int, str], Place] = {}
        self._left_out: set[tuple[Any, int]] = set()  # those that did not run
        self._mode: Any = None  # of fake tensors

    # --- passes that run ---

    def run(
        self,
        name: str,
        owner: Any,
        chunk: int,
        given: Any,
        call: Callable[[], Any],
        results: Callable[[], Any],
        model: Any,
    ) -> Any:
        """Have a pass run.

        Args:
            name: of the pass.
            owner: the stage.
            chunk: the micro-batch.
            given: what the pass is given.
            call: runs it.
            results: returns what the program gets of it.
            model: the module that it calls, if any.

        Returns:
            What `call` has returned.
        """
        if self._is_in_part:  # a stage that calls another one
            return call()
        place = self._begin(name, owner, chunk, given)
        self._places[owner, chunk, name] = place
        is_noted = self._may_repeat and chunk > 0 and self._patterns.sure(owner, name) is None
        before = (self._state(), _numbers_in(model)) if is_noted else ()
        flow = self._compiled.flow if self._compiled is not None else None
        if flow is not None and is_noted:
            flow.calls = []
        self._is_in_part = True
        noted = None
        try:
            value = call()
            if self._may_repeat:
                place.visible = self._seen(results())
            if is_noted:
                noted = self._noted(place, results)
        except CannotRepeat:
            self.repeat_no_more()
        finally:
            self._is_in_part = False
            if flow is not None:
                flow.calls = None
            self._end(place)
        if noted is not None:
            is_same = before == (self._state(), _numbers_in(model))
            if not is_same or not self._patterns.compare(name, owner, place, noted):
                self.repeat_no_more()
        return value

    def _begin(self, name: str, owner: Any, chunk: int, given: Any) -> Place:
        """Where a pass is that begins now."""
        if self._compiled is not None and name != LOSS:  # a loss is compiled with the last block
            self._compiled.begin_part(is_backward=name == BACKWARD)
        state = self._compiled.state() if self._compiled is not None else None
        earlier = []
        for other in (FORWARD, LOSS):
            place = self._places.get((owner, chunk, other))
            if place is not None:
                earlier.append(place)
        inputs = self._described(given)
        part = self._log.begin_part()
        return Place(part, *self._journal.counts(), state, inputs, tuple(earlier))

    def _end(self, place: Place) -> None:
        self._log.end_part(place.part)
        storages, _ = self._journal.counts()
        place.num_storages = storages - place.storages
        if place.state is not None and self._compiled is not None:
            operations = self._compiled.state().operations
            place.num_operations = operations - place.state.operations

    def _seen(self, values: Any) -> frozenset[int]:
        """The numbers of the storages of what the program gets."""
        return frozenset(self.by_storage(values))

    def _noted(self, place: Place, results: Callable[[], Any]) -> Noted:
        """What was noted in a pass that has run."""
        journal = self._journal.noted_since(place.storages, place.changes)
        if changes_older(journal.changes, place):
            raise CannotRepeat("memory that was there before")
        calls: list[Call] = []
        sizes: dict[int, int] = {}
        state = None
        if self._compiled is not None:
            flow = self._compiled.flow
            calls = calls_of(flow.calls or [], place, flow.operations)
            for call in calls:
                numbers = [access.storage for access in (*call.reads, *call.writes)]
                for number in (*numbers, *call.storages):
                    sizes[number] = flow.sizes.get(number, 0)
            state = self._compiled.state()
        values = results()
        results_now = described(values, self._journal.number_of)
        check(values, results_now, place.inputs, place.storages)
        for tensor in parts_of(values):
            self._mode = getattr(tensor, "fake_mode", self._mode)
        stretch = self._log.noted_since(place.part)
        return Noted(stretch, journal, calls, sizes, state, results_now)

    def repeat_no_more(self) -> None:
        """Have all passes run from now on.

        Raises:
            Again: the forward pass of a micro-batch was left out.
        """
        self._may_repeat = False
        self._patterns.clear()
        if self._left_out:
            raise Again

    # --- micro-batches ---

    def begin_step(self, owner: Any) -> None:
        """Begin a step: gradients begin, so that passes differ from those before."""
        self._patterns.forget(owner)
        for key in [key for key in self._places if key[0] is owner]:
            del self._places[key]

    def leave_out(self, owner: Any, chunk: int) -> None:
        """Say that no pass of a micro-batch runs."""
        self._left_out.add((owner, chunk))

    def is_left_out(self, owner: Any, chunk: int) -> bool:
        """Whether no pass of a micro-batch runs."""
        return (owner, chunk) in self._left_out

    def end_chunk(self, owner: Any, chunk: int) -> None:
        """Say that all passes of a micro-batch have run, or were repeated."""
        self._left_out.discard((owner, chunk))
        for name in (FORWARD, LOSS, BACKWARD):
            self._places.pop((owner, chunk, name), None)

    # --- passes that are repeated ---

    def can_repeat(self, name: str, owner: Any, given: Any) -> bool:
        """Whether a pass of this stage need not run."""
        pattern = self._patterns.sure(owner, name)
        if not self._may_repeat or self._is_in_part or pattern is None:
            return False
        return are_alike(pattern.place.inputs, self._described(given))

    def _described(self, given: Any) -> Results:
        """What a pass is given."""
        try:
            return described(given, self._journal.number_of)
        except CannotRepeat:
            self.repeat_no_more()
            return Results((), None)

    def by_storage(self, values: Any) -> dict[int, list[Tensor]]:
        """The tensors among these values, by the numbers of their storages."""
        found: dict[int, list[Tensor]] = {}
        for tensor in parts_of(values):
            number = self._journal.number_of(tensor)
            if number is not None:
                found.setdefault(number, []).append(tensor)
        return found

    def repeat(
        self, name: str, owner: Any, chunk: int, given: Any, held: dict[int, list[Tensor]]
    ) -> Any:
        """Note once more what was noted of a pass.

        Args:
            name, owner, chunk, given: as of `run`.
            held: tensors that are let go in this pass, by the numbers of their storages.

        Returns:
            What the program gets of it.
        """
        pattern = self._patterns.sure(owner, name)
        assert pattern is not None  # as can_repeat has said
        place = self._begin(name, owner, chunk, given)
        self._places[owner, chunk, name] = place
        with garbage.left_alone():
            noted = moved(pattern.noted, pattern.place, place)
        storages = storages_of(noted.results, self.by_storage(given), place.storages)
        results = made_like(noted.results, storages, self._mode)
        del given
        self._note_again(noted, place, storages, held)
        self._end(place)
        place.visible = self._seen(results)
        return results

    def _note_again(
        self,
        noted: Noted,
        place: Place,
        storages: dict[int, torch.UntypedStorage],
        held: dict[int, list[Tensor]],
    ) -> None:
        nodes = self._log.nodes
        begin = place.part.node

        def go_to(number: int) -> None:
            nodes.extend(noted.log.nodes[len(nodes) - begin : number - begin])

        new = {number: one for number, one in storages.items() if number >= place.storages}
        self._journal.repeat(noted.journal, new, held, go_to)
        held.clear()
        go_to(begin + len(noted.log.nodes))
        self._log.waits += noted.log.waits
        self._log.set_ends(noted.log.ends)
        self._log.host = noted.log.host
        if self._compiled is None or noted.state is None:
            return
        flow = self._compiled.flow
        flow.sizes.update(noted.sizes)
        for call in noted.calls:
            operation = Operation(call.node, call.role, call.unit, *call.flags)
            if call.repeated is None:
                flow.add(operation, call.reads, call.writes)
            else:
                flow.repeat(operation, flow.operations[call.repeated], call.storages)
        self._compiled.go_on(noted.state)


def _numbers_in(model: Any) -> list[Any]:
    """What modules count: a pass that changes any of it may be another one next time."""
    found: list[Any] = []
    if not isinstance(model, torch.nn.Module):
        return found
    for module in model.modules():
        for value in vars(module).values():
            if isinstance(value, (bool, int, float, str)):
                found.append(value)
            elif isinstance(value, (list, set, dict)):
                found.append(len(value))
    return found
