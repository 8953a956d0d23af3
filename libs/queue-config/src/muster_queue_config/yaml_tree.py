"""A YAML text as a tree of plain values with their places.

The tree is built from the parser's events, not by a loader. So the depth and the *expanded* size of a text are bounded
(a short text of aliases to aliases can stand for billions of nodes), scalars keep their notation, merged keys keep
their places, and no tag ever creates an object.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentEndEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

# A text of the allowed size has fewer nodes. Only aliases can exceed this.
NODES_MAX = 1_000_000
DEPTH_MAX = 100

# Line and column, from 0.
Place = tuple[int, int]
Report = Callable[[Place | None, str], None]

_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLEANS = {word: word.lower() == "true" for word in ("true", "True", "TRUE", "false", "False", "FALSE")}
_INT = re.compile(r"[-+]?[0-9]{1,100}\Z")
# YAML 1.2 has the second form, 1.1 all of them. Go's reader accepts both, so it reads 010 as eight.
_INT_OF_BASE = re.compile(r"([-+]?)(0b[01]{1,100}|0o[0-7]{1,100}|0x[0-9a-fA-F]{1,100}|0[0-7]{1,100})\Z")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))([eE][-+]?[0-9]{1,6})?\Z")
_NOT_FINITE = re.compile(r"([-+]?)\.(inf|Inf|INF)\Z|\.(nan|NaN|NAN)\Z")
_NUMBERS_BEGIN = frozenset("+-0123456789")
_CORE_TAG = re.compile(r"(!|(tag:yaml\.org,2002:|!!)(null|bool|int|float|str|map|seq))\Z")


@dataclass(frozen=True, slots=True)
class Scalar:
    """A scalar: ``text`` as written, ``value`` as Go's reader has it (None, bool, int, float or str).

    Go's reader follows YAML 1.2, with the whole numbers of 1.1. (1.1's yes and no are texts, unless a field must be
    true or false.)

    :param is_plain: neither quoted nor tagged as a text.
    """

    text: str
    value: bool | int | float | str | None
    place: Place
    is_plain: bool = False

    @property
    def number(self) -> int | float | None:
        """The number that Go's reader has where a number is expected; None: there is none.

        It leaves out every ``_`` of a text that begins like a number, and takes ``0X``, ``0O`` and ``0B``. Elsewhere
        these are texts: ``10_0`` may be the name of a host.
        """
        value = self.value
        if isinstance(value, str) and self.is_plain and value[:1] in _NUMBERS_BEGIN:
            value = _resolved(value.replace("_", "").lower())
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None


class Mapping(dict[str, Any]):
    """Keys (always texts) to nodes. ``key_places`` has each key's place; a merged key has that of its origin."""

    def __init__(self, position: Place) -> None:
        super().__init__()
        self.place = position
        self.key_places: dict[str, Place] = {}


class Sequence(list[Any]):
    """Nodes in their order."""

    def __init__(self, position: Place) -> None:
        super().__init__()
        self.place = position


Node = Scalar | Mapping | Sequence


# libyaml refuses colons in plain texts within braces and brackets, {name: a:b}. Go's reader takes them.
_COLON_REFUSED = "found unexpected ':'"


# A * as a value: YAML takes it for an alias without a name.
_BARE_STAR = re.compile(r"[:,\[-]\s+\*\s*(?:$|[,\]}#])")


class _Stop(Exception):
    """Ends the reading; the problem is already reported."""


class _OpenNode:
    """A mapping or sequence that is not complete yet."""

    __slots__ = ("anchor", "key", "merged", "node", "weight")

    def __init__(self, node: Mapping | Sequence, anchor: str | None) -> None:
        self.node = node
        self.anchor = anchor
        self.key: tuple[str | None, Place] | None = None  # of a mapping: the key of the next value
        self.merged: list[Mapping] = []
        self.weight = 1


def read_tree(text: str, report: Report, *, pure: bool = False) -> Node | None:
    """Returns the first document of a text; None if it is empty or cannot be read. Problems go to ``report``."""
    problems: list[tuple[Place | None, str]] = []
    tree = next(read_trees(text, lambda position, message: problems.append((position, message)), pure=pure), None)
    if not pure and any(message == _COLON_REFUSED for _, message in problems):
        return read_tree(text, report, pure=True)
    for position, message in problems:
        report(position, message)
    return tree


def read_trees(text: str, report: Report, *, pure: bool = False) -> Iterator[Node]:
    """Yields the documents of a text, as far as it can be read. Problems go to ``report``.

    libyaml reads the text. Go's reader, which YuniKorn uses, is a translation of it.

    :param pure: uses ruamel's own reader, which takes eight times as long. Earlier versions of Muster used it; it
        accepts a few texts of YAML 1.2 that libyaml refuses.
    """
    try:
        events = YAML(typ="safe", pure=pure).parse(text)
        while (tree := _Builder(report).build(events)) is not None:
            yield tree
    except _Stop:
        pass
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        message = " ".join(str(error.problem or error.context or "not valid YAML").split())
        report((mark.line, mark.column) if mark is not None else None, message + _hint(text, mark))
    except (YAMLError, ValueError) as error:
        report(None, " ".join(str(error).split()))


