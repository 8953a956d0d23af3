"""A secret is masked by its value at every place. Other text stays the same, to the character."""

from __future__ import annotations

import ast
import hashlib
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from muster_proto.si.v1 import si_pb2 as si
from muster_runtime.secrets import (
    MASK,
    masked,
    masked_json,
    masked_text,
    masked_yaml,
    may_hold_secrets,
    printable,
    redacted,
)
from planted import NAMES, Planted, around, every_form, secrets

ROOT = Path(__file__).parents[3]


@given(secrets, around)
def test_a_planted_secret_is_in_no_output(planted: Planted, place: str) -> None:
    text = place.replace("{}", planted.text)
    message = si.RegisterResourceManagerRequest(rmID="rm", version=text, config=text, buildInfo={"note": text})
    shown = [
        masked_text(text),
        masked_yaml(text),
        str(masked({"note": text})),
        str(masked({text: "x"})),
        str(masked_json([{"deep": [text, {text: 1}, (text,), text.encode()]}])),
        str(redacted(message)),
        printable(message),
    ]
    for each in shown:
        assert planted.hidden not in each
        assert MASK in each


@given(st.text(max_size=20).filter(str.strip), st.sampled_from(NAMES))
def test_whatever_stands_beside_a_secret_s_name_is_hidden(value: str, name: str) -> None:
    assert masked({name: value}) == {name: MASK}
    tags = si.NodeInfo(nodeID="n", attributes={name: value.encode(errors="replace").decode()})
    assert redacted(tags).attributes[name] == MASK


@given(secrets, around)
def test_masking_twice_is_masking_once(planted: Planted, place: str) -> None:
    once = masked_text(place.replace("{}", planted.text))
    assert masked_text(once) == once


@pytest.mark.parametrize(
    "text",
    [
        "",
        "token",
        "a token is needed: send an Authorization header",
        "Bearer authentication is needed, and a token",
        "basic authentication",
        "invalid token: expected one header",
        "the password is wrong",
        "secret version 2 of the key",
        "kubernetes.io/meta/podName",
        "spark-8f3b0e0a1c5d4e11-driver",
        "http://host:9080/ws/v1/partition/default/node/a@b",
        "registry.example:5000/team/image@sha256:" + hashlib.sha256(b"x").hexdigest(),
        hashlib.sha1(b"x").hexdigest(),
        hashlib.sha256(b"x").hexdigest().upper(),
        str(uuid.UUID(int=7)),
        "/usr/local/lib/python/site-packages/muster/Core1",
        "root.tenants.team-1.batch",
        "queue root.a: max vcore 10, expected at most 5",
        "the ask's key: k1, its application: a1",
        "cpu: 100m, memory: 1Gi",
        "Signature of the method",
        "http_tokens: 16 characters or more",
    ],
)
def test_ordinary_texts_stay(text: str) -> None:
    assert masked_text(text) == text
    assert masked_text(text * 1) is masked_text(text), "short texts are remembered"


@pytest.mark.parametrize(
    "text",
    [
        "a token is needed: send the metadata authorization: Bearer TOKEN",
        "expected the header Authorization: Bearer TOKEN, once",
        "UNAUTHENTICATED: not authenticated: send the metadata authorization: Bearer TOKEN (docs/security.md)",
        "send Authorization: Bearer TOKEN.",
        'Bearer realm="muster", error="invalid_token"',
        "expected redis://[user:…@]host:port/db",
        '{"why": "send the header Authorization: Bearer TOKEN"}',
    ],
)
def test_musters_own_words_about_credentials_stay(text: str) -> None:
    assert masked_text(text) == text


@given(
    secrets,
    st.sampled_from(["Authorization: ", "authorization: ", "proxy-authorization=", '"Authorization": "']),
    st.sampled_from(["", " ", ".", "-", "=", ":", "TOKEN", ". ", " or "]),
)
def test_what_follows_the_word_for_a_token_is_hidden(planted: Planted, header: str, between: str) -> None:
    shown = masked_text(f"{header}Bearer TOKEN{between}{planted.hidden}")
    assert planted.hidden not in shown
    assert shown == header + MASK


def test_no_message_of_muster_is_masked() -> None:
    """Each text in the code but docstrings, with two words in each place of an f-string."""
    eaten = {
        f"{path.relative_to(ROOT)}: {text}"
        for folder in ("apps", "libs", "services")
        for path in (ROOT / folder).rglob("src/**/*.py")
        if path.name != "secrets.py"  # its patterns
        for text in texts_of(ast.parse(path.read_text()))
        if masked_text(text) != text
    }
    assert eaten == set()


def texts_of(tree: ast.AST) -> Iterator[str]:
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(each.value) if isinstance(each, ast.Constant) else "x y" for each in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


# 256 KiB of each: a pattern with backtracking would exceed the test's time limit.
HOSTILE = [
    *("a", "://a:", "eyJaaaa-", "token:", "token:x ", 'token="', "token:'", "-----BEGIN ", "a: ", "basic ", "xoxb-a-"),
    *("sk-", "SG.aaaa-", "authorization: ", "A1b/", "?sig=", "- x:\n", "passwordpasswordpassword-", "@", "{token: "),
    *("LS0tLS1CRUdJTi", "token:\\", "\ud800", "aB3/" * 10, "x" * 39 + " "),
]


@pytest.mark.parametrize("piece", HOSTILE, ids=range(len(HOSTILE)))
def test_long_hostile_texts_take_no_time_that_grows_with_their_square(piece: str) -> None:
    text = (piece * ((1 << 18) // len(piece) + 1))[: 1 << 18]
    assert isinstance(masked_yaml(text), str)  # this calls masked_text, too


def test_bytes_of_an_unknown_form() -> None:
    for planted in every_form("s"):
        assert may_hold_secrets(b"\x0a\xff" + planted.text.encode()), planted.text
    assert not may_hold_secrets(b"\x0a\x04rm-1\x12\xff\xfe")
