"""Masks secrets in texts of others. An extra configuration is free text, and people put passwords into it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

MASK = "***"
_WORDS = r"password|passwd|pwd|passphrase|secret|token|credential|authorization|private|api[._-]?key"
_WORD = re.compile(_WORDS, re.IGNORECASE)
_KEY = re.compile(
    r"(?:^|[._/-])(?:keys?|auth)$|(?:^|[._/-])pem(?:$|[._/-])|(?:access|signing|encryption)[._-]?key", re.IGNORECASE
)
_HUMP_KEY = re.compile(r"[a-z0-9](?:Keys?$|Auth$|Pem)")
# Secrets that are recognisable under any name. Each pattern looks at a character only a few times, because texts may be
# long.
_PEM = re.compile(r"-----BEGIN.*?(?:-----END[^\n-]*-----|\Z)", re.DOTALL)
_URL_PASSWORD = re.compile(r"(://[^\s/?#:@]*:)[^\s/?#]+@")
_ASSIGNED = re.compile(
    rf"""((?:{_WORDS})[\w.-]{{0,40}}[ \t]{{0,4}}=[ \t]{{0,4}})(?:"[^"\n]*"|'[^'\n]*'|[^\s,;&]+)""", re.IGNORECASE
)
# A line of YAML with such a name as key, in block style or within braces.
_YAML = re.compile(
    r"""(?P<name>[\w./-]+)(?P<colon>["']?\s*:[ \t]+)(?P<value>"[^"\n]*"|'[^'\n]*'|[^\s,{}\[\]#][^,}\n]*)"""
)


@lru_cache(maxsize=4096)
def is_secret(name: str) -> bool:
    """Tells whether a value of this name must not be shown."""
    return any(pattern.search(name) is not None for pattern in (_WORD, _KEY, _HUMP_KEY))


def masked(values: Mapping[str, str]) -> dict[str, str]:
    """Returns a copy with each secret's value masked, and the secrets within other values."""
    return {name: MASK if value and is_secret(name) else masked_text(value) for name, value in values.items()}


def masked_text(text: str) -> str:
    """Masks recognisable secrets: PEM blocks, passwords in URLs, ``password=…`` and the like."""
    if "-----BEGIN" in text:
        text = _PEM.sub(MASK, text)
    if "://" in text:
        text = _URL_PASSWORD.sub(rf"\1{MASK}@", text)
    return _ASSIGNED.sub(rf"\1{MASK}", text) if "=" in text else text


def masked_json(value: Any) -> Any:
    """Masks JSON of others: every text below a secret's name, at any depth, and the secrets within other texts.

    (Only the word pattern counts here, so ``allocationKey`` is no secret.)
    """
    return _masked_json(value, hidden=False)


def _masked_json(value: Any, *, hidden: bool) -> Any:
    match value:
        case dict():
            return {
                name: _masked_json(each, hidden=hidden or _WORD.search(name) is not None)
                for name, each in value.items()
            }
        case list():
            return [_masked_json(each, hidden=hidden) for each in value]
        case str():
            return MASK if value and hidden else masked_text(value)
    return value


def masked_yaml(text: str) -> str:
    """Masks each secret's value in a YAML text. Leaves everything else as written.

    A queue configuration has no key for a secret. But a text may have unknown keys; they only cause a warning.
    """
    lines: list[str] = []
    below = -1
    for line in masked_text(text).splitlines(keepends=True):
        indent = len(line) - len(line.lstrip())
        if below >= 0 and (not line.strip() or indent > below):
            lines.append(line[:indent] + MASK + "\n" if line.strip() else line)
            continue
        below = indent if _opens(line) else -1
        lines.append(_YAML.sub(_hide, line))
    return "".join(lines)


def _hide(found: re.Match[str]) -> str:
    if not is_secret(found["name"]) or found["value"][0] in "|>&":
        return found[0]
    return f"{found['name']}{found['colon']}{MASK}"


def _opens(line: str) -> bool:
    """Tells whether the lines below a line hold a secret's value."""
    name, colon, value = line.strip().lstrip("- ").partition(":")
    value = value.partition(" #")[0].strip()
    return bool(colon) and is_secret(name.strip("\"' ")) and (not value or value[0] in "|>&")
