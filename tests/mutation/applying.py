"""Puts a mutant in place in this process, and takes it out again: the code of one loaded function is exchanged.

Whoever imported the function has it, too, and nothing is imported anew.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from importlib import import_module
from types import CodeType, FunctionType
from typing import Any

from mutation.mutants import Mutant, mutated, source_of


class NotApplicable(Exception):
    """The mutant has no place: its function is not reachable by its name, or the edit took away what that closes over,
    or Python compiles both to the same."""


@contextmanager
def applied(mutant: Mutant) -> Iterator[None]:
    """The mutant is in place. Raises NotApplicable."""
    function, code = function_of(mutant), code_of(mutant)
    before = function.__code__
    if code == before or _same(code, before):
        raise NotApplicable(f"{mutant}: the same code")
    if code.co_freevars != before.co_freevars:
        raise NotApplicable(f"{mutant}: closes over {before.co_freevars}, and then over {code.co_freevars}")
    function.__code__ = code
    try:
        yield
    finally:
        function.__code__ = before


def code_of(mutant: Mutant) -> CodeType:
    """The code of its function with the edit. Raises NotApplicable."""
    try:
        module = compile(mutated(mutant), str(source_of(mutant.module)), "exec")
    except SyntaxError as error:
        raise NotApplicable(f"{mutant}: {error}") from error
    todo = [module]
    while todo:
        code = todo.pop()
        if code.co_qualname == mutant.function and code.co_firstlineno == mutant.first_line:
            return code
        todo += [each for each in code.co_consts if isinstance(each, CodeType)]
    raise NotApplicable(f"{mutant}: no such code")


def _same(one: CodeType, other: CodeType) -> bool:
    """Whether two codes do the same: constants too, and what is within."""
    if one.co_code != other.co_code or one.co_names != other.co_names or len(one.co_consts) != len(other.co_consts):
        return False
    return all(
        _same(mine, its)
        if isinstance(mine, CodeType) and isinstance(its, CodeType)
        else mine == its and type(mine) is type(its)
        for mine, its in zip(one.co_consts, other.co_consts, strict=True)
    )


def function_of(mutant: Mutant) -> FunctionType:
    found: Any = sys.modules.get(mutant.module) or import_module(mutant.module)
    for name in mutant.function.split("."):
        found = vars(found).get(name)
        if found is None:
            break
    for each in _within(found):
        if isinstance(each, FunctionType) and each.__code__.co_firstlineno == mutant.first_line:
            return each
    raise NotApplicable(f"{mutant}: not found where its name says")


def _within(found: Any) -> Iterator[Any]:
    """A function, or those that a property or a decorator has made something of."""
    match found:
        case property():
            yield from (each for each in (found.fget, found.fset, found.fdel) if each is not None)
        case staticmethod() | classmethod():
            yield from _within(found.__func__)
        case cached_property():
            yield found.func
        case _:
            while found is not None:
                yield found
                found = getattr(found, "__wrapped__", None)
