"""Masks secrets in whatever Muster shows or keeps beside the log: logs, REST, dumps, dead letters, events, commands.

This is the only place that knows what a secret looks like. It has two sources:

- the name beside a value: ``password``, ``apiKey``, ``tls.key`` (:func:`is_secret`);
- the value itself, under any name and within any text (:func:`masked_text`): private keys, tokens of known forms,
  credentials in addresses and headers, ``password=…`` and the like.

People put secrets everywhere: into an extra configuration, build information, tags, a comment in YAML. A secret without
any mark of either kind cannot be told from a name.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import re2
from google.protobuf import text_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from muster_proto.si.v1 import si_pb2

MASK = "***"

# ---- by name ---------------------------------------------------------------------------------------------------------

_WORDS = r"password|passwd|pwd|passphrase|secret|token|credential|authorization|private|api[._-]?key"
_WORD = re.compile(_WORDS, re.IGNORECASE)
_KEY = re.compile(
    r"(?:^|[._/-])(?:keys?|auth)$|(?:^|[._/-])pem(?:$|[._/-])|(?:access|signing|encryption|account|shared)[._-]?key"
    r"|(?:^|[._/-])(?:set-)?cookies?$",
    re.IGNORECASE,
)
_HUMP_KEY = re.compile(r"[a-z0-9](?:Keys?$|Auth$|Pem)")

# ---- by value --------------------------------------------------------------------------------------------------------
# Texts are long, and not trusted. So each pattern's work is linear: what repeats is bounded, or begins once in a run.

# One look that most texts pass: without any of these no pattern below finds anything, but for the last one. RE2 needs
# 2 ms for a MiB, and `re` a second.
_SIGN = re2.compile(
    r"-----BEGIN|LS0tLS1CRUdJTi|://|eyJ|AKIA|ASIA|ABIA|ACCA|AIza|ya29\.|gh[opsur]_|github_pat_|glpat-|xox[abeprs]-"
    r"|sk[-_]|rk_live|whsec_|npm_|pypi-|hf_|dop_v1_|shpat_|SG\.|AGE-SECRET|(?i:bearer|basic|apikey|digest|negotiate|cookie"
    rf"|[?&]sig|signature|access[._-]?key|account[._-]?key|shared[._-]?key|{_WORDS})"
)
# Also a PEM block on one line, with \n written out; without an end everything behind it counts.
_PEM = re.compile(r"-----BEGIN.*?(?:-----END[^\n-]{0,80}-----|\Z)", re.DOTALL)
_PEM_BASE64 = re.compile(r"LS0tLS1CRUdJTi[\w+/=-]*")
_ADDRESS = re.compile(r"""://[^\s"'<>]+""")
_AUTHORITY_ENDS = re.compile(r"[/?#]")
_PORT = re.compile(r"\d{1,5}[/?#]").match
_NO_PASSWORDS = ("", "…")  # none, and what describes one
_LONG_USER_CHARACTERS = 20  # a user's name of this length is a token
_URL_SIGNATURE = re.compile(
    r"([?&](?:sig|signature|x-amz-(?:signature|credential|security-token))=)[^&\s\"'<>]+", re.IGNORECASE
)
_JWT = re.compile(r"(?<![\w-])eyJ[\w-]{8,}\.[\w-]{4,}(?:\.[\w-]*){0,3}")
# Tokens of services that mark theirs.
_MARKED = re.compile(
    r"\b(?:(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}\b|AIza[\w-]{30,}|ya29\.[\w.-]{16,}|gh[opsur]_\w{20,}|github_pat_\w{20,}"
    r"|glpat-[\w-]{16,}|xox[abeprs]-[\w-]{10,}|sk-[\w-]{16,}|[sr]k_(?:live|test)_\w{10,}|whsec_\w{16,}|npm_\w{30,}"
    r"|pypi-[\w-]{16,}|hf_\w{20,}|dop_v1_\w{32,}|shpat_\w{16,}|SG\.[\w-]{16,}\.[\w-]{16,}|AGE-SECRET-KEY-\w{20,})"
)
# What follows a scheme of HTTP's Authorization. "Bearer authentication" and the like are words about it.
_SCHEME = re.compile(
    r"\b((?:bearer|apikey|negotiate)[ \t]{1,4})"
    r"(?!realm=|(?:authentication|authorization|tokens?|auth|scheme|is|was|and|or|not|in|of|for|header|missing|required)\b)"
    r"""["']?[^\s"'<>,;]{4,}""",
    re.IGNORECASE,
)
_BASIC = re.compile(r"\b(basic[ \t]{1,4})([A-Za-z0-9+/_-]{4,}={0,2})", re.IGNORECASE)
# A header's whole value: the scheme may be anybody's own. Not where Muster's messages describe one: "Bearer TOKEN".
_HEADER = re.compile(
    r"""((?:proxy-)?authorization["']?[ \t]{0,4}[:=][ \t]{0,4}["']?|\b(?:set-)?cookie["']?:[ \t]{1,4}["']?)"""
    r"""(?![ \t]{0,4}["']?(?-i:Bearer TOKEN)(?:[\n"',;)}]|[ ]\(|\.?$))"""
    r"""[^\n"',}]+""",
    re.IGNORECASE,
)
_NAME = rf"(?:{_WORDS}|(?:access|account|shared)[._-]?key)[\w.-]{{0,40}}"
_ASSIGNED = re.compile(rf"""({_NAME}["']?[ \t]{{0,4}}=[ \t]{{0,4}})(?:"[^"\n]*"|'[^'\n]*'|[^\s,;&]+)""", re.IGNORECASE)
# "name: value", as in JSON and headers. Unquoted, the value must be the last word: "bad token: expected one" is prose.
_COLON = re.compile(
    rf"""({_NAME}["']?[ \t]{{0,4}}:[ \t]{{0,4}})"""
    r"""(?:"(?:[^"\\\n]|\\.)+"|'[^'\n]+'|(?![|>&*](?:\s|$))"""
    r"""(?:[^\s,;&"'{}\[\]\\]{1,512}+(?=[ \t]{0,4}(?:$|[\n,;}\]\\]))|[^\s,;&"'{}\[\]\\]{512,}+))""",
    re.IGNORECASE | re.MULTILINE,
)
# "--password value", "apikey value", "token: value in prose". A word is no secret: only what has letters and digits, or
# is long.
_BESIDE = re.compile(
    rf"""((?:--?)?\b{_NAME}["']?:?[ \t]{{1,4}})(["']?)"""
    r"""((?=[^\s"']*\d)(?=[^\s"']*[A-Za-z])[^\s"',;]{6,}|[\w./+=-]{24,})""",
    re.IGNORECASE,
)
# A secret access key of AWS has no mark but its length and its letters.
_FORTY = re.compile(r"(?<![\w/+=.-])[A-Za-z0-9/+]{40}(?![\w/+=.-])", re.ASCII)
_HEXADECIMAL = re.compile(r"[0-9a-f]+|[0-9A-F]+").fullmatch
_FORTY_CHARACTERS = 40
# Tags and names repeat; a long text does not, and would fill the memory.
_CACHED_CHARACTERS_MAX = 256

