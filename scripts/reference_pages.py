"""The pages of the site that are made from the code when the site is built: they cannot be stale.

``pages()`` gives each page's text by its name below docs/: the command line, the settings, the topics, the messages and
services on the wire, and an overview of the reference.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from muster_bus.topics import EVENT_KINDS, Topics
from muster_cli.main import app
from muster_cli.settings import STANDALONE_DEFAULTS, load
from muster_cli.settings_loader import Setting

ROOT = Path(__file__).resolve().parent.parent
DAY_MS = 24 * 60 * 60 * 1000
SECTIONS = {
    "process": "Every process",
    "log": "The log",
    "gateway": "Gateway",
    "scheduler": "Scheduler",
    "view": "View",
    "publisher": "Event publisher",
    "derive": "Derive",
}


def linked(text: str) -> str:
    """Makes links of the pages that the code names, as `(docs/usage.md)`."""
    return re.sub(r"\bdocs/([\w-]+\.md)", r"[\1](../\1)", text)


def cell(text: object) -> str:
    return str(text).replace("|", "\\|").replace("\n", " ")


def command_line() -> str:
    text = app.generate_docs(output_format="markdown")
    _, _, behind = text.partition("## Table of Contents")
    _, _, rest = behind.partition("**Run**")
    body = re.sub(r" \*\[default: (?:\(\)|False|None)?\]\*", "", f"**Run**{rest}")
    return linked(
        "# Commands and flags\n\nEvery command of `muster` with its parameters, from its code. "
        "[The command line](../command-line.md) says where a command finds Muster, and has the exit codes.\n\n" + body
    )


def settings() -> str:
    effective = load(None, (), environment={}).effective()
    head = (
        "# Settings\n\nEvery setting of Muster with its default, from the code. [Operating](../operating.md#settings) "
        "says where a value comes from: `--set SECTION.FIELD=VALUE`, the variable `MUSTER_SECTION__FIELD`, or a file. "
        "`muster config show` prints the effective values and their origin.\n"
    )
    text = [head]
    for section, title in SECTIONS.items():
        text.append(f"\n## {title}\n\n| setting | default | meaning |\n|---|---|---|\n")
        text += [row(each) for each in effective if each.name.split(".")[0] == section]
    text.append("\n## Services in a process of their own\n\nThey have other defaults for these settings:\n\n")
    text.append("| setting | default |\n|---|---|\n")
    text += [f"| `{name}` | `{cell(value)}` |\n" for name, value in STANDALONE_DEFAULTS.items()]
    return "".join(text)


def row(setting: Setting) -> str:
    value = f"`{cell(setting.shown)}`" if setting.shown not in {"", "{}", "()", "[]"} else ""
    return f"| `{setting.name}` | {value} | {linked(cell(setting.description))} |\n"


def days(time_ms: int) -> str:
    count = time_ms // DAY_MS
    return "1 day" if count == 1 else f"{count} days"


def topics() -> str:
    plain = Topics(derived=True)
    of = {plain.events_of(kind): f"Events of the kind {kind}, as they are on `si.events.v1`." for kind in EVENT_KINDS}
    for name, member in inspect.getmembers(Topics, lambda each: isinstance(each, property)):
        of[getattr(plain, name)] = inspect.getdoc(member.fget) or ""
    head = (
        "# Topics\n\nEvery topic of the log, from the code. A prefix (`log.topic_prefix`) comes before each name. All "
        "topics have the same number of partitions, and a record's key is its RM's id, or begins with it. "
        "[Operating](../operating.md#topics) has the settings.\n\n"
        "| topic | cleanup | kept | holds |\n|---|---|---|---|\n"
    )
    text = [head]
    for spec in plain.specs():
        kept = "for ever" if spec.retention_ms < 0 else days(spec.retention_ms)
        meaning = cell(inspect.cleandoc(of[spec.name])).replace("``", "`")
        text.append(f"| `{spec.name}` | {spec.cleanup} | {kept} | {linked(meaning)} |\n")
    return "".join(text)


COMMENTED = re.compile(
    r"(?P<comment>(?:^[ \t]*//[^\n]*\n)*)"
    r"^[ \t]*(?P<kind>service|rpc|message|enum)\s+(?P<name>\w+)(?P<rest>[^\n]*)",
    re.MULTILINE,
)


def definitions(text: str) -> Iterator[tuple[str, str, str, str]]:
    """The services, calls, messages and enumerations of a .proto file.

    Each has kind, name, signature, and the first sentence of the comment above it.
    """
    for match in COMMENTED.finditer(text):
        comment = " ".join(line.strip().removeprefix("//").strip() for line in match["comment"].splitlines())
        sentence = re.split(r"(?<=[.!?])\s+(?=[A-Z])", comment.strip(), maxsplit=1)[0]
        rest = match["rest"]
        signature = re.sub(r"\s+", " ", rest.rstrip("{; ")).strip() if match["kind"] == "rpc" else ""
        yield match["kind"], match["name"], signature, sentence


def protos() -> str:
    head = (
        "# Messages and services\n\nEverything on the wire, from the .proto files. Field numbers never change. "
        "`python -m grpc_tools.protoc -I proto …` makes stubs ([examples](../../examples/README.md)).\n"
    )
    text = [head]
    for path in sorted((ROOT / "proto").glob("*/**/*.proto")):
        name = path.relative_to(ROOT).as_posix()
        found = list(definitions(path.read_text(encoding="utf-8")))
        text.append(f"\n## {name.removeprefix('proto/')}\n\n[The file](../../{name})\n")
        if calls := [each for each in found if each[0] in {"service", "rpc"}]:
            text.append("\n| call | takes and returns | |\n|---|---|---|\n")
            for kind, call, signature, comment in calls:
                shown = f"**{call}**" if kind == "service" else f"`{call}`"
                text.append(f"| {shown} | {f'`{cell(signature)}`' if signature else ''} | {linked(cell(comment))} |\n")
        text.append("\n| message | |\n|---|---|\n")
        messages = [each for each in found if each[0] in {"message", "enum"}]
        text += [f"| `{message}` | {linked(cell(comment))} |\n" for _, message, _, comment in messages]
    return "".join(text)


PAGES: dict[str, Callable[[], str]] = {
    "reference/commands.md": command_line,
    "reference/settings.md": settings,
    "reference/topics.md": topics,
    "reference/protos.md": protos,
}


def pages() -> dict[str, str]:
    """All pages, by their names below docs/."""
    return {name: make() for name, make in PAGES.items()}
