"""The manual page muster(1), made from the commands themselves (`scripts/command-files` writes it)."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from typing import Any, get_args, get_origin

from cyclopts import App, Parameter

from muster_cli.completion import commands
from muster_cli.flags import AccessFlags, SettingsFlags

# Flags that many commands share have one section each.
_SHARED = {"Access": AccessFlags, "Settings": SettingsFlags}
_SHARED_DESCRIPTIONS = {
    "Access": "Every command that calls a gateway takes these.",
    "Settings": "Every command that starts a service, or opens its data, takes these.",
}

_BEHIND = r"""
.SH ENVIRONMENT
.TP
.BR MUSTER_GATEWAY ", " MUSTER_HTTP ", " MUSTER_RM
Where client commands find a gateway, and the RM; flags win over them.
.TP
.BR MUSTER_TOKEN ", " MUSTER_TOKEN_FILE ", " MUSTER_TLS* ", " MUSTER_CONTEXT
Access to a gateway, and a context by its name.
.TP
.BR MUSTER_SETTINGS ", " MUSTER_SECTION__FIELD
A settings file, and single settings of services. \fBmuster config show\fR lists all settings with their origin.
.SH FILES
.TP
.I ~/.config/muster/contexts.toml
Contexts (\fBmuster context\fR).
.TP
.IR DIR / log.db ", " DIR / sessions.db ", " DIR / history
What \fBmuster up \-\-data\-dir\fR \fIDIR\fR keeps: the log, the sessions of RMs, the history in Parquet.
.SH EXIT STATUS
.TP
.B 0
Done.
.TP
.B 1
Refused, failed, no answer, or the output cannot be written; one line on standard error says which.
.TP
.B 2
The call is wrong: a flag, a file, a setting, a port in use, or a name that Muster does not know.
.TP
.B 130
Interrupted.
"""


def page(app: App, version: str) -> str:
    """Returns the page as roff, for man(1).

    :param version: of Muster, for the page's foot.
    """
    lines = [
        r".\" Made by scripts/command-files.",
        f'.TH MUSTER 1 "" "Muster {version}" "Muster"',
        ".SH NAME",
        r"muster \- a networked resource scheduler",
        ".SH SYNOPSIS",
        ".B muster",
        r"\fICOMMAND\fR [\fIOPTIONS\fR]",
        ".SH DESCRIPTION",
        *_paragraphs(str(app.help)),
        ".PP",
        *_text("Resource managers connect over gRPC, with the scheduler interface of Apache YuniKorn."),
    ]
    for title, entries in _by_group(app).items():
        lines.append(f".SH {_plain(title.upper())} COMMANDS")
        for path, command in entries:
            lines += _command(path, command)
    for title, flags in _SHARED.items():
        lines += [f".SH {title.upper()} OPTIONS", *_text(_SHARED_DESCRIPTIONS[title])]
        holder = App(default_command=_function_with(flags))
        lines += _options(holder, shared=True)
    return "\n".join(lines) + _BEHIND


def _function_with(flags: type) -> Any:
    def function(*, given: Any = None) -> None: ...

    function.__annotations__["given"] = flags
    return function


def _by_group(app: App) -> dict[str, list[tuple[tuple[str, ...], App]]]:
    """Group → its commands that do something, in the order of their names."""
    by_group: dict[str, tuple[Any, list[tuple[tuple[str, ...], App]]]] = {}
    for path, command in commands(app):
        if command.default_command is not None:
            groups: Any = app[path[0]].group
            (group,) = groups
            by_group.setdefault(group.name, (group.sort_key, []))[1].append((path, command))
    ordered = sorted(by_group.items(), key=lambda item: item[1][0])
    return {name: sorted(entries, key=lambda entry: entry[0]) for name, (_, entries) in ordered}


def _command(path: tuple[str, ...], command: App) -> list[str]:
    arguments = [argument for argument in _arguments(command) if _is_operand(argument)]
    shown = " ".join(_operand(argument) for argument in arguments)
    return [
        f".SS {_plain(' '.join(('muster', *path)))} {shown}".rstrip(),
        *_paragraphs(re.split(r"\n\s*:", command.help or "")[0]),
        *_options(command),
    ]


def _options(command: App, *, shared: bool = False) -> list[str]:
    lines: list[str] = []
    for argument in _arguments(command):
        if not shared and any(group.name in _SHARED for group in argument.parameter.group or ()):
            continue
        lines += [".TP", _head(argument), *_text(_sentence(argument))]
    return lines


def _arguments(command: App) -> list[Any]:
    """The command's arguments, without the parts that hold other arguments."""
    collection = command.assemble_argument_collection(default_parameter=Parameter(negative=()), parse_docstring=True)
    return [
        argument
        for argument in collection
        if argument.names and argument.names[0] != "*" and argument.parameter.show is not False
    ]


def _operand(argument: Any) -> str:
    name = rf"\fI{_plain(_value(argument))}\fR"
    if argument.token_count()[1]:
        name += r" \.\.\."
    return name if argument.required else f"[{name}]"


def _head(argument: Any) -> str:
    if _is_operand(argument):
        return rf"\fI{_plain(_value(argument))}\fR"
    names = ", ".join(rf"\fB{_plain(name)}\fR" for name in argument.names)
    return names if argument.token_count()[0] == 0 else rf"{names} \fI{_plain(_value(argument))}\fR"


def _is_operand(argument: Any) -> bool:
    return bool(argument.field_info.is_positional)


def _value(argument: Any) -> str:
    longest = max(argument.names, key=len).lstrip("-")
    return str(longest.upper().replace("-", "_"))


def _sentence(argument: Any) -> str:
    """The help, with choices, variable and default as in ``--help``."""
    text = (argument.parameter.help or "").strip()
    behind = []
    if choices := _choices(argument.hint):
        behind.append(f"one of {', '.join(choices)}")
    if argument.parameter.env_var:
        behind.append(f"variable {', '.join(argument.parameter.env_var)}")
    if argument.required and not _is_operand(argument):
        behind.append("required")
    default = argument.field_info.default
    if argument.parameter.env_var or isinstance(default, str | int | float):
        shown = "" if default in ((), "", False, None) or not isinstance(default, str | int | float) else str(default)
        if shown:
            behind.append(f"default {shown}")
    return f"{text} ({'; '.join(behind)})" if behind else text


def _choices(hint: Any) -> list[str]:
    if get_origin(hint) is not None and str(get_origin(hint)) == "typing.Literal":
        return [str(choice) for choice in get_args(hint)]
    return []


def _paragraphs(text: str) -> list[str]:
    lines: list[str] = []
    for number, paragraph in enumerate(re.split(r"\n\s*\n", textwrap.dedent(text).strip())):
        lines += [*([".PP"] if number else []), *_text(" ".join(paragraph.split()))]
    return lines


def _text(text: str) -> Iterable[str]:
    """Text in roff: code in bold, each sentence's first sign no request."""
    parts = re.split(r"`([^`]*)`", text)
    line = "".join(rf"\fB{_plain(part)}\fR" if number % 2 else _plain(part) for number, part in enumerate(parts))
    return [rf"\&{line}" if line[:1] in (".", "'") else line]


def _plain(text: str) -> str:
    return text.replace("\\", r"\e").replace("-", r"\-").replace("…", r"\[u2026]").replace("“", '"').replace("”", '"')
