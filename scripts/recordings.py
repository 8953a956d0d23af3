"""Records `muster top` and the page while a small cluster works, as animated SVG: docs/top-recording.svg and
docs/page-recording.svg. It also draws the usage of that time into docs/history-usage.svg.

`make recordings`. It starts Muster and a resource manager of its own on this machine, for half a minute, and Chromium
(MUSTER_TEST_CHROMIUM, or the one on the PATH). The pictures contain nothing that is fetched from elsewhere.
"""

from __future__ import annotations

import asyncio
import base64
import io
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from muster_cli.top_screen import ScreenSize, screen
from muster_client import Callbacks, RmClient, application, ask, confirmation, node, release, removal
from muster_client.metrics_client import MetricsClient
from muster_proto.si.v1 import si_pb2 as si
from muster_replay.local_process import LocalProcess, free_ports, muster_command
from muster_runtime.terminal import Screen
from PIL import Image
from playwright.async_api import async_playwright
from rich.segment import Segment

DOCS = Path(__file__).resolve().parent.parent / "docs"
FRAMES, FRAME_S = 14, 1.2
COLUMNS, ROWS = 118, 40
CELL_W, CELL_H, FONT_PX = 7.8, 17, 13
PAGE_SIZE, SHOWN_WIDTH, QUALITY = {"width": 1180, "height": 760}, 944, 55
# New applications of each moment: the load comes in waves.
COMES = (3, 3, 3, 2, 1, 0, 0, 0, 0, 1)
VIEWS = ("#/", "#/", "#/", "#/queues", "#/queues", "#/nodes", "#/nodes", "#/pending")

QUEUES = """
partitions:
  - name: default
    preemption: {enabled: true}
    queues:
      - name: root
        submitacl: '*'
        queues:
          - name: training
            resources: {guaranteed: {vcore: 160, nvidia.com/gpu: 24}}
          - name: serving
            resources: {guaranteed: {vcore: 96}, max: {vcore: 160}}
          - name: batch
          - name: notebooks
            resources: {max: {vcore: 40}}
"""
# Queue, users, tasks, milli-cores, GiB and GPUs of a task, how many moments it runs.
KINDS = (
    ("training", ("ada", "grace"), (4, 8), 8_000, 32, 1, (6, 12)),
    ("serving", ("shop", "search"), (4, 10), 4_000, 8, 0, (10, 20)),
    ("batch", ("ada", "linus", "barbara"), (10, 24), 2_000, 6, 0, (3, 8)),
    ("notebooks", ("grace", "linus"), (2, 5), 4_000, 16, 0, (6, 14)),
)


class Cluster:
    """A resource manager whose applications come, run for a while and go; the same ones each time."""

    def __init__(self, address: str) -> None:
        self.chance = random.Random(7)
        self.runs: dict[tuple[str, str], int] = {}  # application, key: moments left
        self.lasts: dict[str, tuple[int, int]] = {}
        self.open: dict[str, int] = {}
        self.number = 0
        callbacks = Callbacks(on_allocated=self.on_allocated, on_released=self.on_released)
        self.rm = RmClient(address, "cluster", config=QUEUES, callbacks=callbacks)

    def on_allocated(self, items: Sequence[si.Allocation]) -> None:
        for item in items:
            self.runs[item.applicationID, item.allocationKey] = self.chance.randint(*self.lasts[item.applicationID])

    async def on_released(self, items: Sequence[si.AllocationRelease]) -> None:
        taken = [item for item in items if item.terminationType != si.STOPPED_BY_RM]
        for item in items:
            self.runs.pop((item.applicationID, item.allocationKey), None)
        if taken:
            await self.rm.send_releases([confirmation(item) for item in taken])

    async def begins(self) -> None:
        await self.rm.register()
        machine = {"vcore": 32_000, "memory": 128 * 2**30}
        nodes = [node(f"cpu-{n:02}", machine) for n in range(1, 9)]
        nodes += [
            node(f"gpu-{n:02}", {"vcore": 64_000, "memory": 256 * 2**30, "nvidia.com/gpu": 8}) for n in range(1, 5)
        ]
        await self.rm.send_nodes(nodes)
        await self.rm.nodes_answered()

    async def moment(self, new: int) -> None:
        ended = [place for place, left in self.runs.items() if left <= 1]
        self.runs = {place: left - 1 for place, left in self.runs.items() if left > 1}
        await self.rm.send_releases([release(*place) for place in ended])
        for name, _ in ended:
            self.open[name] -= 1
        over = [name for name, left in self.open.items() if left <= 0]
        for name in over:
            del self.open[name]
        await self.rm.send_applications((), [removal(name) for name in over])
        for _ in range(new):
            await self.adds()

    async def adds(self) -> None:
        queue, users, tasks, cores, gib, gpus, lasts = self.chance.choices(KINDS, weights=(4, 3, 5, 2))[0]
        self.number += 1
        name, user = f"{queue}-{self.number:03}", self.chance.choice(users)
        amounts = {"vcore": cores, "memory": gib * 2**30, **({"nvidia.com/gpu": gpus} if gpus else {})}
        self.lasts[name], self.open[name] = lasts, self.chance.randint(*tasks)
        await self.rm.send_applications([application(name, f"root.{queue}", user=user)])
        await self.rm.applications_answered()
        await self.rm.send_asks([ask(f"task-{n}", name, amounts) for n in range(self.open[name])])