# A line of YAML with such a name as key, in block style or within braces.
_YAML = re.compile(
    r"""(?<![\w./-])(?P<name>[\w./-]+)(?P<colon>["']?\s*:[ \t]+)(?P<value>"[^"\n]*"|'[^'\n]*'|[^\s,{}\[\]#][^,}\n]*)"""
)


@lru_cache(maxsize=4096)
def is_secret(name: str) -> bool:
    """Tells whether a value of this name must not be shown."""
    return any(pattern.search(name) is not None for pattern in (_WORD, _KEY, _HUMP_KEY))


def masked(values: Mapping[str, str]) -> dict[str, str]:
    """Returns a copy with each secret's value masked, and the secrets within other values and within names."""
    return {
        masked_text(name): MASK if value and is_secret(name) else masked_text(value) for name, value in values.items()
    }


def masked_text(text: str) -> str:
    """Masks recognisable secrets within a text. A text without one stays the same object."""
    return _masked_short(text) if len(text) <= _CACHED_CHARACTERS_MAX else _masked_text(text)


def _masked_text(text: str) -> str:
    if _has_sign(text):
        if "-----BEGIN" in text:
            text = _PEM.sub(MASK, text)
        text = _PEM_BASE64.sub(MASK, text)
        if "://" in text:
            text = _ADDRESS.sub(_without_password, text)
        text = _URL_SIGNATURE.sub(rf"\1{MASK}", text)
        text = _HEADER.sub(rf"\1{MASK}", text)
        text = _JWT.sub(MASK, text)
        text = _MARKED.sub(MASK, text)
        text = _SCHEME.sub(rf"\1{MASK}", text)
        text = _BASIC.sub(_without_basic, text)
        text = _ASSIGNED.sub(rf"\1{MASK}", text)
        text = _COLON.sub(rf"\1{MASK}", text)
        text = _BESIDE.sub(rf"\1\2{MASK}", text)
    if len(text) >= _FORTY_CHARACTERS:
        text = _FORTY.sub(_without_access_key, text)
    return text


