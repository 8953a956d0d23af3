"""``muster explain``: why something is as it is, as sentences or as JSON (docs/explain.md)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from muster_client.admin import AdminClient, Explanation
from rich.table import Table

from muster_cli.operating import Operator, ask, console, print_json

# Of an application, of a queue: how many wait for what.
_COUNTS = ("counts", "asks")

Call = Callable[[AdminClient, str], Awaitable[Explanation]]


def explain(operator: Operator, call: Call) -> int:
    """Prints an explanation."""
    found = ask(operator, call)
    if operator.json:
        print_json(found.value)
        return 0
    out = console()
    for sentence in found.sentences:
        out.print(sentence, markup=False, highlight=False, soft_wrap=True)
    for name in _COUNTS:
        counts = found.value.get(name)
        if isinstance(counts, dict) and counts:
            out.print(_table(counts))
    return 0


def _table(counts: dict[str, int]) -> Table:
    table = Table("waits for (docs/explain.md)", "how many")
    for reason, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        table.add_row(reason, f"{count:,}")
    return table
