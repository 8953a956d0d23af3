"""Regular expressions that cannot stall: Go's syntax (which YuniKorn's filters are written in), in linear time.

Python's own expressions go back and try again: ``(a+)+$`` takes longer than anybody lives on a name of forty letters.
Here an expression becomes a table once, when the configuration is read; asking costs one step for each character of
the name, whatever the expression. An expression whose table would be large is refused with words.

Understood: letters, ``.``, classes (``[a-z]``, ``[^a]``, ``[[:alpha:]]``, ``\\d \\w \\s`` and their opposites), groups,
``|``, ``* + ? {n} {n,} {n,m}`` (lazy ones too), ``^ $ \\A \\z \\b \\B``, ``\\Q...\\E``, ``(?i)`` and ``(?s)``. As in
Go, ``$`` is the very end, and ``\\d \\w \\s \\b`` know ASCII only. Not understood: ``\\p{...}`` and ``(?m)``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from functools import lru_cache

PATTERN_CHARACTERS_MAX = 256
# Instructions of the machine; more come from counted repeats of counted repeats.
PROGRAM_MAX = 1000
# Steps that building the table may take (some 20 ms): the table doubles with each character in (a|b)*a(a|b){n}.
WORK_MAX = 50_000
REPEAT_MAX = 1000  # as in Go
NESTING_MAX = 20  # of groups: reading them calls itself

Ranges = tuple[tuple[int, int], ...]  # code points, both ends within, sorted, apart

_LAST = 0x10FFFF
_ANY: Ranges = ((0, _LAST),)
_DIGIT: Ranges = ((48, 57),)
_WORD: Ranges = ((48, 57), (65, 90), (95, 95), (97, 122))
_SPACE: Ranges = ((9, 10), (12, 13), (32, 32))
_NOT_NEWLINE: Ranges = ((0, 9), (11, _LAST))
_CONTROLS = {"a": 7, "f": 12, "t": 9, "n": 10, "r": 13, "v": 11}
_POSIX: dict[str, Ranges] = {
    "alnum": ((48, 57), (65, 90), (97, 122)),
    "alpha": ((65, 90), (97, 122)),
    "ascii": ((0, 127),),
    "blank": ((9, 9), (32, 32)),
    "cntrl": ((0, 31), (127, 127)),
    "digit": _DIGIT,
    "graph": ((33, 126),),
    "lower": ((97, 122),),
    "print": ((32, 126),),
    "punct": ((33, 47), (58, 64), (91, 96), (123, 126)),
    "space": ((9, 13), (32, 32)),
    "upper": ((65, 90),),
    "word": _WORD,
    "xdigit": ((48, 57), (65, 70), (97, 102)),
}

# What stands on each side of a place between two characters.
_NOTHING, _WORD_CHARACTER, _OTHER_CHARACTER = range(3)

_FOUND = -1


class InvalidPattern(ValueError):
    """A regular expression that is not one, or too large; the message says what is wrong."""


class Pattern:
    """A compiled expression.

    :ivar text: as written.
    """

    __slots__ = ("_bounds", "_ends", "_moves", "text")

    def __init__(self, text: str, bounds: list[int], moves: list[list[int]], ends: list[bool]) -> None:
        self.text = text
        self._bounds = bounds
        self._moves = moves
        self._ends = ends

    def search(self, subject: str) -> bool:
        """Whether it matches anywhere in the subject; one step for each of its characters."""
        bounds, moves, state = self._bounds, self._moves, 0
        for character in subject:
            state = moves[state][bisect_right(bounds, ord(character))]
            if state == _FOUND:
                return True
        return self._ends[state]

    def __repr__(self) -> str:
        return f"Pattern({self.text!r})"


@lru_cache(maxsize=64)
def compile_pattern(text: str) -> Pattern:
    """Reads an expression. Raises InvalidPattern."""
    if len(text) > PATTERN_CHARACTERS_MAX:
        raise InvalidPattern(f"regular expression of {len(text)} characters, expected at most {PATTERN_CHARACTERS_MAX}")
    program = _Program()
    start = program.add(_Reader(text).read(), program.emit(_Match()))
    return _Table(program.code, start).build(text)


# ---- what an expression is made of -----------------------------------------------------------------------------------


class _Set:
    """One character of a set."""

    def __init__(self, ranges: Ranges) -> None:
        self.ranges = ranges


class _Sequence:
    def __init__(self, parts: list[_Node]) -> None:
        self.parts = parts


class _Choice:
    def __init__(self, branches: list[_Node]) -> None:
        self.branches = branches


class _Repeat:
    """``most`` None: any number."""

    def __init__(self, what: _Node, least: int, most: int | None) -> None:
        self.what, self.least, self.most = what, least, most


class _At:
    """A place between characters: begin, end, word (a word's border), inside (anything else)."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def holds(self, before: int, after: int) -> bool:
        if self.kind == "begin":
            return before == _NOTHING
        if self.kind == "end":
            return after == _NOTHING
        border = (before == _WORD_CHARACTER) != (after == _WORD_CHARACTER)
        return border == (self.kind == "word")


_Node = _Set | _Sequence | _Choice | _Repeat | _At


# ---- reading ---------------------------------------------------------------------------------------------------------


class _Reader:
    """Recursive descent over Go's syntax."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self._ignore_case = False
        self._dot_is_any = False

    def read(self) -> _Node:
        node = self._choice()
        if self._at < len(self._text):
            raise InvalidPattern("unexpected )")
        return node

    def _peek(self, wanted: str) -> bool:
        return self._text.startswith(wanted, self._at)

    def _take(self, wanted: str) -> bool:
        if not self._peek(wanted):
            return False
        self._at += len(wanted)
        return True

    def _next(self, missing: str) -> str:
        if self._at >= len(self._text):
            raise InvalidPattern(missing)
        self._at += 1
        return self._text[self._at - 1]

    def _choice(self) -> _Node:
        branches = [self._sequence()]
        while self._take("|"):
            branches.append(self._sequence())
        return branches[0] if len(branches) == 1 else _Choice(branches)

    def _sequence(self) -> _Node:
        parts: list[_Node] = []
        while self._at < len(self._text) and not self._peek("|") and not self._peek(")"):
            if self._take("\\Q"):
                literal, _, rest = self._text[self._at :].partition("\\E")
                parts += [self._one(ord(character)) for character in literal]
                self._at = len(self._text) - len(rest)
                if literal:
                    parts.append(self._repeated(parts.pop()))
                continue
            atom = self._atom()
            if atom is not None:
                parts.append(self._repeated(atom))
        return _Sequence(parts)

    def _repeated(self, atom: _Node) -> _Node:
        counts = self._counts()
        if counts is None:
            return atom
        self._take("?")  # lazy: finds another place, not another answer
        if self._counts() is not None:
            raise InvalidPattern("a repeat of a repeat")
        return _Repeat(atom, *counts)

    def _counts(self) -> tuple[int, int | None] | None:
        for sign, counts in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(sign):
                return counts
        if not self._peek("{"):
            return None
        body, closed, _ = self._text[self._at + 1 :].partition("}")
        low, comma, high = body.partition(",")
        if not closed or not _is_number(low) or (high and not _is_number(high)):
            return None  # a brace that counts nothing is itself
        self._at += len(body) + 2
        least = int(low)
        most = int(high) if high else None if comma else least
        if max(least, most or 0) > REPEAT_MAX or (most is not None and most < least):
            raise InvalidPattern(f"invalid repeat count {{{body}}}")
        return least, most

    def _atom(self) -> _Node | None:
        """The next atom; None for what only switches something."""
        character = self._next("")
        match character:
            case "(":
                return self._group()
            case "[":
                return self._class()
            case ".":
                return _Set(_ANY if self._dot_is_any else _NOT_NEWLINE)
            case "^":
                return _At("begin")
            case "$":
                return _At("end")
            case "*" | "+" | "?":
                raise InvalidPattern(f"nothing to repeat before {character}")
            case "\\":
                return self._escape()
        return self._one(ord(character))

    def _one(self, point: int) -> _Set:
        return _Set(_folded(((point, point),)) if self._ignore_case else ((point, point),))

    def _group(self) -> _Node | None:
        before = (self._ignore_case, self._dot_is_any)
        if self._take("?"):
            if self._take("P<") or self._take("<"):
                name, closed, _ = self._text[self._at :].partition(">")
                if not closed or not name.isidentifier():
                    raise InvalidPattern("a group's name is not one: lookbehind is not possible")
                self._at += len(name) + 1
            elif self._flags():
                return None  # they hold to the end of the group around
        self._depth += 1
        if self._depth > NESTING_MAX:
            raise InvalidPattern(f"groups in groups deeper than {NESTING_MAX}")
        inner = self._choice()
        self._depth -= 1
        if not self._take(")"):
            raise InvalidPattern("missing )")
        self._ignore_case, self._dot_is_any = before
        return inner

    def _flags(self) -> bool:
        """Reads ``i``, ``-s`` and so on up to ``)`` (True) or ``:`` (False)."""
        wanted = True
        while True:
            match self._next("missing )"):
                case "i":
                    self._ignore_case = wanted
                case "s":
                    self._dot_is_any = wanted
                case "U":
                    pass  # greedy or not: the same answer
                case "-":
                    wanted = False
                case ")":
                    return True
                case ":":
                    return False
                case other:
                    raise InvalidPattern(f"(?{other} is not possible")

    def _escape(self) -> _Node:
        character = self._next("\\ at the end")
        match character:
            case "A":
                return _At("begin")
            case "z":
                return _At("end")
            case "b":
                return _At("word")
            case "B":
                return _At("inside")
        ranges = _SHORTHANDS.get(character)
        if ranges is not None:
            return _Set(ranges)
        return self._one(self._escaped_point(character))

    def _escaped_point(self, character: str) -> int:
        if character in _CONTROLS:
            return _CONTROLS[character]
        if character == "x":
            if self._take("{"):
                digits, closed, _ = self._text[self._at :].partition("}")
                self._at += len(digits) + 1
            else:
                digits, closed = self._text[self._at : self._at + 2], "}"
                self._at += 2
            if not closed or not digits or set(digits) - set("0123456789abcdefABCDEF") or len(digits) > 8:
                raise InvalidPattern("\\x needs hexadecimal digits")
            if int(digits, 16) > _LAST:
                raise InvalidPattern(f"\\x{{{digits}}} is no character")
            return int(digits, 16)
        if character.isascii() and not character.isalnum():
            return ord(character)
        raise InvalidPattern(f"\\{character} is not possible")

    def _class(self) -> _Node:
        negated = self._take("^")
        found: list[tuple[int, int]] = []
        first = True
        while first or not self._take("]"):
            first = False
            if self._peek("[:"):
                found += self._posix()
                continue
            low = self._class_member()
            if isinstance(low, tuple):
                found += low
                continue
            high = low
            if self._peek("-") and not self._peek("-]"):
                self._at += 1
                end = self._class_member()
                if isinstance(end, tuple) or end < low:
                    raise InvalidPattern("a range in a class ends before it begins")
                high = end
            found.append((low, high))
        ranges = _merged(found)
        if self._ignore_case:
            ranges = _folded(ranges)
        return _Set(_all_but(ranges) if negated else ranges)

    def _class_member(self) -> int | Ranges:
        character = self._next("missing ]")
        if character != "\\":
            return ord(character)
        character = self._next("\\ at the end")
        return _SHORTHANDS.get(character) or self._escaped_point(character)

    def _posix(self) -> Ranges:
        name, closed, _ = self._text[self._at + 2 :].partition(":]")
        ranges = _POSIX.get(name.removeprefix("^"))
        if not closed or ranges is None:
            raise InvalidPattern(f"unknown class [:{name[:20]}:]")
        self._at += len(name) + 4
        return _all_but(ranges) if name.startswith("^") else ranges


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 4


def _merged(ranges: Iterable[tuple[int, int]]) -> Ranges:
    found: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if found and low <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], high))
        else:
            found.append((low, high))
    return tuple(found)


def _all_but(ranges: Ranges) -> Ranges:
    found: list[tuple[int, int]] = []
    begin = 0
    for low, high in ranges:
        if begin < low:
            found.append((begin, low - 1))
        begin = high + 1
    if begin <= _LAST:
        found.append((begin, _LAST))
    return tuple(found)


def _folded(ranges: Ranges) -> Ranges:
    """With the other case of each: all of ASCII's letters, and single characters of any alphabet."""
    found = list(ranges)
    for low, high in ranges:
        for begin, end, step in ((65, 90, 32), (97, 122, -32)):
            if low <= end and begin <= high:
                found.append((max(low, begin) + step, min(high, end) + step))
        if low == high:
            found += [(ord(other),) * 2 for other in (chr(low).lower(), chr(low).upper()) if len(other) == 1]
    return _merged(found)


