"""What an answer replaces on its rank is seen, in modules that it imports first, too."""

from distlab.checking.tampering import OWN_MODULES
from tests.processes import python

NEW_RANK = """
import importlib
from distlab.checking import tampering

tampering.remember_functions()
assert tampering.changed_function() == ""
for module in map(importlib.import_module, tampering.OWN_MODULES):
    name, value = next(item for item in vars(module).items() if callable(item[1]))
    setattr(module, name, lambda *_: None)
    print(tampering.changed_function() == f"{module.__name__}.{name}")
    setattr(module, name, value)
"""


def test_a_new_rank_watches_every_module():
    """In a Python that has imported nothing else of distlab."""
    done = python("-c", NEW_RANK)
    assert done.stderr == ""
    assert done.stdout.split() == ["True"] * len(OWN_MODULES)
