"""Mutants of a module: what an edit of one place in one function makes of it.

The edits are of the syntax tree, so a mutant is found again by its function and by the text before and after, wherever
the lines went. Only bodies of functions are edited: a function's code can be exchanged in a process that has everything
loaded (``applying.py``), a class or a constant of a module cannot.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TypeAlias

FunctionNode: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef

# The body of a function as a whole, where a mutant's text has to name one.
BODY = "..."
_TEXT_MAX = 160

_COMPARED: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_CALCULATED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
_CALLED = {"min": "max", "max": "min", "any": "all", "all": "any", "sorted": "list"}
# What a function of such a type gives when it does nothing.
_NOTHING = {
    "None": ("None",),
    "bool": ("True", "False"),
    "int": ("0",),
    "float": ("0.0",),
    "str": ("''",),
    "tuple": ("()",),
    "list": ("[]",),
    "dict": ("{}",),
    "set": ("set()",),
    "frozenset": ("frozenset()",),
    "Sequence": ("()",),
    "Collection": ("()",),
    "Iterable": ("()",),
    "Mapping": ("{}",),
}
# Parts that say nothing about what a function does.
_LEFT_OUT = {"annotation", "returns", "decorator_list", "defaults", "kw_defaults", "args", "type_params"}
_TEXTS = (ast.JoinedStr, ast.List, ast.Tuple, ast.ListComp, ast.GeneratorExp)


@dataclass(frozen=True, slots=True)
class Mutant:
    """One edit.

    :ivar module: its name; ``function``: the outermost function's qualified name; ``first_line``: where that begins,
        with its decorators.
    :ivar line: of the edited place. ``operator``: the kind of edit.
    :ivar before: the text of the edited place as Python writes a tree, in one line; ``after``: what it became.
    :ivar number: among all mutants of the module.
    """

    module: str
    function: str
    first_line: int
    line: int
    operator: str
    before: str
    after: str
    number: int

    def __str__(self) -> str:
        return f"{path_of(self.module)}:{self.line}: {self.function}: {self.operator}: {self.before} → {self.after}"


@dataclass(slots=True)
class Edit:
    """What makes a mutant of a tree: ``new`` in place of what is at ``field`` (and ``index``) of ``parent``."""

    mutant: Mutant
    parent: ast.AST
    field: str
    index: int | None
    new: ast.AST | list[ast.stmt]

    def make(self) -> None:
        if self.index is None:
            setattr(self.parent, self.field, self.new)
        else:
            getattr(self.parent, self.field)[self.index] = self.new


def source_of(module: str) -> Path:
    """Where a module's source is. Raises ModuleNotFoundError."""
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"module: must be one with a source, got {module}")
    return Path(spec.origin)


@cache
def path_of(module: str) -> str:
    """The same, from the checkout's folder if it is in there."""
    path, here = source_of(module), Path(__file__).resolve().parents[2]
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def modules_of(package: str) -> list[str]:
    """The names of all modules of a package, in order."""
    top = source_of(package).parent
    names = []
    for path in sorted(top.rglob("*.py")):
        parts = path.relative_to(top).with_suffix("").parts
        names.append(".".join([package, *(part for part in parts if part != "__init__")]))
    return names


@cache
def _bytes_of(module: str) -> bytes:
    """A module's source as it was when it was read first: it may be edited while mutants of it are tried."""
    return source_of(module).read_bytes()


@cache
def mutants_of(module: str) -> tuple[Mutant, ...]:
    """All mutants of a module, in the order of its text."""
    return tuple(edit.mutant for edit in edits_of(module, ast.parse(_bytes_of(module))))


def named(module: str, function: str, before: str, after: str, nth: int = 0) -> Mutant:
    """The mutant of that function with these texts, the nth of several.

    Raises LookupError with what there is: the function was changed, and whoever named the mutant has to look again.
    """
    of_function = [each for each in mutants_of(module) if each.function == function]
    found = [each for each in of_function if each.before == before and each.after == after]
    if nth < len(found):
        return found[nth]
    there = "\n".join(f"  {each.before} → {each.after}" for each in of_function) or "  no such function"
    raise LookupError(f"mutant: {module}, {function} must have {before} → {after} (number {nth}), has\n{there}")


def mutated(mutant: Mutant) -> ast.Module:
    """The module's tree with that edit."""
    tree = ast.parse(_bytes_of(mutant.module))
    for edit in edits_of(mutant.module, tree):
        if edit.mutant.number == mutant.number:
            edit.make()
            return ast.fix_missing_locations(tree)
    raise LookupError(f"mutant: must be one of {mutant.module}, got {mutant}")


