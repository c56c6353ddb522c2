"""From lab 03 on, code asks torch which rank it is, as it has to outside of a notebook."""

import ast
import re

from test_hygiene import each_notebook, read

FIRST_LAB = 3  # the labs before teach the names that every rank has
PRIVATE = {"rank", "world_size"}


def python_of(cell):
    """The Python of a code cell, without its magics; nothing if it is another language's."""
    if re.match(r"%%(?!px\b)", cell.source):
        return ""
    return re.sub(r"^(\s*)[%!].*", r"\1pass", cell.source, flags=re.MULTILINE)


class Unbound(ast.NodeVisitor):
    """Uses of `rank` and `world_size` that no function around them binds."""

    def __init__(self):
        self.bound = [set()]
        self.in_functions = set()
        self.at_the_top = set()
        self.assigned_at_the_top = set()

    def visit_FunctionDef(self, node):
        own = {argument.arg for argument in all_arguments(node)}
        for inner in ast.walk(node):
            if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                own.add(inner.id)
        self.bound.append(own)
        self.generic_visit(node)
        self.bound.pop()

    visit_Lambda = visit_FunctionDef

    def visit_ListComp(self, node):
        own = {inner.id for inner in ast.walk(node) if is_stored(inner)}
        self.bound.append(own)
        self.generic_visit(node)
        self.bound.pop()

    visit_SetComp = visit_DictComp = visit_GeneratorExp = visit_ListComp

    def visit_Name(self, node):
        if node.id not in PRIVATE:
            return
        if isinstance(node.ctx, ast.Store):
            if len(self.bound) == 1:
                self.assigned_at_the_top.add(node.id)
        elif not any(node.id in names for names in self.bound):
            place = self.at_the_top if len(self.bound) == 1 else self.in_functions
            place.add(node.id)


def is_stored(node):
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def all_arguments(node):
    arguments = node.args
    rest = [one for one in (arguments.vararg, arguments.kwarg) if one]
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *rest]


@each_notebook
def test_code_asks_torch_which_rank_it_is(path):
    """No code uses the names that only the ranks of distlab have without asking for them.

    A function gets its rank as an argument, or by dist.get_rank(). In cells on ranks, one above
    gives the name its value.
    """
    if int(path.name[:2]) < FIRST_LAB:
        return
    on_ranks, here = set(), set()
    for cell in read(path).cells:
        if cell.cell_type != "code":
            continue
        uses = Unbound()
        uses.visit(ast.parse(python_of(cell)))
        is_on_ranks = re.match(r"%%px\b(?!.*--local)", cell.source)
        known = on_ranks if is_on_ranks else here
        known |= uses.assigned_at_the_top
        missing = (uses.at_the_top | uses.in_functions) - known
        assert not missing, f"{sorted(missing)} in:\n{cell.source}"