_SHORTHANDS: dict[str, Ranges] = {
    "d": _DIGIT,
    "D": _all_but(_DIGIT),
    "w": _WORD,
    "W": _all_but(_WORD),
    "s": _SPACE,
    "S": _all_but(_SPACE),
}


# ---- the machine, and its table --------------------------------------------------------------------------------------


class _Match:
    """The expression is found."""


class _Step:
    """Takes one character of the set, then goes on."""

    def __init__(self, ranges: Ranges, then: int) -> None:
        self.ranges, self.then = ranges, then


class _Fork:
    """Goes on at each of the targets, when the place is right."""

    def __init__(self, targets: list[int], place: _At | None = None) -> None:
        self.targets, self.place = targets, place


class _Program:
    """Instructions, built from the end to the beginning: each knows what follows it."""

    def __init__(self) -> None:
        self.code: list[_Match | _Step | _Fork] = []

    def emit(self, instruction: _Match | _Step | _Fork) -> int:
        if len(self.code) >= PROGRAM_MAX:
            raise InvalidPattern("the regular expression is too large: smaller repeat counts are needed")
        self.code.append(instruction)
        return len(self.code) - 1

    def add(self, node: _Node, then: int) -> int:
        match node:
            case _Set():
                return self.emit(_Step(node.ranges, then))
            case _At():
                return self.emit(_Fork([then], node))
            case _Choice():
                return self.emit(_Fork([self.add(branch, then) for branch in node.branches]))
            case _Repeat():
                return self._repeat(node, then)
        for part in reversed(node.parts):
            then = self.add(part, then)
        return then

    def _repeat(self, node: _Repeat, then: int) -> int:
        start = then
        if node.most is None:
            loop = _Fork([then])
            start = self.emit(loop)
            loop.targets.append(self.add(node.what, start))
        else:
            for _ in range(node.most - node.least):
                start = self.emit(_Fork([self.add(node.what, start), then]))
        for _ in range(node.least):
            start = self.add(node.what, start)
        return start


