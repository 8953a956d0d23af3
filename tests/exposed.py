"""Reads a process's ``/metrics`` strictly: the text format of Prometheus, line by line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(?:,|$)')
_SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("", "_sum", "_count")}

Labels = tuple[tuple[str, str], ...]


@dataclass
class Family:
    """One metric.

    :ivar samples: value by the sample's name and labels, these sorted.
    """

    name: str
    help: str
    type: str = "untyped"
    samples: dict[tuple[str, Labels], float] = field(default_factory=dict)

    @property
    def labels(self) -> set[tuple[str, ...]]:
        """The names of the labels, of all its series; without a histogram's ``le``."""
        return {tuple(name for name, _ in labels if name != "le") for _, labels in self.samples}

    def value(self, **labels: str) -> float:
        return self.samples[self.name, tuple(sorted(labels.items()))]

    def values(self, label: str) -> dict[str, float]:
        """Of all series, by a label's value."""
        return {dict(labels)[label]: value for (_, labels), value in self.samples.items()}


def parse(text: str) -> dict[str, Family]:
    """The families by name. Fails on what a scraper would refuse, and on what it would take for something else."""
    families: dict[str, Family] = {}
    current: Family | None = None
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("# HELP "):
            name, _, words = line.removeprefix("# HELP ").partition(" ")
            assert name not in families, f"{name} comes twice"
            families[name] = current = Family(name, words)
        elif line.startswith("# TYPE "):
            name, _, kind = line.removeprefix("# TYPE ").partition(" ")
            assert current is not None
            assert (name, current.samples) == (current.name, {}), line
            current.type = kind
        else:
            assert current is not None
            _take(current, line)
    return families


def _take(family: Family, line: str) -> None:
    found = _SAMPLE.fullmatch(line)
    assert found, f"no sample: {line!r}"
    name, inside, value = found.groups()
    allowed = [family.name + suffix for suffix in _SUFFIXES.get(family.type, ("",))]
    assert name in allowed, f"{name} stands below {family.name}, which is a {family.type}"
    labels = tuple(sorted(_labels(inside or "")))
    assert (name, labels) not in family.samples, f"twice: {line}"
    family.samples[name, labels] = float(value)


def _labels(inside: str) -> Iterator[tuple[str, str]]:
    place = 0
    while place < len(inside):
        found = _LABEL.match(inside, place)
        assert found, f"no labels: {inside!r}"
        yield found[1], found[2].replace(r"\n", "\n").replace(r"\"", '"').replace(r"\\", "\\")
        place = found.end()