def _has_sign(text: str) -> bool:
    try:
        return _SIGN.search(text) is not None
    except UnicodeEncodeError:  # RE2 reads UTF-8, which has no lone surrogates; JSON may have some
        return True


_masked_short = lru_cache(maxsize=8192)(_masked_text)


def masked_json(value: Any) -> Any:
    """Masks JSON of others: every text below a secret's name, at any depth, and the secrets within other texts.

    (Only the word pattern counts here, so ``allocationKey`` is no secret.)
    """
    return _masked_json(value, hidden=False)


def _masked_json(value: Any, *, hidden: bool) -> Any:
    match value:
        case dict():
            return {
                masked_text(str(name)): _masked_json(item, hidden=hidden or _WORD.search(str(name)) is not None)
                for name, item in value.items()
            }
        case set() | frozenset():
            return sorted((_masked_json(item, hidden=hidden) for item in value), key=str)
        case list() | tuple():
            return [_masked_json(item, hidden=hidden) for item in value]
        case str():
            return MASK if value and hidden else masked_text(value)
        case bytes():
            return MASK if value and hidden else masked_text(value.decode(errors="backslashreplace"))
    return value


@lru_cache(maxsize=8)  # the same few configurations are asked for; a text has up to a MiB
def masked_yaml(text: str) -> str:
    """Masks each secret's value in a YAML text. Leaves everything else as written.

    A queue configuration has no key for a secret. But a text may have unknown keys; they only cause a warning.
    """
    lines: list[str] = []
    below = -1
    for line in _PEM.sub(MASK, text).splitlines(keepends=True):
        indent = len(line) - len(line.lstrip())
        if below >= 0 and (not line.strip() or indent > below):
            lines.append(line[:indent] + MASK + "\n" if line.strip() else line)
            continue
        below = indent if _opens(line) else -1
        # By name first: a secret's value may have blanks, of which the other patterns see the first word only.
        lines.append(line if below >= 0 else _YAML.sub(_hide, line))
    return masked_text("".join(lines))


def _hide(match: re.Match[str]) -> str:
    if not is_secret(match["name"]) or match["value"][0] in "|>&":
        return match[0]
    return f"{match['name']}{match['colon']}{MASK}"


def _opens(line: str) -> bool:
    """Tells whether the lines below a line hold a secret's value."""
    name, colon, value = line.strip().lstrip("- ").partition(":")
    value = value.partition(" #")[0].strip()
    return bool(colon) and is_secret(name.strip("\"' ")) and (not value or value[0] in "|>&")


def _without_password(match: re.Match[str]) -> str:
    """One address, or several in a list that has no blanks."""
    return "://".join(_account_masked(part) for part in match[0].split("://"))


def _account_masked(address: str) -> str:
    """:param address: from behind "://" on."""
    authority = _AUTHORITY_ENDS.split(address, 1)[0]
    account, at, _ = authority.rpartition("@")
    user, colon, password = account.partition(":")
    if at:
        if not colon:
            return f"{MASK}{address[len(user) :]}" if len(user) >= _LONG_USER_CHARACTERS else address
        return f"{user}:{MASK}{address[len(account) :]}" if password not in _NO_PASSWORDS else address
    # A password may have "/" in it, although it should be quoted; a port with a path is none.
    user, colon, tail = address.partition(":")
    password, at, _ = tail.rpartition("@")
    if not colon or not at or _AUTHORITY_ENDS.search(user) or _PORT(tail):
        return address
    return f"{user}:{MASK}{tail[len(password) :]}"