class _Table:
    """All instructions that can be reached together are one state; states by kind of character give the next."""

    def __init__(self, code: list[_Match | _Step | _Fork], start: int) -> None:
        self._code = code
        self._start = start
        self._work = 0
        # (what was reached, what stands before it), numbered in the order of appearance.
        self._order: list[tuple[frozenset[int], int]] = [(frozenset(), _NOTHING)]
        self._numbers = {self._order[0]: 0}

    def build(self, text: str) -> Pattern:
        borders = {0, _LAST + 1}
        for ranges in [_WORD, *(each.ranges for each in self._code if isinstance(each, _Step))]:
            borders.update(border for low, high in ranges for border in (low, high + 1))
        lows = sorted(borders)[:-1]  # the first character of each kind; those of one kind are all treated alike
        moves: list[list[int]] = []
        ends: list[bool] = []
        for state, before in self._order:  # which grows meanwhile
            moves.append([self._move(state, before, low) for low in lows])
            ends.append(self._closure(state, before, _NOTHING)[1])
        return Pattern(text, lows[1:], moves, ends)

    def _move(self, state: frozenset[int], before: int, point: int) -> int:
        after = _WORD_CHARACTER if _contains(_WORD, point) else _OTHER_CHARACTER
        steps, found = self._closure(state, before, after)
        if found:
            return _FOUND
        reached = (frozenset(step.then for step in steps if _contains(step.ranges, point)), after)
        number = self._numbers.setdefault(reached, len(self._order))
        if number == len(self._order):
            self._order.append(reached)
        return number

    def _closure(self, state: frozenset[int], before: int, after: int) -> tuple[list[_Step], bool]:
        """What takes the next character, and whether the expression is found before it. It may begin anywhere."""
        todo, seen = [*state, self._start], {*state, self._start}
        steps: list[_Step] = []
        while todo:
            self._work += 1
            match self._code[todo.pop()]:
                case _Match():
                    return [], True
                case _Step() as step:
                    steps.append(step)
                case _Fork() as fork:
                    if fork.place is None or fork.place.holds(before, after):
                        todo += [target for target in fork.targets if target not in seen]
                        seen.update(fork.targets)
        if self._work > WORK_MAX:
            raise InvalidPattern("the regular expression is too complex")
        return steps, False


def _contains(ranges: Ranges, point: int) -> bool:
    return any(low <= point <= high for low, high in ranges)