class Piece(NamedTuple):
    """Text of one style in a line."""

    column: int
    text: str
    colour: str
    bold: bool


COLOURS = {
    "default": "#d0d7de", "black": "#6e7681", "red": "#ff7b72", "green": "#7ee787", "yellow": "#e3b341",
    "blue": "#79c0ff", "magenta": "#d2a8ff", "cyan": "#56d4dd", "white": "#ffffff", "bright_black": "#8b949e",
}  # fmt: skip


def pieces(line: Iterable[Segment]) -> tuple[Piece, ...]:
    found, column = [], 0
    for segment in line:
        style = segment.style
        colour = style.color.name if style and style.color else "default"
        shown = COLOURS.get(colour, COLOURS["default"])
        if style and style.dim:
            shown = COLOURS["bright_black"]
        if segment.text.strip():
            found.append(Piece(column, segment.text, shown, bool(style and style.bold)))
        column += len(segment.text)
    return tuple(found)


def shown_between(values: Sequence[bool], length_s: float) -> str:
    """An animation that shows an element in some of the frames."""
    count = len(values)
    changes = [place for place in range(count) if place == 0 or values[place] != values[place - 1]]
    times = ";".join(f"{place / count:.4f}" for place in changes)
    states = ";".join("visible" if values[place] else "hidden" for place in changes)
    return (
        f'<animate attributeName="visibility" calcMode="discrete" dur="{length_s:g}s" repeatCount="indefinite" '
        f'keyTimes="{times}" values="{states}"/>'
    )


def terminal(frames: Sequence[Sequence[tuple[Piece, ...]]]) -> str:
    """The animated picture of a terminal's frames: a text that stays is drawn once."""
    rows = max(map(len, frames))
    width, height = COLUMNS * CELL_W + 24, rows * CELL_H + 50
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img" '
        f'font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" font-size="{FONT_PX}" '
        'xml:space="preserve">\n<title>muster top: a cluster at work</title>\n'
        f'<rect width="{width:g}" height="{height:g}" rx="8" fill="#0d1117"/>\n'
    )
    out = [head]
    out += [
        f'<circle cx="{18 + 18 * n}" cy="17" r="5.5" fill="{c}"/>'
        for n, c in enumerate(("#ff5f57", "#febc2e", "#28c840"))
    ]
    out.append("\n")
    for row in range(rows):
        where: dict[Piece, list[bool]] = {}
        for place, frame in enumerate(frames):
            for piece in frame[row] if row < len(frame) else ():
                where.setdefault(piece, [False] * len(frames))[place] = True
        for piece, values in where.items():
            x, y = 12 + piece.column * CELL_W, 46 + row * CELL_H
            text = piece.text.rstrip()
            lead = len(text) - len(text.lstrip())
            text = text.lstrip()
            animation = "" if all(values) else shown_between(values, len(frames) * FRAME_S)
            bold = ' font-weight="bold"' if piece.bold else ""
            out.append(
                f'<text x="{x + lead * CELL_W:.1f}" y="{y}" fill="{piece.colour}"{bold} '
                f'textLength="{len(text) * CELL_W:.1f}">{escape(text)}{animation}</text>\n'
            )
    out.append("</svg>\n")
    return "".join(out)


