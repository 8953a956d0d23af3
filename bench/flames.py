"""Draws flame graphs of sampled stacks, small enough for a page.

Input is py-spy's raw form: a line for each stack, outermost frame first, and the number of its samples. Frames that
every stack has are left out, and so are those with a small share. A file has names of modules and functions only.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import NamedTuple

_FRAME = re.compile(r"^(?P<function>.+?) \((?P<file>.+?)(?::\d+)?\)$")
_THREAD = re.compile(r"^thread \(?(?:0x)?[0-9A-Fa-f]+\)?(?:: (?P<name>.+))?$")
# What starts a program, a thread or a callback tells nothing. (The turn of the event loop stays.)
_PLUMBING = re.compile(
    r"^(runpy|cyclopts|threading|concurrent\.futures|muster|muster_cli|asyncio\.runners|asyncio\.events"
    r"|importlib|profile_bench)(\.|$)|^asyncio\.base_events\.(?!.*_run_once)|^muster_runtime\.service\b"
)
# A thread whose innermost frame is one of these waits for sockets or for work. (py-spy looks at threads' states, which
# does not work on every machine.)
_WAITS = re.compile(r"^(selectors\.|threading\.|queue\.|concurrent\.futures\.thread\._worker$|.*\bCommitter\._run$)")
# Groups of modules, with their colours.
_GROUPS = (
    ("scheduling core", ("muster_core",), "#f6c99f"),
    ("scheduler", ("muster_scheduler",), "#f3dd8b"),
    ("log and its records", ("muster_bus", "muster_state", "sqlite3"), "#b7dfae"),
    ("gateway", ("muster_gateway",), "#a9cdf0"),
    ("gRPC", ("grpc",), "#cfc2ea"),
    ("Kafka's client", ("aiokafka",), "#a5ddd6"),
    ("event loop", ("asyncio", "selectors"), "#d5dade"),
    ("others", (), "#ecc8cf"),
)
_WIDTH, _ROW, _CHARACTER = 1180.0, 17, 6.4  # of the figure; a frame's height; a letter's width
_TOP, _MARGIN, _GAP = 30, 10, 34


class Frame(NamedTuple):
    """A function, and the module that it is in. ``module`` "": a thread."""

    module: str
    function: str

    @property
    def full(self) -> str:
        return f"{self.module}.{self.function}" if self.module else self.function

    @property
    def short(self) -> str:
        return f"{self.module.rpartition('.')[2]}.{self.function}" if self.module else self.function


Stacks = Mapping[tuple[Frame, ...], int]


@dataclass(slots=True)
class Node:
    """A frame with all that was called from it.

    :ivar samples: in the frame, and in what it called.
    """

    samples: int = 0
    below: dict[Frame, Node] = field(default_factory=dict)


def read_stacks(text: str) -> Counter[tuple[Frame, ...]]:
    """Returns the samples of each stack of functions, without plumbing and without threads that wait."""
    found: Counter[tuple[Frame, ...]] = Counter()
    for line in text.splitlines():
        stack, _, samples = line.rpartition(" ")
        frames = [frame_of(each) for each in stack.split(";")]
        if samples.isdigit() and frames[-1].module and not _WAITS.match(frames[-1].full):
            found[tuple(each for each in frames if not _PLUMBING.match(each.full))] += int(samples)
    return found


def frame_of(text: str) -> Frame:
    """Returns the frame that py-spy describes, without its line and without a path of the machine."""
    if match := _THREAD.match(text):
        name = re.sub(r"[-_]\d+$", "", (match["name"] or "").strip('"'))
        return Frame("", name if name and name != "MainThread" else "main thread" if name else "a thread")
    if match := _FRAME.match(text):
        return Frame(_module(match["file"]), match["function"])
    return Frame("", text)


def _module(file: str) -> str:
    """Returns the module of a file as py-spy shortens it, or as it is."""
    name = re.sub(r"^.*/(?:site-packages|lib/python3\.\d+|src)/", "", file).removesuffix(".py")
    name = re.sub(r"^<frozen (.+)>$", r"\1", name).lstrip("/")
    return re.sub(r"\W+", ".", name).strip(".").removesuffix(".__init__")


def tree_of(stacks: Stacks) -> Node:
    """Returns the stacks as one tree. Its root is no frame."""
    root = Node()
    for frames, samples in stacks.items():
        here = root
        here.samples += samples
        for frame in frames:
            here = here.below.setdefault(frame, Node())
            here.samples += samples
    return root


class Box(NamedTuple):
    """A frame's place in a picture: its row, and from where to where it goes, as shares of the whole."""

    frame: Frame
    row: int
    begin: float
    share: float


