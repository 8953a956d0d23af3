"""Identities: roles, the headers that pass them on, and the machine's own addresses."""

from __future__ import annotations

import socket

import pytest
from muster_runtime.addresses import is_loopback, on_loopback
from muster_runtime.identity import GATEWAY, LOOPBACK, NOBODY, RESERVED_NAMES, Identity, Role, identity_of, rights_of


@pytest.mark.parametrize(
    ("role", "may"), [(Role.NONE, [Role.NONE]), (Role.READ, [Role.NONE, Role.READ]), (Role.ADMIN, list(Role))]
)
def test_each_role_has_the_rights_of_those_before_it(role: Role, may: list[Role]) -> None:
    assert [needed for needed in Role if role.includes(needed)] == may


@pytest.mark.parametrize("identity", [LOOPBACK, GATEWAY, NOBODY, Identity("ops-1", rights_of(Role.READ))])
def test_an_identity_survives_its_headers(identity: Identity) -> None:
    read = identity_of([(b"accept", b"*/*"), *identity.headers()])
    assert (read.name, read.rights) == (identity.name, identity.rights)


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"x-muster-identity", b"eve")],
        [(b"x-muster-role", b"admin")],
        [(b"x-muster-identity", b"eve"), (b"x-muster-role", b"root")],
        [(b"x-muster-identity", b""), (b"x-muster-role", b"admin")],
    ],
)
def test_half_of_an_identity_is_no_caller(headers: list[tuple[bytes, bytes]]) -> None:
    assert identity_of(headers) == NOBODY


def test_the_names_that_no_token_has() -> None:
    assert {NOBODY.name, LOOPBACK.name, GATEWAY.name, "anyone"} == RESERVED_NAMES


@pytest.mark.parametrize("text", ["127.0.0.1", "127.9.8.7", "::1", "::ffff:127.0.0.1", "0:0:0:0:0:0:0:1"])
def test_the_machines_own_addresses(text: str) -> None:
    assert is_loopback(text)


@pytest.mark.parametrize(
    "text",
    ["", "0.0.0.0", "::", "10.0.0.1", "::ffff:10.0.0.1", "fe80::1%lo", "localhost", "127.0.0.1.example", "testclient"],
)
def test_all_others(text: str) -> None:
    assert not is_loopback(text)


@pytest.mark.parametrize(
    ("address", "private"),
    [
        ("127.0.0.1:0", True),
        ("[::1]:9080", True),
        ("[::ffff:127.0.0.1]:9080", True),
        ("localhost:9080", True),
        ("0.0.0.0:9080", False),
        ("[::]:0", False),
        ("192.0.2.7:9080", False),
        ("[::ffff:192.0.2.7]:9080", False),
    ],
)
def test_addresses_for_this_machine_only(address: str, private: bool) -> None:
    assert on_loopback("x", address) is private


@pytest.mark.parametrize(
    ("found", "private"), [(["127.0.0.1"], True), (["127.0.0.1", "192.0.2.7"], False), (["192.0.2.7"], False)]
)
def test_a_name_counts_with_all_that_it_stands_for(
    found: list[str], private: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def resolved(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        assert host == "muster.example"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in found]

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    assert on_loopback("x", "muster.example:9080") is private


def test_an_unresolvable_host_and_an_invalid_address_are_named() -> None:
    with pytest.raises(OSError, match=r"x: nobody\.invalid:9080: no such host here"):
        on_loopback("x", "nobody.invalid:9080")
    with pytest.raises(ValueError, match="x '9080': expected host:port"):
        on_loopback("x", "9080")
