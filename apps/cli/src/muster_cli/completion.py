"""``muster completion``: completion of commands, flags and values for shells, as cyclopts writes it, with one mend.

Cyclopts takes each word for a command that is the name of any command. ``muster get nodes --`` then has no flags,
because ``muster history nodes`` exists. The mended scripts compare whole paths of commands.
"""

from __future__ import annotations

from typing import Literal

from cyclopts import App

Shell = Literal["bash", "zsh", "fish"]


def script(app: App, shell: Shell) -> str:
    """Returns the completion script for a shell."""
    text = app.generate_completion(shell=shell)
    paths = "|" + "".join(f"{' '.join(path)}|" for path, _ in commands(app))
    if shell == "bash":
        old = 'if [[ " $all_commands " =~ " $word " ]]; then'
        new = 'if [[ "$all_paths" == *"|${cmd_path[*]}${cmd_path:+ }$word|"* ]]; then'
        return _patch(text, old, new, "  local -a cmd_path=()\n", f"  local all_paths='{paths}'\n")
    if shell == "fish":
        old = 'if string match -q -- "* $word *" " $all_commands "'
        new = 'if string match -q -- "*|"(string join \' \' -- $subcommands $word)"|*" $all_paths'
        return _patch(text, old, new, "    set -l subcommands\n", f"    set -l all_paths '{paths}'\n")
    return text


def commands(app: App, before: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], App]]:
    """Returns all commands with their paths, groups of commands before their own."""
    entries: list[tuple[tuple[str, ...], App]] = []
    for name in app:
        if not name.startswith("-"):
            path = (*before, name)
            entries += [(path, app[name]), *commands(app[name], path)]
    return entries


def _patch(text: str, old: str, new: str, anchor: str, line: str) -> str:
    assert old in text, "another version of cyclopts: look whether the mend is still needed"
    assert anchor in text, "another version of cyclopts: look whether the mend is still needed"
    return text.replace(old, new).replace(anchor, anchor + line)
