"""Nothing is done in the order of a set: that is an order of addresses, or of hashes, which another process has not.

A set is known by its annotation, by how it is made, or by the function that gives it. What takes a set as a whole (a
sum, ``any``, ``sorted``, another set) is let through.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
MODULES = sorted(
    path for top in ("libs/core", "libs/state", "services") for path in (ROOT / top).glob("**/src/**/*.py")
)
# Module and function, and why the order decides nothing.
EXEMPT: Mapping[tuple[str, str], str] = {
    ("services/event-publisher/src/muster_event_publisher/grpc_codec.py", "_filter"): "a list of a message",
    ("services/gateway/src/muster_gateway/metrics_codec.py", "_query"): "a list of a message",
    (
        "services/event-publisher/src/muster_event_publisher/derive/faust_patches.py",
        "PatchedConsumer.perform_seek",
    ): "Kafka's client is asked for all of them at once",
    (
        "services/event-publisher/src/muster_event_publisher/history/parquet_past.py",
        "_companion_rows",
    ): "what is found is another set of rows",
}

_TYPES = frozenset({"set", "frozenset", "Set", "AbstractSet", "MutableSet", "WeakSet", "KeysView"})
_MAKERS = frozenset({"set", "frozenset", "WeakSet"})
_METHODS = frozenset({"union", "intersection", "difference", "symmetric_difference"})
_OPERATORS = (ast.BitAnd, ast.BitOr, ast.BitXor, ast.Sub)
# They give one by one what they are given.
_ORDERED = frozenset({"list", "tuple", "iter", "enumerate", "next", "zip", "map", "filter", "deque"})
_WHOLE = frozenset({"any", "all", "sum", "min", "max", "len", "sorted", "set", "frozenset", "Counter", "fsum"})
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def _is_type(node: ast.expr | None) -> bool:
    match node:
        case ast.Constant(value=str() as text):
            return _is_type(ast.parse(text, mode="eval").body)
        case ast.BinOp(left=left, right=right):
            return _is_type(left) or _is_type(right)
        case ast.Subscript(value=value):
            return _is_type(value)
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in _TYPES
    return False


@dataclass
class Known:
    """What is known to be a set: attributes and functions of all modules, by name, and variables of a function."""

    attributes: frozenset[str] = frozenset()
    functions: frozenset[str] = frozenset()
    variables: set[str] = field(default_factory=set)

    def is_set(self, node: ast.expr) -> bool:
        match node:
            case ast.Set() | ast.SetComp():
                return True
            case ast.Name(id=name):
                return name in self.variables
            case ast.Attribute(attr=name):
                return name in self.attributes
            case ast.Await(value=value):
                return self.is_set(value)
            case ast.Call(func=ast.Name(id=name)):
                return name in _MAKERS or name in self.functions
            case ast.Call(func=ast.Subscript(value=ast.Name(id=name))):
                return name in _MAKERS
            case ast.Call(func=ast.Attribute(value=value, attr=name)):
                return name in self.functions or (name in _METHODS and self.is_set(value))
            case ast.Subscript(
                value=ast.Await(value=ast.Call(func=ast.Attribute(value=ast.Name("asyncio"), attr="wait")))
            ):
                return True
            case ast.BinOp(left=left, op=op, right=right) if isinstance(op, _OPERATORS):
                return any(self.is_set(each) or _is_keys(each) for each in (left, right))
            case ast.IfExp(body=body, orelse=orelse):
                return self.is_set(body) or self.is_set(orelse)
        return False

    def learn(self, node: ast.AST) -> None:
        """Takes a statement of the function, or its arguments."""
        match node:
            case (
                ast.arg(arg=name, annotation=annotation)
                | ast.AnnAssign(target=ast.Name(id=name), annotation=annotation)
            ):
                if _is_type(annotation):
                    self.variables.add(name)
            case ast.Assign(targets=targets, value=value):
                if self.is_set(value):
                    self.variables.update(each.id for each in targets if isinstance(each, ast.Name))
                elif _is_wait(value):
                    pairs = [each.elts for each in targets if isinstance(each, ast.Tuple)]
                    self.variables.update(one.id for pair in pairs for one in pair if isinstance(one, ast.Name))


def _is_keys(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("keys", "items")


def _is_wait(node: ast.expr) -> bool:
    return isinstance(node, ast.Await) and ast.unparse(node.value).startswith("asyncio.wait(")


def known_of(trees: Iterable[ast.Module]) -> Known:
    """The attributes and functions that are sets wherever their name is used with a type."""
    attributes, functions = defaultdict[str, set[bool]](set), defaultdict[str, set[bool]](set)
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, _FUNCTIONS):
                is_property = any("property" in ast.unparse(each) for each in node.decorator_list)
                (attributes if is_property else functions)[node.name].add(_is_type(node.returns))
            elif isinstance(node, ast.ClassDef):
                for each in node.body:
                    if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                        attributes[each.target.id].add(_is_type(each.annotation))
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Attribute):
                attributes[node.target.attr].add(_is_type(node.annotation))
            elif isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Attribute) and Known().is_set(node.value):
                        attributes[target.attr].add(True)

    def only(names: Mapping[str, set[bool]]) -> frozenset[str]:
        return frozenset(name for name, kinds in names.items() if kinds == {True})

    return Known(only(attributes), only(functions))


def walked(tree: ast.Module, known: Known) -> Iterator[tuple[str, int]]:
    """The sets that are walked over in a module: the function (with its class), and the line."""
    yield from _within(tree, Known(known.attributes, known.functions), "", frozenset())


def _within(node: ast.AST, known: Known, where: str, whole: frozenset[int]) -> Iterator[tuple[str, int]]:
    for child in ast.iter_child_nodes(node):
        inner, place, taken = known, where, whole
        if isinstance(child, _FUNCTIONS):
            place = f"{where}.{child.name}".lstrip(".")
            inner = Known(known.attributes, known.functions, set(known.variables))
            for each in ast.walk(child):
                inner.learn(each)
        elif isinstance(child, ast.ClassDef):
            place = f"{where}.{child.name}".lstrip(".")
        elif isinstance(child, ast.Call) and isinstance(child.func, ast.Name) and child.func.id in _WHOLE:
            taken = frozenset(id(each) for each in child.args)
        if id(child) not in whole and any(inner.is_set(each) for each in _walks(child)):
            yield place, getattr(child, "lineno", 0)
        yield from _within(child, inner, place, taken)


def _walks(node: ast.AST) -> Iterator[ast.expr]:
    """What a node walks over, one by one."""
    match node:
        case ast.For(iter=each) | ast.AsyncFor(iter=each):
            yield each
        case ast.ListComp() | ast.GeneratorExp() | ast.DictComp():
            yield from (each.iter for each in node.generators)
        case ast.Call(func=ast.Name(id=name)) if name in _ORDERED:
            yield from node.args
        case ast.Call(func=ast.Attribute(value=ast.Constant(value=str()), attr="join"), args=[each]):
            yield each
        case ast.Call(func=ast.Attribute(value=value, attr="pop"), args=[]):
            yield value
        case ast.Call(args=args):
            yield from (each.value for each in args if isinstance(each, ast.Starred))
        case ast.List(elts=elts) | ast.Tuple(elts=elts):
            yield from (each.value for each in elts if isinstance(each, ast.Starred))


@cache
def _found() -> dict[tuple[str, str], list[int]]:
    trees = {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in MODULES}
    known, found = known_of(trees.values()), defaultdict[tuple[str, str], list[int]](list)
    for path, tree in trees.items():
        for where, line in walked(tree, known):
            found[path, where].append(line)
    return found


def test_nothing_is_done_in_the_order_of_a_set() -> None:
    assert MODULES
    assert {place: lines for place, lines in _found().items() if place not in EXEMPT} == {}


def test_every_exemption_is_needed() -> None:
    assert set(EXEMPT) - set(_found()) == set()


@pytest.mark.parametrize(
    "text",
    [
        "def f(names: set[str]):\n  for name in names: print(name)",
        "def f(names: frozenset[str]): return [name for name in names]",
        "def f(names: 'set[str] | None'): return {name: 1 for name in names}",
        "def f(): names = {1, 2}; return list(names)",
        "def f(): return next(iter({1, 2}))",
        "def f(): return tuple(set(range(3)) - {1})",
        "def f(one, other): return [*(one.keys() & other)]",
        "def f(): return ', '.join({'a', 'b'})",
        "def f(names: set[int]): return names.pop()",
        "def f(names: set[int]): print(*names)",
        "class A:\n  names: set[str]\n  def f(self):\n    for name in self.names: print(name)",
        "class A:\n  def __init__(self): self.names = set()\ndef f(a):\n  for name in a.names: print(name)",
        "def g() -> set[int]: ...\ndef f():\n  for name in g(): print(name)",
        "import asyncio\nasync def f(tasks):\n  done, _ = await asyncio.wait(tasks)\n  for each in done: print(each)",
        "import asyncio\nasync def f(tasks):\n  return [each for each in (await asyncio.wait(tasks))[0]]",
    ],
)
def test_it_notices(text: str) -> None:
    tree = ast.parse(text)
    assert list(walked(tree, known_of([tree])))


@pytest.mark.parametrize(
    "text",
    [
        "def f(names: set[str]): return sorted(names)",
        "def f(names: set[str]): return any(name for name in names)",
        "def f(names: set[str]): return {name for name in names}",
        "def f(names: set[str]): return sorted(name for name in names if name)",
        "def f(names: list[str]): return [name for name in names]",
        "def f(names: set[str]): ...\ndef g(names): return list(names)",
        "def f(names: dict[str, int]): return list(names.keys())",
        "class A:\n  names: set[str]\nclass B:\n  names: list[str]\ndef f(b):\n  for name in b.names: print(name)",
    ],
)
def test_it_lets_through(text: str) -> None:
    tree = ast.parse(text)
    assert not list(walked(tree, known_of([tree])))
