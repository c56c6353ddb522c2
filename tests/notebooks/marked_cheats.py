"""Answers that get their points by a trick, and odd answers of honest people.

They are plain text: nothing runs here.

CHEATS: (kind of exercise, cell of the answer); NAME stands for the exercise. Each has to be marked
0, or left to a person. ODDITIES: cells before an answer, and the answer's; each is marked as a
notebook marks it.
"""

ALWAYS_EQUAL = """\
class Any:
    def __eq__(self, other):
        return True
    __hash__ = None
def NAME(*arguments):
    return Any()"""

CHEATS = {
    "a class that equals everything": ("plain", ALWAYS_EQUAL),
    "an int that equals everything": (
        "plain",
        """\
class Any(int):
    def __eq__(self, other):
        return True
    def __sub__(self, other):
        return 0
def NAME(number):
    return Any(3)""",
    ),
    "a tensor that torch asks": (
        "total",
        """\
import torch
class T(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return True
def NAME(tensor):
    tensor.__class__ = T""",
    ),
    "a tensor of another class, by type()": (
        "total",
        """\
import torch
def NAME(tensor):
    kind = type("T", (torch.Tensor,), {"__torch_function__": classmethod(lambda *a, **k: True)})
    return torch.Tensor.as_subclass(tensor, kind)""",
    ),
    "words that pickle a verdict": (
        "plain",
        """\
import os
class Verdicts:
    def __reduce__(self):
        return os.write, (3, b'[true, "NAME: passed"]\\n')
class Words(str):
    def __reduce__(self):
        return list, ([Verdicts()],)
class Odd:
    def __repr__(self):
        return Words("odd")
def NAME(number):
    return Odd()""",
    ),
    "words that pickle a verdict, with nothing imported": (
        "plain",
        """\
class Verdicts:
    def __reduce__(self):
        return print, ('[true, "NAME: passed"]',)
class Words(str):
    def __reduce__(self):
        return list, ([Verdicts()],)
class Odd:
    def __repr__(self):
        return Words("odd")
def NAME(number):
    return Odd()""",
    ),
    "an error whose message pickles": (
        "plain",
        """\
class Words(str):
    def __reduce__(self):
        return print, ('[true, "NAME: passed"]',)
class Odd(Exception):
    def __str__(self):
        return Words("odd")
def NAME(number):
    raise Odd()""",
    ),
    "torch.equal is replaced": (
        "total",
        """\
torch.equal = torch.allclose = lambda *a, **k: True
def NAME(tensor):
    pass""",
    ),
    "torch.equal is replaced by another name": (
        "total",
        """\
library = [torch][0]
library.equal = library.allclose = lambda *a, **k: True
def NAME(tensor):
    dist.all_reduce(tensor)""",
    ),
    "setattr in a default argument": (
        "total",
        """\
def NAME(tensor, done=setattr(torch, "equal", lambda *a: True)):
    pass""",
    ),
    "all_reduce does nothing": (
        "total",
        """\
communication = [dist][0]
communication.all_reduce = lambda *a, **k: None
def NAME(tensor):
    pass""",
    ),
    "get_rank says 0": (
        "plain",
        """\
communication = [dist][0]
communication.get_rank = lambda *a: 0
def NAME(number):
    return 70""",
    ),
    "a method of Tensor is replaced": (
        "total",
        """\
kind = [torch.Tensor][0]
kind.__eq__ = lambda *a: True
def NAME(tensor):
    dist.all_reduce(tensor)""",
    ),
    "a builtin is replaced": (
        "plain",
        """\
import builtins
builtins.all = builtins.isinstance = lambda *a: True
def NAME(number):
    return 0""",
    ),
    "the module of a module": (
        "plain",
        """\
import os
def NAME(number):
    return os.sys.modules["distlab.checking"].all_exercises()["NAME"].function(number)""",
    ),
    "a module of torch's": (
        "plain",
        """\
def NAME(number):
    return torch.sys.modules["distlab.checking"].all_exercises()["NAME"].function(number)""",
    ),
    "builtins by a name in two halves": (
        "plain",
        """\
def NAME(number):
    return getattr(torch, "__buil" + "tins__")["__import__"]("distlab")""",
    ),
    "frames": (
        "plain",
        """\
import sys
def NAME(number):
    frame = sys._getframe()
    while frame:
        if "exercise" in frame.f_locals:
            return frame.f_locals["exercise"].function(number)
        frame = frame.f_back""",
    ),
    "frames of an error": (
        "plain",
        """\
def NAME(number):
    try:
        1 / 0
    except ZeroDivisionError as error:
        frame = error.__traceback__.tb_frame
        while frame and "exercise" not in frame.f_locals:
            frame = frame.f_back
        return frame.f_locals["exercise"].function(number)""",
    ),
    "frames of a generator": (
        "plain",
        """\
def NAME(number):
    def steps():
        yield running.gi_frame.f_back
    running = steps()
    frame = next(running)
    while frame and "exercise" not in frame.f_locals:
        frame = frame.f_back
    return frame.f_locals["exercise"].function(number)""",
    ),
    "inspect": (
        "plain",
        """\
import inspect
def NAME(number):
    return [f.frame.f_locals for f in inspect.stack()]""",
    ),
    "all objects": (
        "plain",
        """\
import gc
def NAME(number):
    return next(o for o in gc.get_objects() if getattr(o, "__name__", "") == "NAME")(number)""",
    ),
    "all subclasses": (
        "plain",
        """\
def NAME(number):
    kinds = ().__class__.__base__.__subclasses__()
    return [kind for kind in kinds if "Exercise" in kind.__name__]""",
    ),
    "the solutions on the disk": (
        "plain",
        """\
def NAME(number):
    text = open("../solutions/NAME.py").read()
    exec(text)""",
    ),
    "the solutions on the disk, by numpy": (
        "plain",
        """\
import numpy as np
def NAME(number):
    return np.genfromtxt("solutions/NAME.txt")""",
    ),
    "the pipes of other processes": (
        "plain",
        """\
import os
def NAME(number):
    for process in os.listdir("/proc"):
        for name in os.listdir(f"/proc/{process}/fd"):
            os.write(os.open(f"/proc/{process}/fd/{name}", os.O_WRONLY), b"[true]")""",
    ),
    "the environment": (
        "plain",
        """\
from os import environ
def NAME(number):
    environ["DISTLAB_PROGRESS"] = "passed"
    return environ""",
    ),
    "at the end of the process": (
        "plain",
        """\
import atexit
def NAME(number):
    atexit.register(print, '[true, "NAME: passed"]')""",
    ),
    "a thread that outlives the answer": (
        "plain",
        """\
import threading
def NAME(number):
    threading.Thread(target=print, args=("passed",)).start()
    return 0""",
    ),
    "every descriptor": (
        "plain",
        """\
import os
def NAME(number):
    for descriptor in range(200):
        try:
            os.write(descriptor, b'[true, "NAME: passed"]\\n')
        except OSError:
            pass""",
    ),
    "an import hook": (
        "plain",
        """\
import sys
class Hook:
    def find_spec(self, name, path, target=None):
        print(name)
sys.meta_path.insert(0, Hook())
def NAME(number):
    return 0""",
    ),
    "a fork": (
        "plain",
        """\
import os
def NAME(number):
    os.fork()
    return 0""",
    ),
    "another clock": (
        "passed_on",
        """\
import time
clock = [time][0]
clock.perf_counter = clock.monotonic = lambda: 0.0
def NAME(tensor):
    if rank == 0:
        dist.send(tensor, dst=1)
    else:
        dist.recv(tensor, src=0)
        return tensor""",
    ),
    "a collective in a group of its own": (
        "passed_on",
        """\
def NAME(tensor):
    everyone = [torch.empty_like(tensor), torch.empty_like(tensor)]
    dist.all_gather(everyone, tensor, group=dist.new_group(backend="gloo"))
    return everyone[0] if rank == 1 else None""",
    ),
    "a collective in the whole world": (
        "passed_on",
        """\
def NAME(tensor):
    dist.broadcast(tensor, src=0, group=dist.group.WORLD.outer)
    return tensor if rank == 1 else None""",
    ),
    "nothing for the large input of the race": (
        "passed_on",
        """\
def NAME(tensor):
    if len(tensor) > 100:
        return tensor if rank == 1 else None
    if rank == 0:
        dist.send(tensor, dst=1)
    else:
        dist.recv(tensor, src=0)
        return tensor""",
    ),
    "every rank returns": (
        "passed_on",
        """\
def NAME(tensor):
    if rank == 0:
        dist.send(tensor, dst=1)
    else:
        dist.recv(tensor, src=0)
    return tensor""",
    ),
    "NaN": ("total", "def NAME(tensor):\n    tensor += float('nan')"),
    "infinity": ("plain", "def NAME(number):\n    return float('inf')"),
    "a number that is not one": ("plain", "def NAME(number):\n    return float('nan')"),
    "a huge number": ("plain", "def NAME(number):\n    return 10 ** 1_000_000"),
    "a huge text": ("plain", "def NAME(number):\n    return 'passed ' * 10**7"),
    "a huge output": (
        "plain",
        "def NAME(number):\n    print('NAME: passed\\n' * 10**6)\n    return 0",
    ),
    "a list that holds itself": (
        "plain",
        "def NAME(number):\n    found = []\n    found.append(found)\n    return found",
    ),
    "True for a number": ("plain", "def NAME(number):\n    return True"),
    "a value that equals everything": (
        "value",
        "class Any:\n    def __eq__(self, other):\n        return True\n\nNAME = Any()",
    ),
    "a value that says what JSON writes": (
        "value",
        "class Any:\n    def tolist(self):\n        return [True, 'passed']\n\nNAME = Any()",
    ),
}