def edits_of(module: str, tree: ast.Module) -> Iterator[Edit]:
    """All edits of a module's tree, in the order of its text. Each is of the tree as it was given."""
    number = 0
    for names, node in _functions(tree, ()):
        first_line = min(each.lineno for each in (node, *node.decorator_list))
        for operator, parent, field, index, old, new in _of_function(node):
            before, after = BODY if isinstance(old, list) else _text(old), _text(new)
            if before == after:
                continue
            line = node.lineno if isinstance(old, list) else getattr(old, "lineno", node.lineno)
            mutant = Mutant(module, ".".join(names), first_line, line, operator, before, after, number)
            yield Edit(mutant, parent, field, index, new)
            number += 1


def _functions(tree: ast.AST, names: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], FunctionNode]]:
    """The functions of a module and of its classes, with their names. (What is within a function is its body.)"""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, FunctionNode):
            if not any(_text(each).endswith(("abstractmethod", "overload")) for each in node.decorator_list):
                yield (*names, node.name), node
        elif isinstance(node, ast.ClassDef) and not any(_text(each).startswith("Protocol") for each in node.bases):
            yield from _functions(node, (*names, node.name))


_Found: TypeAlias = tuple[str, ast.AST, str, int | None, ast.AST | list[ast.stmt], ast.AST | list[ast.stmt]]


def _of_function(function: FunctionNode) -> Iterator[_Found]:
    body = _without_docstring(function.body)
    # (One that only returns something has the same from its return.)
    plain = len(body) == 1 and isinstance(body[0], ast.Pass | ast.Raise | ast.Return)
    making = function.name == "__init__"
    if body and not plain and not making:
        for value in _nothing(function):
            yield "body", function, "body", None, function.body, value
    for parent, field, index, node in _nodes(function):
        if making and isinstance(node, ast.Assign):  # (Without an attribute an object fails at once: it says nothing.)
            continue
        for operator, new in _edits(node, function):
            yield operator, parent, field, index, node, new


def _nothing(function: FunctionNode) -> Iterator[list[ast.stmt]]:
    """What may stand in place of a function's body, by the type that it says it gives."""
    generator = any(isinstance(each, ast.Yield | ast.YieldFrom) for each in ast.walk(function))
    if generator:
        yield [ast.Return(), ast.Expr(ast.Yield())]
        return
    said = _text(function.returns) if function.returns is not None else ""
    for kind in said.split(" | "):
        for text in _NOTHING.get(kind.split("[")[0], ()):
            yield [ast.Return(_expression(text))]


def _nodes(function: FunctionNode) -> Iterator[tuple[ast.AST, str, int | None, ast.AST]]:
    """All that can be edited below a function, with its place."""
    todo: list[tuple[ast.AST, str, int | None, ast.AST]] = list(_children(function))
    todo.reverse()
    while todo:
        found = todo.pop()
        node = found[3]
        yield found
        if isinstance(node, ast.Assert | ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom):
            continue  # (An assertion is a check, as a test is; how an error reads is another matter.)
        todo += reversed(list(_children(node)))


def _children(node: ast.AST) -> Iterator[tuple[ast.AST, str, int | None, ast.AST]]:
    for field, value in ast.iter_fields(node):
        if field in _LEFT_OUT and not (field == "args" and isinstance(node, ast.Call)):
            continue
        if isinstance(value, list):
            for index, each in enumerate(value):
                if isinstance(each, ast.AST) and not _is_docstring(node, field, index, each):
                    yield node, field, index, each
        elif isinstance(value, ast.AST):
            yield node, field, None, value


def _is_docstring(parent: ast.AST, field: str, index: int, node: ast.AST) -> bool:
    said = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    return said and field == "body" and index == 0 and isinstance(parent, FunctionNode | ast.ClassDef)


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    first = body[0]
    said = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    return body[1:] if said else body


