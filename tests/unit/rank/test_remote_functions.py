"""How functions travel in a remote call: by name, or by value with the callee's variables."""

import io
import pickle
import sys
import textwrap

import pytest

from distlab.rank.rpc_calls import Pickler


def sent(value):
    """The bytes of a value, as torch would send it."""
    stream = io.BytesIO()
    Pickler(stream).dump(value)
    return stream.getvalue()


@pytest.fixture
def cell(monkeypatch):
    """Runs source in the __main__ of another rank each time, and gives its names."""

    def run(source=""):
        module = type(sys)("__main__")
        monkeypatch.setitem(sys.modules, "__main__", module)
        exec(compile(textwrap.dedent(source), "cell.py", "exec"), vars(module))
        return vars(module)

    return run


def test_a_function_of_a_cell_finds_the_callees_variables(cell):
    """Its code is the caller's; what it reads and sets is the callee's."""
    source = """
        rank, count = 0, 10
        def add(n):
            global count
            count += n
            return rank, count
    """
    data = sent(cell(source)["add"])
    there = cell("rank, count = 1, 20")
    assert pickle.loads(data)(5) == (1, 25)
    assert there["count"] == 25


def test_functions_that_it_uses_come_along_and_values_do_not(cell):
    """A helper comes where the callee has none; a missing value is a NameError."""
    source = """
        import math
        secret = 3
        def helper(x):
            return math.sqrt(x)
        def outer(x):
            return helper(x) + (0 if x else secret)
    """
    data = sent(cell(source)["outer"])
    cell()
    function = pickle.loads(data)
    assert function(16) == 4
    with pytest.raises(NameError, match="secret"):
        function(0)


def test_a_class_of_a_cell_is_the_callees(cell):
    """It goes by its name, which the error has if the class is not there."""
    data = sent(cell("class Model: pass")["Model"])
    there = cell("class Model: pass")
    assert pickle.loads(data) is there["Model"]
    cell()
    with pytest.raises(AttributeError, match="Model"):
        pickle.loads(data)


def test_a_function_that_came_by_value_goes_on_with_its_values():
    """Its module is not the callee's __main__: what it reads comes along."""
    function = eval("lambda x: x * FACTOR", {"FACTOR": 7, "__name__": "elsewhere"})
    assert pickle.loads(sent(function))(6) == 42
