"""Secrets as people put them into texts, generated: the text, and the part of it that nobody may see."""

from __future__ import annotations

import base64
import json
import string
from typing import NamedTuple

from hypothesis import strategies as st


class Planted(NamedTuple):
    """:ivar text: what is shown or kept somewhere.
    :ivar hidden: what must not be in it then.
    """

    text: str
    hidden: str


_ALNUM = string.ascii_letters + string.digits
_MIXED = st.text(_ALNUM, min_size=12, max_size=40).filter(lambda text: any(map(str.isdigit, text)) and text.isalnum())
_CORE = _MIXED.filter(lambda text: any(map(str.isalpha, text)))


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _pem(body: str) -> str:
    return f"-----BEGIN RSA PRIVATE KEY-----\n{body}\n{body}\n-----END RSA PRIVATE KEY-----"


def _jwt(body: str) -> Planted:
    head, claims = _base64('{"alg":"HS256"}').rstrip("="), _base64(json.dumps({"sub": body})).rstrip("=")
    return Planted(f"{head}.{claims}.{body}", body)


_FORMS = (
    lambda s: Planted(f"apikey {s}", s),
    lambda s: Planted(f"ApiKey: {s}", s),
    lambda s: Planted(f"X-Api-Key: {s}", s),
    lambda s: Planted(f"Bearer {s}", s),
    lambda s: Planted(f"Authorization: Bearer {s}", s),
    lambda s: Planted(f"authorization: Token {s}", s),
    lambda s: Planted(f"Basic {_base64(f'me:{s}')}", _base64(f"me:{s}")),
    lambda s: Planted(f"Cookie: session={s}", s),
    lambda s: Planted(_pem(s), s),
    lambda s: Planted(_pem(s).replace("\n", "\\n"), s),
    lambda s: Planted(_base64(_pem(s)), _base64(_pem(s))[30:]),
    lambda s: Planted(f"redis://:{s}@host:6379/0", s),
    lambda s: Planted(f"postgresql://me:{s}/{s}@host/db", s),
    lambda s: Planted(f"https://{s}{s}@host/repository.git", s),
    lambda s: Planted(f"https://host/file?sv=1&sig={s}", s),
    lambda s: Planted(f"https://host/x?access_token={s}&y=1", s),
    _jwt,
    lambda s: Planted(f"AKIA{(s.upper() * 2)[:16]}", (s.upper() * 2)[:16]),
    lambda s: Planted(f"{(s + 'aB3' + s * 3)[:40]}", (s + "aB3" + s * 3)[:40]),
    lambda s: Planted(f"ghp_{s * 3}", s),
    lambda s: Planted(f"glpat-{s * 2}", s),
    lambda s: Planted(f"xoxb-{s}", s),
    lambda s: Planted(f"sk-{s * 2}", s),
    lambda s: Planted(f"AIza{s * 3}", s),
    lambda s: Planted(f"password={s}", s),
    lambda s: Planted(f"--db-password {s}", s),
    lambda s: Planted(f"host=db;Password='{s} {s}';port=1", s),
    lambda s: Planted(f"the client secret: {s}", s),
    lambda s: Planted(json.dumps({"user": "me", "dbPassword": s}), s),
    lambda s: Planted(f"{{user: me, token: {s}}}", s),
    lambda s: Planted(f"DefaultEndpointsProtocol=https;AccountKey={s}==;x=y", s),
)
NAMES = ("password", "DB_PASSWORD", "apiKey", "ldap.bind.password", "tls.key", "registry-token", "client.secret")

secrets = st.builds(lambda form, secret: form(secret), st.sampled_from(_FORMS), _CORE)
# What stands around it: nothing, prose, a log line, lines.
around = st.sampled_from(["{}", "see {} now", "error: cannot connect ({}), again", "a\n{}\nb", "[{}]", '"{}"'])


def every_form(seed: str) -> list[Planted]:
    """One of each form, each with a secret of its own."""
    return [form(f"{seed}{number:02d}x{'Qz7'[number % 3]}WmKpR4t") for number, form in enumerate(_FORMS)]
