"""Merges the metrics of two processes into one answer, in Prometheus's text format.

The answer has each family once. If both processes have a family, counts are added up, and of gauges the first process's
values count. The second process's metrics about itself get names of their own.
"""

from __future__ import annotations

from prometheus_client import generate_latest

_ADDED_UP = ("counter", "histogram", "summary")
_OF_PROCESS = ("process_", "python_")


def merged(first: bytes, second: bytes, prefix: str) -> bytes:
    """Merges two expositions.

    :param prefix: precedes the names of the second process's metrics about itself.
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
    """Returns this process's metrics."""
    return generate_latest()


def _families(text: bytes, prefix: str) -> dict[str, tuple[list[str], dict[str, str]]]:
    """Returns families by name: the lines of the head, and the samples by name and labels."""
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
