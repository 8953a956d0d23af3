"""Errors and addresses in a form for people."""

from __future__ import annotations

import re

_STORY_MAX = 200

_USER_INFO = re.compile(r"//[^/@\s]*@")
_QUERY = re.compile(r"[?#].*", re.DOTALL)


def text_of(error: BaseException) -> str:
    """Returns an error's name and text in one line of bounded length."""
    text, name = " ".join(str(error).split())[:_STORY_MAX], type(error).__name__
    return text if text.startswith(name) else f"{name}: {text}" if text else name


def without_secrets(url: str) -> str:
    """Returns a URL without user, password, query and fragment."""
    return _QUERY.sub("", _USER_INFO.sub("//", url))