def boxes_of(root: Node, least: float) -> Iterator[Box]:
    """Yields the frames that have at least such a share, those that were called below their callers."""

    def below(node: Node, row: int, begin: float) -> Iterator[Box]:
        for frame, each in sorted(node.below.items()):
            share = each.samples / root.samples
            if share >= least:
                yield Box(frame, row, begin, share)
                yield from below(each, row + 1, begin)
            begin += share

    return below(root, 0, 0.0)


def group_of(module: str) -> int:
    """Returns the place of a module's group."""
    parts = module.split(".")
    return next((n for n, (_, some, _) in enumerate(_GROUPS) if parts[0] in some), len(_GROUPS) - 1)


def figure(title: str, panels: Sequence[tuple[str, Stacks]], least: float = 0.005) -> str:
    """Returns an SVG with a flame graph for each panel, one below the other, the callers above.

    :param panels: words and stacks of each.
    :param least: smaller shares are left out.
    """
    shapes: dict[int, list[str]] = {number: [] for number in range(len(_GROUPS))}
    texts: list[str] = []
    top = _TOP + 2 * _ROW
    for words, stacks in panels:
        boxes = list(boxes_of(tree_of(stacks), least))
        texts.append(f'<text x="{_MARGIN}" y="{top + 12}" font-size="13">{escape(words)}</text>')
        for box in boxes:
            _draw(box, top + _ROW + 6, shapes[group_of(box.frame.module)], texts)
        top += _ROW + 6 + _ROW * (1 + max((box.row for box in boxes), default=0)) + _GAP
    drawn = "\n".join(
        f'<g fill="{_GROUPS[number][2]}" stroke="white" stroke-width=".5">{"".join(some)}</g>'
        for number, some in shapes.items()
        if some
    )
    legend = "\n".join(_legend(number for number, some in shapes.items() if some))
    height, labels = top - _GAP + _MARGIN, "\n".join(texts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH + 2 * _MARGIN:g} {height}" role="img"\n'
        ' font-family="ui-monospace, monospace" font-size="10.5" fill="#24292f">\n'
        f"<title>{escape(title)}</title>\n"
        f'<rect width="{_WIDTH + 2 * _MARGIN:g}" height="{height}" rx="8" fill="white"/>\n'
        f'<text x="{_MARGIN}" y="22" font-size="15">{escape(title)}</text>\n'
        f"{legend}\n{drawn}\n{labels}\n</svg>\n"
    )


def _draw(box: Box, top: float, shapes: list[str], texts: list[str]) -> None:
    x, width, y = _MARGIN + box.begin * _WIDTH, box.share * _WIDTH, top + box.row * _ROW
    told = escape(f"{box.frame.full}: {box.share:.1%}")
    shapes.append(f'<path d="M{x:.1f} {y:g}h{width:.1f}v{_ROW - 1}h-{width:.1f}z"><title>{told}</title></path>\n')
    if label := _fitting(box.frame, width - 4):
        texts.append(f'<text x="{x + 2:.1f}" y="{y + 12:g}">{escape(label)}</text>')


def _fitting(frame: Frame, width: float) -> str:
    """Returns the longest name of a frame that fits; "": none."""
    most = int(width / _CHARACTER)
    for name in (frame.short, frame.function, frame.function.rpartition(".")[2]):
        if len(name) <= most:
            return name
    return f"{name[: most - 1]}…" if most >= 5 else ""


def _legend(groups: Iterable[int]) -> Iterator[str]:
    x = float(_MARGIN)
    for number in groups:
        name, _, colour = _GROUPS[number]
        yield f'<path d="M{x:.0f} {_TOP + 4}h12v12h-12z" fill="{colour}"/>'
        yield f'<text x="{x + 16:.0f}" y="{_TOP + 14}">{name}</text>'
        x += 40 + _CHARACTER * len(name)