def slides(pictures: Sequence[bytes], size: tuple[int, int]) -> str:
    """The animated picture of a browser's frames."""
    width, height = size
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">\n'
        "<title>The page: overview, queues, nodes, pending asks of a cluster at work</title>\n"
    )
    out = [head]
    for place, picture in enumerate(pictures):
        data = base64.b64encode(picture).decode()
        visible = [place == each for each in range(len(pictures))]
        out.append(
            f'<image width="{width}" height="{height}" visibility="{"hidden" if place else "visible"}" '
            f'href="data:image/webp;base64,{data}">{shown_between(visible, len(pictures) * 1.8)}</image>\n'
        )
    out.append(
        f'<rect x=".5" y=".5" width="{width - 1}" height="{height - 1}" fill="none" stroke="#d0d7de"/>\n</svg>\n'
    )
    return "".join(out)


async def recorded(cluster: Cluster, grpc: str, http: str, chromium: str) -> tuple[list[Any], list[bytes]]:
    """Both recordings of the same time: lines of the terminal, and pictures of the page."""
    frames: list[Any] = []
    pictures: list[bytes] = []
    size = (SHOWN_WIDTH, SHOWN_WIDTH * PAGE_SIZE["height"] // PAGE_SIZE["width"])
    console = Screen(width=COLUMNS, height=ROWS, file=io.StringIO(), force_terminal=True, color_system="standard")
    async with async_playwright() as playwright, MetricsClient(grpc) as metrics:
        browser = await playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-dev-shm-usage", "--force-color-profile=srgb"]
        )
        page = await browser.new_page(viewport=PAGE_SIZE, color_scheme="light")  # type: ignore[arg-type]
        await page.goto(http)
        before = None
        for place in range(FRAMES):
            await cluster.moment(new=COMES[place % len(COMES)])
            await asyncio.sleep(FRAME_S)
            now = await metrics.get("", nodes_max=6)
            room = ScreenSize(queues=8, nodes=6, types=3)
            rendered = console.render_lines(screen(now, before, room), console.options, pad=False)
            frames.append([pieces(line) for line in rendered[:ROWS]])
            before = now
            if place < len(VIEWS):
                await page.goto(f"{http}/{VIEWS[place]}")
                await page.wait_for_timeout(900)
                picture = Image.open(io.BytesIO(await page.screenshot())).convert("RGB").resize(size, Image.LANCZOS)
                packed = io.BytesIO()
                picture.save(packed, "WEBP", quality=QUALITY, method=6)
                pictures.append(packed.getvalue())
        await browser.close()
    return frames, pictures


async def main() -> int:
    chromium = os.environ.get("MUSTER_TEST_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        print(
            "no Chromium: install Debian's package chromium, or name a program in MUSTER_TEST_CHROMIUM", file=sys.stderr
        )
        return 2
    grpc_port, http_port = free_ports(2)
    grpc, http = f"127.0.0.1:{grpc_port}", f"127.0.0.1:{http_port}"
    with tempfile.TemporaryDirectory() as place:
        command = muster_command("up", "--data-dir", f"{place}/data", "--grpc-address", grpc, "--http-address", http)
        more = ("--set", "view.history_interval_s=0.5", "--set", "process.log_level=warning")
        muster = LocalProcess([*command, *more], Path(place) / "log")
        muster.start()
        try:
            await muster.serving(grpc)
            cluster = Cluster(grpc)
            async with cluster.rm:
                await cluster.begins()
                for number in range(36):  # some history before the recording
                    await cluster.moment(new=COMES[number % len(COMES)])
                    await asyncio.sleep(0.5)
                frames, pictures = await recorded(cluster, grpc, f"http://{http}", chromium)
        finally:
            muster.stop()
        plot = ["history", "usage", "--queue", "root", "--plot", str(DOCS / "history-usage.svg")]
        await (await asyncio.create_subprocess_exec(*muster_command(*plot, "--data-dir", f"{place}/data"))).wait()
    size = (SHOWN_WIDTH, SHOWN_WIDTH * PAGE_SIZE["height"] // PAGE_SIZE["width"])
    for name, text in (("top-recording.svg", terminal(frames)), ("page-recording.svg", slides(pictures, size))):
        (DOCS / name).write_text(text, encoding="utf-8")
        print(f"docs/{name}: {len(text.encode()) / 1024:.0f} KiB")
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
