"""Metrics of two processes in one answer, in the text format of Prometheus.

A reader takes each family once. Where both have one, what was counted is added up; of what is measured, the first one's
counts. What a process says of itself stays apart: the second one's gets names of its own.
"""

from __future__ import annotations

from prometheus_client import generate_latest

_ADDED_UP = ("counter", "histogram", "summary")
_OF_PROCESS = ("process_", "python_")


def merged(first: bytes, second: bytes, prefix: str) -> bytes:
    """One exposition of two.

    :param prefix: before the names of what the second process says of itself.
    """
    families = _families(first, "")
    for name, (head, samples) in _families(second, prefix).items():
        if name not in families:
            families[name] = (head, samples)
            continue
        there = families[name][1]
        adds = any(line.startswith("# TYPE ") and line.rpartition(" ")[2] in _ADDED_UP for line in head)
        for key, value in samples.items():
            if key not in there:
                there[key] = value
            elif adds:
                there[key] = repr(float(there[key]) + float(value))
    lines = [
        line
        for head, samples in families.values()
        for line in (*head, *(f"{key} {value}" for key, value in samples.items()))
    ]
    return "".join(f"{line}\n" for line in lines).encode()


def own() -> bytes:
    """Of this process."""
    return generate_latest()


def _families(text: bytes, prefix: str) -> dict[str, tuple[list[str], dict[str, str]]]:
    """By name: the lines of its head, and its samples by name and labels."""
    families: dict[str, tuple[list[str], dict[str, str]]] = {}
    head: list[str] = []
    samples: dict[str, str] = {}
    for line in text.decode().splitlines():
        if line.startswith(("# HELP ", "# TYPE ")):
            _, word, name, *rest = line.split(" ", 3)
            if prefix and name.startswith(_OF_PROCESS):
                name = prefix + name
            head, samples = families.setdefault(name, ([], {}))
            head.append(" ".join(("#", word, name, *rest)))
        elif line and not line.startswith("#"):
            key, _, value = line.rpartition(" ")
            samples[prefix + key if prefix and key.startswith(_OF_PROCESS) else key] = value
    return families