def _without_basic(match: re.Match[str]) -> str:
    """Basic credentials are ``name:password`` in base64; another word behind "basic" is prose."""
    encoded = match[2].replace("-", "+").replace("_", "/").rstrip("=")
    try:
        decoded = base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
    except binascii.Error:
        return match[0]
    return f"{match[1]}{MASK}" if b":" in decoded else match[0]


def _without_access_key(match: re.Match[str]) -> str:
    """A digest is hexadecimal; a path or a long word has no mixture of cases and digits."""
    text = match[0]
    mixed = any(map(str.isdigit, text)) and any(map(str.isupper, text)) and any(map(str.islower, text))
    return text if not mixed or _HEXADECIMAL(text) is not None else MASK


def may_hold_secrets(value: bytes) -> bool:
    """Tells whether bytes of an unknown form have a word or a mark that stands beside secrets. Errs on that side."""
    text = value.decode("latin-1")
    return _SIGN.search(text) is not None or _FORTY.search(text) is not None


# ---- messages --------------------------------------------------------------------------------------------------------


def redacted(message: Message) -> Message:
    """Returns a copy without the fields that are marked with ``si_secret`` (extension 1059), and without the secrets
    within its texts and maps.

    Text and bytes of a marked field become ``***``, other values their type's default. Code that prints a message (a
    log line, a dead letter, an error) must use this function or :func:`printable`.
    """
    copy = type(message)()
    copy.CopyFrom(message)
    _mask(copy)
    return copy


def printable(message: Message, limit_chars: int = 2_000) -> str:
    """Returns one line of text without secrets, cut to ``limit_chars``."""
    text = text_format.MessageToString(redacted(message), as_one_line=True)
    return text if len(text) <= limit_chars else f"{text[:limit_chars]}… ({len(text)} characters)"


def _mask(message: Message) -> None:
    for field, value in message.ListFields():
        if _is_marked(field):
            _mask_marked(message, field)
        elif field.message_type is not None:
            if _is_map_of_texts(field.message_type):
                for name, text in list(value.items()):
                    value[name] = MASK if text and is_secret(name) else masked_text(text)
            else:
                for inner in _inner_messages(field.message_type, value, repeated=field.is_repeated):
                    _mask(inner)
        elif field.type == FieldDescriptor.TYPE_STRING:
            _mask_text(message, field, value)


def _mask_text(message: Message, field: FieldDescriptor, value: Any) -> None:
    if field.is_repeated:
        value[:] = [masked_text(text) for text in value]
    else:
        is_yaml = "\n" in value or field.name.startswith("config")
        setattr(message, field.name, masked_yaml(value) if is_yaml else masked_text(value))


def _mask_marked(message: Message, field: FieldDescriptor) -> None:
    if field.is_repeated or field.cpp_type != FieldDescriptor.CPPTYPE_STRING:
        message.ClearField(field.name)
        return
    setattr(message, field.name, MASK.encode() if field.type == FieldDescriptor.TYPE_BYTES else MASK)


def _inner_messages(message_type: Descriptor, value: Any, *, repeated: bool) -> Iterable[Message]:
    if not repeated:
        return [value]
    if message_type.GetOptions().map_entry:
        values: Iterable[Message] = value.values()
        return values if message_type.fields_by_name["value"].message_type is not None else ()
    elements: Iterable[Message] = value
    return elements


def _is_marked(field: FieldDescriptor) -> bool:
    return bool(field.GetOptions().Extensions[si_pb2.si_secret])


def _is_map_of_texts(message_type: Descriptor) -> bool:
    if not message_type.GetOptions().map_entry:
        return False
    text = FieldDescriptor.TYPE_STRING
    return all(message_type.fields_by_name[name].type == text for name in ("key", "value"))