def _edits(node: ast.AST, function: FunctionNode) -> Iterator[tuple[str, ast.AST]]:
    """What one node may become, with the kind of edit."""
    match node:
        case ast.Compare(left, [op], comparators):
            for other in _COMPARED[type(op)]:
                yield "compare", ast.Compare(left, [other()], comparators)
        case ast.BoolOp(op, values):
            yield "logic", ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
            for left_out in range(len(values)):
                rest = [each for at, each in enumerate(values) if at != left_out]
                yield "operand", rest[0] if len(rest) == 1 else ast.BoolOp(op, rest)
        case ast.UnaryOp(ast.Not() | ast.USub(), operand):
            yield "sign" if isinstance(node.op, ast.USub) else "negation", operand
        case ast.If(test) | ast.While(test) if not isinstance(test, ast.Constant):
            yield from _of_statement(node)
        case ast.IfExp(test, body, orelse):
            yield "negation", ast.IfExp(test, orelse, body)
        case ast.BinOp(left, op, right):
            if type(op) in _CALCULATED and not _is_text(left) and not _is_text(right):
                yield "arithmetic", ast.BinOp(left, _CALCULATED[type(op)](), right)
        case ast.Constant(bool()):
            yield "constant", ast.Constant(not node.value)
        case ast.Constant(int()):
            yield "constant", ast.Constant(node.value + 1)
        case ast.Call():
            yield from _of_call(node)
        case ast.comprehension(target, iterator, ifs, is_async) if ifs:
            yield "filter", ast.comprehension(target, iterator, [], is_async)
        case ast.stmt():
            yield from _of_statement(node, function)


def _of_call(node: ast.Call) -> Iterator[tuple[str, ast.AST]]:
    called, args = node.func, node.args
    if isinstance(called, ast.Name) and called.id in _CALLED:
        if called.id != "sorted" or not node.keywords:
            yield "call", ast.Call(ast.Name(_CALLED[called.id], ast.Load()), args, node.keywords)
    elif len(args) > 1 and not any(isinstance(each, ast.Starred) for each in args[:2]):
        yield "arguments", ast.Call(called, [args[1], args[0], *args[2:]], node.keywords)


def _of_statement(node: ast.stmt, function: FunctionNode | None = None) -> Iterator[tuple[str, ast.AST]]:
    match node:
        case ast.If(test, body, orelse):
            # (A single comparison and a negation have edits of their own that do this.)
            compared = isinstance(test, ast.Compare) and len(test.ops) == 1
            if not compared and not (isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)):
                yield "condition", ast.If(ast.UnaryOp(ast.Not(), test), body, orelse)
        case ast.While(test, body, orelse):
            yield "loop", ast.While(ast.Constant(value=False), body, orelse)
        case ast.For(target, _, body, orelse):
            yield "loop", ast.For(target, ast.Tuple([], ast.Load()), body, orelse)
        case ast.Expr(ast.YieldFrom()):
            yield "statement", ast.Expr(ast.YieldFrom(ast.Tuple([], ast.Load())))
        case ast.Expr(ast.Call() | ast.Await()) | ast.Delete() | ast.Raise():
            yield "statement", ast.Pass()
        case ast.Assign([ast.Attribute() | ast.Subscript()]):
            yield "statement", ast.Pass()
        case ast.AugAssign(target, op, value):
            if type(op) in _CALCULATED and not _is_text(value):
                yield "arithmetic", ast.AugAssign(target, _CALCULATED[type(op)](), value)
            yield "statement", ast.Pass()
        case ast.Continue():
            yield "jump", ast.Break()
        case ast.Break():
            yield "jump", ast.Continue()
        case ast.Return(value) if value is not None:
            yield from _of_return(value, function)


def _of_return(value: ast.expr, function: FunctionNode | None) -> Iterator[tuple[str, ast.AST]]:
    said = _text(function.returns) if function is not None and function.returns is not None else ""
    if said == "bool":
        for given in (True, False):
            yield "return", ast.Return(ast.Constant(given))
    elif not (isinstance(value, ast.Constant) and value.value is None) and "None" in said.split(" | "):
        yield "return", ast.Return(ast.Constant(None))


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, _TEXTS) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _text(node: ast.AST | list[ast.stmt] | None) -> str:
    """A tree in one line; of a statement with a body, and of several statements, the first line."""
    if node is None:
        return ""
    if isinstance(node, list):
        return _text(node[0])
    if isinstance(node, ast.If | ast.While):
        return f"{type(node).__name__.lower()} {_text(node.test)}:"
    if isinstance(node, ast.For):
        return f"for {_text(node.target)} in {_text(node.iter)}:"
    if isinstance(node, ast.comprehension):
        ifs = "".join(f" if {_text(each)}" for each in node.ifs)
        return f"for {_text(node.target)} in {_text(node.iter)}{ifs}"
    return " ".join(ast.unparse(ast.fix_missing_locations(node)).split())[:_TEXT_MAX]


def chosen(modules: Iterable[str]) -> list[Mutant]:
    """All mutants of some modules."""
    return [each for module in modules for each in mutants_of(module)]
