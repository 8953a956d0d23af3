"""The parts that compare.py and sharing.py share: a plot of named lines, and the table in its document."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

# Pixels.
WIDTH, LEFT, RIGHT, TOP, BOTTOM = 760, 62, 118, 44, 52
FONT = 'font-family="system-ui, sans-serif" font-size="13" fill="#333"'
END = "<!-- figures: end -->"


class Plot:
    """A plot as SVG.

    :param title: for readers of the text; ``heading``: above the lines.
    :param x: the first and the last value from left to right; ``y``: from the bottom up.
    """

    def __init__(self, title: str, heading: str, x: tuple[float, float], y: tuple[float, float], height: int) -> None:
        self._x, self._y, self._height = x, y, height
        self._names: list[tuple[float, str, str]] = []
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" {FONT}>',
            f"<title>{title}</title>",
            f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
            f'<text x="{LEFT}" y="24" font-size="15">{heading}</text>',
        ]

    def across(self, x: float) -> float:
        """The place of a value from left to right."""
        first, last = self._x
        return LEFT + (x - first) / (last - first) * (WIDTH - LEFT - RIGHT)

    def down(self, y: float) -> float:
        """The place of a value from the top down."""
        lowest, highest = self._y
        return TOP + (highest - y) / (highest - lowest) * (self._height - TOP - BOTTOM)

    def add(self, part: str) -> None:
        """Draws an element."""
        self._parts.append(part)

    def mark_y(self, y: float, text: str) -> None:
        """A line across, with its value on the left."""
        at = self.down(y)
        self.add(f'<path d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        self.add(f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{text}</text>')

    def mark_x(self, x: float, text: str) -> None:
        """A tick below, with its value."""
        at, bottom = self.across(x), self._height - BOTTOM
        self.add(f'<path d="M{at:.1f} {bottom}v5" stroke="#333"/>')
        self.add(f'<text x="{at:.1f}" y="{bottom + 20}" text-anchor="middle">{text}</text>')

    def axis(self, text: str) -> None:
        """The line below, and what its values are."""
        self.add(f'<path d="M{LEFT} {self._height - BOTTOM}H{WIDTH - RIGHT}" stroke="#333"/>')
        middle = (LEFT + WIDTH - RIGHT) / 2
        self.add(f'<text x="{middle:.0f}" y="{self._height - 12}" text-anchor="middle">{text}</text>')

    def line(self, name: str, points: Iterable[tuple[float, float]], colour: str, dashes: str) -> None:
        """A line, told apart without colour too: by dashes, and by the name at its end."""
        places = [(self.across(x), self.down(y)) for x, y in points]
        drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        self.add(
            f'<polyline points="{drawn}" fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dashes}"/>'
        )
        self._names.append((places[-1][1], name, colour))

    def text(self) -> str:
        """The whole plot."""
        names, bottom = [], 0.0
        for y, name, colour in sorted(self._names):
            bottom = max(y, bottom + 16)
            names.append(f'<text x="{WIDTH - RIGHT + 8}" y="{bottom + 4:.1f}" fill="{colour}">{name}</text>')
        return "\n".join([*self._parts, *names, "</svg>\n"])


def put(document: Path, begin: str, figures: str) -> None:
    """Puts a table into its document, between the marks."""
    before, _, rest = document.read_text(encoding="utf-8").partition(begin)
    _, _, after = rest.partition(END)
    document.write_text(f"{before}{begin}\n\n{figures}\n{END}{after}", encoding="utf-8")