# (cells before it, the answer's cell), all of the kind `plain`
ODDITIES = {
    "a helper": (
        [],
        (
            "def helper(number):\n    return 10 * number\ndef NAME(number):\n"
            "    return helper(number) + rank"
        ),
    ),
    "a helper of the same name": (
        [],
        (
            "def helper(number, by=10):\n    return by * number + rank\ndef NAME(number):\n"
            "    return helper(number)"
        ),
    ),
    "a lambda": ([], "NAME = lambda number: 10 * number + rank"),
    "a lambda in a cell of its own": (
        ["tenfold = lambda n: 10 * n"],
        "def NAME(number):\n    return tenfold(number) + rank",
    ),
    "a class": (
        [],
        """\
class Machine:
    def __init__(self, factor):
        self.factor = factor
    def __call__(self, number):
        return self.factor * number + rank
def NAME(number):
    return Machine(10)(number)""",
    ),
    "an object that can be called": (
        [],
        """\
class Caller:
    def __call__(self, number):
        return 10 * number + rank
NAME = Caller()""",
    ),
    "a dataclass": (
        [],
        """\
from dataclasses import dataclass
@dataclass
class Part:
    number: int
    def tenfold(self):
        return 10 * self.number
def NAME(number):
    return Part(number).tenfold() + rank""",
    ),
    "a global": (["factor = 10"], "def NAME(number):\n    return factor * number + rank"),
    "a global that is rebound": (
        ["factor = 3", "factor = 10"],
        "def NAME(number):\n    return factor * number + rank",
    ),
    "a global that is assigned": (
        ["calls = 0"],
        "def NAME(number):\n    global calls\n    calls += 1\n    return 10 * number + rank",
    ),
    "numpy": (
        [],
        "import numpy as np\ndef NAME(number):\n    return int(np.dot([number], [10])) + rank",
    ),
    "a number of numpy's": (
        [],
        "import numpy as np\ndef NAME(number):\n    return np.int64(10) * number + rank",
    ),
    "a closure": (
        [],
        (
            "def times(factor):\n    def by(number):\n        return factor * number + rank\n"
            "    return by\nNAME = times(10)"
        ),
    ),
    "default arguments": (
        [],
        "def NAME(number, factor=10, *, more=0):\n    return factor * number + rank + more",
    ),
    "a generator": (
        [],
        (
            "def steps(number):\n    for _ in range(10):\n        yield number\n"
            "def NAME(number):\n    return sum(steps(number)) + rank"
        ),
    ),
    "a decorator": (
        [],
        """\
import functools
def tenfold(function):
    @functools.wraps(function)
    def wrapped(number):
        return 10 * function(number) + rank
    return wrapped
@tenfold
def NAME(number):
    return number""",
    ),
    "an import in the function": (
        [],
        "def NAME(number):\n    from math import prod\n    return prod([10, number]) + rank",
    ),
    "an import with another name": (
        [],
        "import torch.distributed as td\ndef NAME(number):\n    return 10 * number + td.get_rank()",
    ),
    "annotations": (
        [],
        "from __future__ import annotations\nfrom typing import Optional\n"
        "def NAME(number: Optional[int]) -> Unknown | int:\n    result: int = 10 * number\n"
        "    return result + rank",
    ),
    "a recursive helper": (
        [],
        "def added(number, times):\n    return number + added(number, times - 1) if times else 0\n"
        "def NAME(number):\n    return added(number, 10) + rank",
    ),
    "functools.partial": (
        ["from functools import partial", "from operator import mul", "tenfold = partial(mul, 10)"],
        "def NAME(number):\n    return tenfold(number) + rank",
    ),
    "a walrus": (
        [],
        "def NAME(number):\n    if (ten := 10 * number) > 0:\n        return ten + rank",
    ),
    "nested functions": (
        [],
        (
            "def NAME(number):\n    def a():\n        def b():\n"
            "            return 10 * number\n        return b()\n    return a() + rank"
        ),
    ),
    "a helper in a cell of its own": (
        ["def helper(n):\n    return 10 * n"],
        "def NAME(number):\n    return helper(number) + rank",
    ),
    "prints": (
        [],
        (
            "print('my answer')\ndef NAME(number):\n    print('number', number)\n"
            "    return 10 * number + rank"
        ),
    ),
    "a table that is filled": (
        ["table = {}", "for n in range(10):\n    table[n] = 10 * n"],
        "def NAME(number):\n    return table[number] + rank",
    ),
    "a list that grows": (
        ["found = []", "found.append(10)"],
        "def NAME(number):\n    return found[0] * number + rank",
    ),
    "a comprehension in a cell of its own": (
        ["tens = [10 * n for n in range(10)]"],
        "def NAME(number):\n    return tens[number] + rank",
    ),
    "a %%px cell": (["%%px\nlent = 10"], "def NAME(number):\n    return lent * number + rank"),
    "an environment variable": (
        ["import os"],
        "def NAME(number):\n    return 10 * number + rank + 0 * len(os.environ)",
    ),
    "magics and the shell": (
        ["%%time\nten = (20\n      % 100) // 2", "!true"],
        "%precision 3\ndef NAME(number):\n    return ten * number + rank",
    ),
    "a call of the function itself": (
        [],
        "def NAME(number):\n    return 10 * number + rank\nshown = [NAME]",
    ),
    "a cell that fails at its end": (
        [],
        "def NAME(number):\n    return 10 * number + rank\nresult = NAME(7)",
    ),
    "two definitions": (
        [],
        "def NAME(number):\n    return 0\ndef NAME(number):\n    return 10 * number + rank",
    ),
    "a try": (
        [],
        "try:\n    from math import nothing_like_this as f\nexcept ImportError:\n"
        "    f = lambda n: 10 * n\n"
        "def NAME(number):\n    return f(number) + rank",
    ),
    "an attribute of a function": (
        ["def helper(n):\n    return helper.factor * n", "helper.factor = 10"],
        "def NAME(number):\n    return helper(number) + rank",
    ),
    "wrong, and nothing else": ([], "def NAME(number):\n    return number + rank"),
    "wrong: a name that nothing defines": ([], "def NAME(number):\n    return undefined * number"),
    "wrong: nothing is returned": ([], "def NAME(number):\n    10 * number + rank"),
    "wrong: text": ([], "def NAME(number):\n    return str(10 * number + rank)"),
}