def _hint(text: str, mark: Any) -> str:
    """What to do about the commonest error: ``submitacl: *``."""
    lines = text.split("\n", mark.line + 1) if mark is not None else []
    is_star = len(lines) > mark.line and _BARE_STAR.search(lines[mark.line]) if lines else None
    return ": a * that stands for itself must be quoted, '*'" if is_star else ""


class _Builder:
    def __init__(self, report: Report) -> None:
        self._report = report
        self._stack: list[_OpenNode] = []
        self._anchors: dict[str, tuple[Node, int]] = {}  # anchor → node, number of nodes that it stands for
        self._root: Node | None = None

    def build(self, events: Iterator[Any]) -> Node | None:
        for event in events:
            mark = event.start_mark
            position = (mark.line, mark.column)
            match event:
                case ScalarEvent():
                    scalar = self._scalar(event, position)
                    self._name(event.anchor, scalar, 1)
                    self._take(scalar, 1, is_plain=event.implicit[0])
                case MappingStartEvent():
                    self._open(Mapping(position), event, position)
                case SequenceStartEvent():
                    self._open(Sequence(position), event, position)
                case MappingEndEvent() | SequenceEndEvent():
                    self._close()
                case AliasEvent():
                    target = self._anchors.get(event.anchor)
                    if target is None:
                        recursive = any(node.anchor == event.anchor for node in self._stack)
                        problem = "is part of itself" if recursive else "is not defined"
                        self._report(position, f"alias *{event.anchor} {problem}")
                        raise _Stop
                    self._take(*target, is_plain=False)
                case DocumentEndEvent():
                    return self._root
        return self._root

    def _scalar(self, event: Any, position: Place) -> Scalar:
        self._check_tag(event, position)
        text: str = event.value
        if not event.implicit[0] and (event.implicit[1] or str(event.tag).endswith("str")):
            return Scalar(text, text, position)  # quoted, or tagged as a text
        return Scalar(text, _resolved(text), position, is_plain=True)

    def _check_tag(self, event: Any, position: Place) -> None:
        tag = str(event.tag) if event.tag is not None else ""
        if tag and not _CORE_TAG.match(tag):
            self._report(position, f"tag {tag}: no tags are possible here")

    def _open(self, node: Mapping | Sequence, event: Any, position: Place) -> None:
        self._check_tag(event, position)
        if len(self._stack) >= DEPTH_MAX:
            self._report(position, f"nested deeper than {DEPTH_MAX}")
            raise _Stop
        self._anchors.pop(event.anchor, None)
        self._stack.append(_OpenNode(node, event.anchor))

    def _close(self) -> None:
        closed = self._stack.pop()
        node = closed.node
        if isinstance(node, Mapping):
            for source in closed.merged:
                for key, value in source.items():
                    if key not in node:
                        node[key] = value
                        node.key_places[key] = source.key_places[key]
        self._name(closed.anchor, node, closed.weight)
        self._take(node, closed.weight, is_plain=False)

    def _name(self, anchor: str | None, node: Node, weight: int) -> None:
        if anchor is not None:
            self._anchors[anchor] = (node, weight)

    def _take(self, node: Node, weight: int, *, is_plain: bool) -> None:
        """Puts a finished node into its parent."""
        if not self._stack:
            self._root = node
            return
        top = self._stack[-1]
        top.weight += weight
        if top.weight > NODES_MAX:
            self._report(node.place, f"stands for more than {NODES_MAX} values, with its aliases")
            raise _Stop
        if isinstance(top.node, Sequence):
            top.node.append(node)
        elif top.key is None:
            top.key = self._key(node, top.node, is_plain=is_plain)
        else:
            (key, position), top.key = top.key, None
            if key == "<<" and position == (-1, -1):
                self._merge(node, top)
            elif key is not None:
                top.node[key] = node
                top.node.key_places[key] = position

    def _key(self, node: Node, owner: Mapping, *, is_plain: bool) -> tuple[str | None, Place]:
        if not isinstance(node, Scalar):
            self._report(node.place, "a key must be a text")
            return None, node.place
        if is_plain and node.text == "<<":
            return "<<", (-1, -1)
        if node.text in owner:
            self._report(node.place, f"found duplicate key {node.text!r}")
            return None, node.place
        return node.text, node.place

    def _merge(self, node: Node, top: _OpenNode) -> None:
        sources = node if isinstance(node, Sequence) else [node]
        for source in sources:
            if isinstance(source, Mapping):
                top.merged.append(source)
            else:
                self._report(node.place, "a merge key (<<) needs a mapping or a list of mappings")


def _resolved(text: str) -> bool | int | float | str | None:
    if text in _NULLS:
        return None
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    if based := _INT_OF_BASE.match(text):
        sign, digits = based.groups()
        number = int(digits, 0) if digits[1] in "box" else int(digits, 8)
        return -number if sign == "-" else number
    if _INT.match(text):
        return int(text)
    if _FLOAT.match(text):
        return float(text)
    if _NOT_FINITE.match(text):
        return float(text.replace(".", "", 1))
    return text
