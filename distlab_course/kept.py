"""`Kept`: the bytes of a forward pass that are still there when it has ended.

Lab 54 calls it in its kernel, with a block that is not divided.
"""

from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakValueDictionary

from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Kept(TorchDispatchMode):
    """Inside `with Kept(block) as kept`, each operator's results are noted while they exist.

    Args:
        module: its parameters do not count.
    """

    def __init__(self, module: nn.Module):
        super().__init__()
        self._parameters = {parameter.data_ptr() for parameter in module.parameters()}
        # by address; an entry is gone when the memory is
        self._storages: WeakValueDictionary[int, Any] = WeakValueDictionary()

    def __torch_dispatch__(
        self,
        operator: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run an operator, and note where its results are."""
        result = operator(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            if isinstance(value, Tensor):
                storage = value.untyped_storage()
                self._storages[storage.data_ptr()] = storage
        return result

    @property
    def num_bytes(self) -> int:
        """What exists now."""
        sizes = [
            storage.nbytes()
            for address, storage in self._storages.items()
            if address not in self._parameters
        ]
        return sum(sizes)
