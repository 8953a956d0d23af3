"""A comparison as one HTML file: tables, and the use over time as a drawing. It loads nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from muster_whatif.comparison import Row, duration, shown
from muster_whatif.stats import PIECES, SimulationStats

# Told apart also without colour: each line has its own dashes.
_LINES = (("#1f6feb", ""), ("#d1572c", "6 3"), ("#2b8a3e", "2 2"), ("#8a2be2", "8 3 2 3"), ("#b8860b", "1 3"))
_WIDTH, _HEIGHT, _LEFT, _BELOW = 720, 220, 48, 28
_STYLE = """
body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:64rem;padding:0 1rem;color:#1b1f24;background:#fff}
table{border-collapse:collapse;width:100%}th,td{padding:.25rem .6rem;border-bottom:1px solid #d0d7de;text-align:right}
th:first-child,td:first-child{text-align:left}tr.group th{text-align:left;padding-top:1rem}
svg{max-width:100%;height:auto}svg text{font:12px system-ui,sans-serif;fill:currentColor}
@media(prefers-color-scheme:dark){body{color:#e6edf3;background:#0d1117}th,td{border-color:#30363d}}
"""


def page(
    title: str,
    facts: Sequence[str],
    names: Sequence[str],
    plays: Sequence[Sequence[SimulationStats]],
    rows: Sequence[Row],
) -> str:
    """Returns the page. ``names``: of the scenarios; ``plays``: for each, its play with each seed."""
    drawings = "".join(
        f"<h2>{escape(name)} in use</h2>{_drawing(name, names, plays)}"
        for name in sorted({name for seeds in plays for stats in seeds for name in stats.use})
    )
    items = "".join(f"<li>{escape(fact)}</li>" for fact in facts)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style><h1>{escape(title)}</h1><ul>{items}</ul>"
        f"{_table(names, rows)}{drawings}</html>\n"
    )


def _table(names: Sequence[str], rows: Sequence[Row]) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
    body, group = [], ""
    for row in rows:
        if row.group != group:
            group = row.group
            body.append(f'<tr class="group"><th colspan="{len(names) + 1}">{escape(group)}</th></tr>')
        cells = "".join(f"<td>{escape(shown(cell, row.unit))}</td>" for cell in row.cells)
        body.append(f"<tr><td>{escape(row.name)}</td>{cells}</tr>")
    return f'<table><thead><tr><th scope="col"></th>{head}</tr></thead><tbody>{"".join(body)}</tbody></table>'


def _drawing(resource: str, names: Sequence[str], plays: Sequence[Sequence[SimulationStats]]) -> str:
    """Draws each scenario's first seed. All have one time axis."""
    longest_s = max((seeds[0].makespan_s for seeds in plays), default=0.0) or 1.0
    parts, legend = [], []
    for number, (name, seeds) in enumerate(zip(names, plays, strict=True)):
        colour, dashes = _LINES[number % len(_LINES)]
        use = seeds[0].use.get(resource)
        if use is None:
            continue
        step = _WIDTH * seeds[0].makespan_s / longest_s / PIECES
        points = " ".join(
            f"{_LEFT + (index + 0.5) * step:.1f},{_HEIGHT * (1 - min(share, 1.0)):.1f}"
            for index, share in enumerate(use.series)
        )
        line = f'fill="none" stroke="{colour}" stroke-width="1.5" stroke-dasharray="{dashes}"'
        parts.append(f'<polyline points="{points}" {line}/>')
        at = _LEFT + 8 + 180 * number
        legend.append(
            f'<line x1="{at}" x2="{at + 26}" y1="{_HEIGHT + 44}" y2="{_HEIGHT + 44}" {line}/>'
            f'<text x="{at + 32}" y="{_HEIGHT + 48}">{escape(name)}</text>'
        )
    axis = "".join(
        f'<text x="{_LEFT - 6}" y="{_HEIGHT * (1 - share) + 4:.0f}" text-anchor="end">{100 * share:.0f} %</text>'
        f'<line x1="{_LEFT}" x2="{_LEFT + _WIDTH}" y1="{_HEIGHT * (1 - share):.0f}" y2="{_HEIGHT * (1 - share):.0f}" '
        'stroke="currentColor" stroke-opacity=".2"/>'
        for share in (0, 0.5, 1)
    )
    times = "".join(
        f'<text x="{_LEFT + _WIDTH * part:.0f}" y="{_HEIGHT + 18}" text-anchor="middle">'
        f"{escape(duration(longest_s * part))}</text>"
        for part in (0, 0.5, 1)
    )
    return (
        f'<svg viewBox="0 -6 {_LEFT + _WIDTH + 40} {_HEIGHT + _BELOW + 40}" role="img" '
        f'aria-label="Share of {escape(resource)} in use over time">{axis}{times}{"".join(parts + legend)}</svg>'
    )
