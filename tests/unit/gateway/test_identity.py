"""Identification of callers: tokens, the loopback, proxies, and the checks against opening the front by mistake."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from muster_gateway.access import tokens as module
from muster_gateway.authentication import Authenticator, AuthFailure
from muster_gateway.errors import (
    InvalidGatewaySettings,
    InvalidToken,
    PermissionDenied,
    Unauthenticated,
    UnprotectedListener,
)
from muster_gateway.log_throttle import LogThrottle
from muster_gateway.settings import GatewaySettings
from muster_runtime.caller import Caller
from muster_runtime.identity import LOOPBACK, NOBODY, Identity, Proof, Right, Role, rights_of
from pydantic import ValidationError

ADMIN, READER = "admin-token-0123456789", "reader+token/9876543210=="
TOKENS = {"ops": {"role": "admin", "token": ADMIN}, "dashboard": {"role": "read", "token": READER}}


def doorman(**settings: Any) -> Authenticator:
    return Authenticator(GatewaySettings.model_validate(settings))


def scope(*headers: tuple[str, str], client: str | None = "127.0.0.1") -> dict[str, Any]:
    return {
        "type": "http",
        "method": "GET",
        "path": "/ws/v1/partitions",
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in headers],
        "client": (client, 50_000) if client is not None else None,
    }


def admitted(door: Authenticator, asked: dict[str, Any], needed: Right) -> Caller:
    return door.authorize_cached(door.http_credentials(asked), needed)


def of_token(name: str, role: Role) -> Identity:
    return Identity(name, rights_of(role), Proof.TOKEN)


def bearer(token: str) -> tuple[str, str]:
    return "Authorization", f"Bearer {token}"


def refusal(door: Authenticator, asked: dict[str, Any]) -> str:
    with pytest.raises(Unauthenticated) as raised:
        door.identify(asked)
    return raised.value.reason


# ---- tokens ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["127.0.0.1:9080", "0.0.0.0:9080"])
def test_a_token_identifies_its_owner(address: str) -> None:
    door = doorman(http_address=address, tokens=TOKENS)
    assert door.identify(scope(bearer(ADMIN), client="192.0.2.1")) == of_token("ops", Role.ADMIN)
    assert door.identify(scope(bearer(READER))) == of_token("dashboard", Role.READ)
    assert door.identify(scope(("Authorization", f"bEARER   {READER}"))) == of_token("dashboard", Role.READ)


def basic(text: str) -> str:
    return f"Basic {b64encode(text.encode()).decode()}"


def test_a_program_that_takes_an_address_only_brings_name_and_token() -> None:
    door = doorman(tokens=TOKENS)
    for name, token, role in (("ops", ADMIN, Role.ADMIN), ("dashboard", READER, Role.READ)):
        assert door.identify(scope(("Authorization", basic(f"{name}:{token}")))) == of_token(name, role)


def test_a_browser_that_knows_a_name_and_a_token_sends_them_for_its_own_page_only() -> None:
    door, known = doorman(tokens=TOKENS, http_open=True), ("Authorization", basic(f"ops:{ADMIN}"))
    assert door.identify(scope(known, ("Sec-Fetch-Site", "same-origin"))) == of_token("ops", Role.ADMIN)
    assert refusal(door, scope(known, ("Sec-Fetch-Site", "cross-site"))) == AuthFailure.MALFORMED
    # (A page of another origin cannot send Authorization: no answer allows it.)
    assert door.identify(scope(bearer(ADMIN), ("Sec-Fetch-Site", "cross-site"))) == of_token("ops", Role.ADMIN)


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (basic(f"dashboard:{ADMIN}"), AuthFailure.UNKNOWN),
        (basic(f"ops:{ADMIN}x"), AuthFailure.UNKNOWN),
        (basic(f":{ADMIN}"), AuthFailure.MALFORMED),
        (basic("ops:"), AuthFailure.MALFORMED),
        (basic("ops"), AuthFailure.MALFORMED),
        (basic(f"ops:{ADMIN}:{ADMIN}"), AuthFailure.MALFORMED),
        (basic("ops:töken-0123456789"), AuthFailure.MALFORMED),
        ("Basic =", AuthFailure.MALFORMED),
        ("Basic YQ", AuthFailure.MALFORMED),
        (f"Bearer {ADMIN}x", AuthFailure.UNKNOWN),
        (f"Bearer {ADMIN[:-1]}", AuthFailure.UNKNOWN),
        (f"Bearer {ADMIN.upper()}", AuthFailure.UNKNOWN),
        (f"Bearer {ADMIN} {ADMIN}", AuthFailure.MALFORMED),
        ("Bearer", AuthFailure.MALFORMED),
        ("Bearer ", AuthFailure.MALFORMED),
        ("", AuthFailure.MALFORMED),
        (ADMIN, AuthFailure.MALFORMED),
        (f"Basic {ADMIN}", AuthFailure.MALFORMED),
        ("Bearer t\xf6ken-0123456789", AuthFailure.MALFORMED),
    ],
)
def test_any_other_is_refused_also_on_the_loopback(header: str, reason: AuthFailure) -> None:
    for more in ({}, {"http_open": True}):
        assert refusal(doorman(tokens=TOKENS, **more), scope(("Authorization", header))) == reason


def test_none_or_two_are_refused() -> None:
    door = doorman(tokens=TOKENS)
    assert refusal(door, scope()) == AuthFailure.NO_TOKEN
    assert refusal(door, scope(bearer(ADMIN), bearer(ADMIN))) == AuthFailure.MALFORMED


def test_no_refusal_repeats_what_was_sent() -> None:
    door = doorman(tokens=TOKENS)
    for header in ("Bearer something-secret", "Basic something-secret"):
        with pytest.raises(Unauthenticated) as raised:
            door.identify(scope(("Authorization", header)))
        assert "something-secret" not in str(raised.value)


@pytest.mark.parametrize("token", [ADMIN, READER, "neither-of-them-00"])
def test_every_token_is_compared_in_constant_time(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []
    compare = module.compare_digest

    def counted(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return compare(a, b)

    door = doorman(tokens=TOKENS)
    monkeypatch.setattr(module, "compare_digest", counted)
    with_token = scope(bearer(token))
    if token in (ADMIN, READER):
        door.identify(with_token)
    else:
        refusal(door, with_token)
    assert len(compared) == len(TOKENS), "the same number of comparisons for every token"
    assert {len(each) for pair in compared for each in pair} == {32}, "digests, whatever the token's length"


def test_tokens_are_read_from_files_once(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"\n{ADMIN}\n")
    door = doorman(tokens={"ops": {"role": "read", "token_file": str(file)}})
    file.write_text("another-token-0123456789")
    assert door.identify(scope(bearer(ADMIN))) == of_token("ops", Role.READ)
    assert refusal(door, scope(bearer("another-token-0123456789"))) == AuthFailure.UNKNOWN


@pytest.mark.parametrize(
    "content",
    [b"", b"short", b"two words of a token", b"\xff" * 20, b"x" * 20_000 + b" ", b"a-token-of-many-00\n" * 11],
)
def test_a_file_without_a_token_is_named_and_never_shown(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_bytes(content)
    with pytest.raises(InvalidToken, match=r"gateway\.tokens\.ops\.token_file .*token: expected 16") as raised:
        doorman(tokens={"ops": {"role": "read", "token_file": str(file)}})
    assert content == b"" or content.decode("latin-1") not in str(raised.value)
    with pytest.raises(InvalidToken, match=r"ops\.token_file /absent: cannot be read: No such file"):
        doorman(tokens={"ops": {"role": "read", "token_file": "/absent"}})


async def test_a_file_is_read_again_and_may_have_two_tokens_meanwhile(tmp_path: Path) -> None:
    file, second = tmp_path / "token", "another-token-0123456789"
    await asyncio.to_thread(file.write_text, ADMIN)
    door = doorman(tokens={"ops": {"role": "read", "token_file": str(file)}})
    caller = admitted(door, scope(bearer(ADMIN)), Right.READ)
    assert not await door.refresh(), "nothing has changed"
    await asyncio.to_thread(file.write_text, f"{ADMIN}\n{second}\n")
    assert await door.refresh()
    for token in (ADMIN, second):
        assert door.identify(scope(bearer(token))) == of_token("ops", Role.READ)
    assert door.current_rights(caller) == rights_of(Role.READ)
    await asyncio.to_thread(file.write_text, second)
    assert await door.refresh()
    assert refusal(door, scope(bearer(ADMIN))) == AuthFailure.UNKNOWN
    assert door.current_rights(caller) is None, "the token was removed"
    await asyncio.to_thread(file.write_text, "no")
    assert not await door.refresh()
    (problem,) = door.problems()
    assert "gateway.tokens.ops.token_file" in problem
    assert door.identify(scope(bearer(second))) == of_token("ops", Role.READ), "the last valid file counts"


def test_a_digest_takes_the_place_of_a_token(tmp_path: Path) -> None:
    digest = f"sha256:{sha256(ADMIN.encode()).hexdigest()}"
    file = tmp_path / "token"
    file.write_text(f"{digest}\n")
    for entry in ({"token": digest}, {"token_file": str(file)}):
        door = doorman(tokens={"ops": {"role": "admin", **entry}})
        assert door.identify(scope(bearer(ADMIN))) == of_token("ops", Role.ADMIN)
        assert refusal(door, scope(bearer(digest[7:]))) == AuthFailure.UNKNOWN, "the digest itself is no token"
    with pytest.raises(ValidationError, match="64 hexadecimal digits"):
        doorman(tokens={"ops": {"role": "admin", "token": "sha256:abc"}})


def test_two_names_have_two_tokens() -> None:
    twice = {"a": {"role": "admin", "token": ADMIN}, "b": {"role": "read", "token": ADMIN}}
    with pytest.raises(InvalidToken, match=r"tokens\.b and gateway\.tokens\.a: the same token") as raised:
        doorman(tokens=twice)
    assert ADMIN not in str(raised.value)


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"role": "read"}, "neither, expected token or token_file"),
        ({"role": "read", "token": ADMIN, "token_file": "x"}, "both, expected token or token_file"),
        ({"role": "read", "token": "quite-short"}, "expected 16 characters or more"),
        ({"role": "read", "token": "tokens have no blanks"}, "expected 16 characters or more"),
        ({"role": "none", "token": ADMIN}, "Input should be 'read' or 'admin'"),
        ({"token": ADMIN}, "Field required"),
        ({"role": "read", "token": ADMIN, "more": "1"}, "Extra inputs are not permitted"),
    ],
)
def test_a_wrong_entry_is_an_error_that_shows_no_token(entry: dict[str, str], said: str) -> None:
    with pytest.raises(ValidationError, match=said) as raised:
        GatewaySettings.model_validate({"tokens": {"ops": entry}})
    assert entry.get("token", "no token") not in str(raised.value)


@pytest.mark.parametrize("name", ["", "a b", "nobody", "anyone", "loopback", "gateway", "x" * 65, "caf\xe9", "-a"])
def test_names_that_no_token_may_have(name: str) -> None:
    with pytest.raises(ValidationError, match="expected up to 64 letters"):
        GatewaySettings.model_validate({"tokens": {name: {"role": "read", "token": ADMIN}}})


# ---- without a token ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("peer", ["127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1"])
@pytest.mark.parametrize(
    "host", ["127.0.0.1:9080", "localhost:9080", "[::1]:9080", "muster.localhost", "LOCALHOST", None]
)
def test_a_caller_on_this_machine_is_admin(peer: str, host: str | None) -> None:
    headers = [("Host", host)] if host is not None else []
    for address in ("127.0.0.1:9080", "[::1]:0", "localhost:9080", "[::ffff:127.0.0.1]:9080"):
        assert doorman(http_address=address).identify(scope(*headers, client=peer)) == LOOPBACK


@pytest.mark.parametrize("peer", ["10.0.0.1", "::ffff:10.0.0.1", "2001:db8::1", "0.0.0.0", "", None])
def test_callers_from_elsewhere_are_refused(peer: str | None) -> None:
    assert refusal(doorman(), scope(client=peer)) == AuthFailure.NOT_LOCAL


@pytest.mark.parametrize(
    "header",
    [
        ("Host", "evil.example:9080"),
        ("Host", "127.0.0.1.evil.example"),
        ("Host", "localhost.evil.example"),
        ("Host", "["),
        ("Host", ""),
        ("Origin", "https://evil.example"),
        ("Origin", "null"),
        ("Origin", "http://localhost@evil.example"),
        ("Sec-Fetch-Site", "cross-site"),
        ("X-Forwarded-For", "192.0.2.7"),
        ("X-Forwarded-For", "127.0.0.1, 192.0.2.7"),
        ("X-Forwarded-For", "192.0.2.7, 127.0.0.1"),
        ("X-Forwarded-For", "localhost"),
        ("X-Forwarded-For", ""),
        ("Forwarded", "for=127.0.0.1"),
        ("X-Real-IP", "127.0.0.1"),
        ("Via", "1.1 proxy"),
        ("CF-Connecting-IP", "192.0.2.7"),
        ("X-Client-IP", "127.0.0.1"),
        ("X-Forwarded-For", "127.1"),
        ("X-Forwarded-For", "127.0.0.1:5000"),
        ("X-Forwarded-For", "127.0.0.1,"),
        ("X-Forwarded-Host", "muster.example"),
        ("X-Forwarded-Host", "localhost"),
        ("X-Forwarded-Proto", "https"),
        ("Sec-Fetch-Site", "Cross-Site"),
    ],
)
def test_pages_of_other_hosts_and_proxies_are_refused(header: tuple[str, str]) -> None:
    assert refusal(doorman(), scope(header)) == AuthFailure.NOT_LOCAL


@pytest.mark.parametrize(
    ("name", "ours", "foreign"),
    [
        ("Origin", "http://localhost:4200", "https://evil.example"),
        ("Host", "127.0.0.1:9080", "evil.example"),
        ("X-Forwarded-Host", "localhost", "evil.example"),
        ("Sec-Fetch-Site", "same-origin", "cross-site"),
    ],
)
@pytest.mark.parametrize("foreign_first", [True, False])
def test_of_a_header_that_is_there_twice_each_value_counts(
    name: str, ours: str, foreign: str, *, foreign_first: bool
) -> None:
    local = [("X-Forwarded-For", "127.0.0.1")]
    assert doorman().identify(scope(*local, (name, ours), (name, ours))) == LOOPBACK
    values = (foreign, ours) if foreign_first else (ours, foreign)
    assert refusal(doorman(), scope(*local, *((name, value) for value in values))) == AuthFailure.NOT_LOCAL


def test_two_credentials_and_a_second_connection_header_are_judged_as_a_whole() -> None:
    tokens = {"ops": {"role": "admin", "token": ADMIN}}
    twice = scope(bearer(ADMIN), bearer(ADMIN))
    assert refusal(doorman(tokens=tokens), twice) == AuthFailure.MALFORMED
    basic = ("Authorization", "Basic " + b64encode(f"ops:{ADMIN}".encode()).decode())
    sites = [("Sec-Fetch-Site", "same-origin"), ("Sec-Fetch-Site", "cross-site")]
    assert refusal(doorman(tokens=tokens), scope(basic, *sites)) == AuthFailure.MALFORMED
    for connections in (["keep-alive", "close"], ["keep-alive, close"]):
        asked = scope(("Host", "127.0.0.1:9080"), *(("Connection", each) for each in connections))
        assert refusal(doorman(), {**asked, "http_version": "1.0"}) == AuthFailure.NOT_LOCAL


@pytest.mark.parametrize(
    "origin", ["http://localhost:9889", "http://127.0.0.1:4200", "http://[::1]:1", "http://ui.localhost"]
)
def test_a_page_of_this_machine_may_ask(origin: str) -> None:
    cross = ("Sec-Fetch-Site", "cross-site")  # from localhost to 127.0.0.1
    assert doorman().identify(scope(("Host", "127.0.0.1:9080"), ("Origin", origin), cross)) == LOOPBACK


@pytest.mark.parametrize("forwarded", [["127.0.0.1"], ["::1"], ["127.0.0.1, ::ffff:127.0.0.1", "::1"]])
def test_a_proxy_of_this_machine_for_this_machine_may_ask(forwarded: list[str]) -> None:
    named = [("X-Forwarded-For", each) for each in forwarded]
    assert doorman().identify(scope(("Host", "localhost:9889"), *named)) == LOOPBACK
    assert refusal(doorman(), scope(("Host", "10.0.0.1:9889"), *named)) == AuthFailure.NOT_LOCAL
    assert refusal(doorman(), scope(*named, ("X-Forwarded-For", "10.0.0.1"))) == AuthFailure.NOT_LOCAL
    assert refusal(doorman(), scope(*named, ("Sec-Fetch-Site", "cross-site"))) == AuthFailure.NOT_LOCAL
    assert refusal(doorman(), scope(*named, client="10.0.0.1")) == AuthFailure.NOT_LOCAL
    # A proxy that changes Host also names the original host. An attacker's name may resolve to 127.0.0.1, there too.
    how = ("X-Forwarded-Proto", "http")
    assert doorman().identify(scope(*named, ("X-Forwarded-Host", "localhost:9889"), how)) == LOOPBACK
    assert refusal(doorman(), scope(*named, ("X-Forwarded-Host", "evil.example"), how)) == AuthFailure.NOT_LOCAL


@pytest.mark.parametrize(
    ("version", "connection", "is_proxy"),
    [("1.0", "close", True), ("1.0", None, False), ("1.0", "keep-alive", False), ("1.1", "close", False)],
)
def test_a_proxy_with_nginxs_defaults_is_recognised(version: str, connection: str | None, *, is_proxy: bool) -> None:
    """It names no original client, and Host is the address of its configuration."""
    named = [("Connection", connection)] if connection is not None else []
    asked = {**scope(("Host", "127.0.0.1:9080"), *named), "http_version": version}
    if is_proxy:
        assert refusal(doorman(), asked) == AuthFailure.NOT_LOCAL
    else:
        assert doorman().identify(asked) == LOOPBACK


@pytest.mark.parametrize("role", ["read", "admin"])
def test_open_means_everybody_wherever_it_listens(role: str) -> None:
    for address in ("127.0.0.1:9080", "0.0.0.0:9080"):
        door = doorman(http_address=address, http_open=True, http_open_role=role)
        anyone = Identity("anyone", rights_of(Role(role)), Proof.OPEN)
        assert door.identify(scope(client="192.0.2.1")) == anyone
        assert door.identify(scope(("Origin", "https://page.example"))) == anyone
        assert door.identify(scope(bearer("no-tokens-are-known"))) == anyone


def test_in_an_open_front_a_token_says_more() -> None:
    door = doorman(http_address="0.0.0.0:9080", http_open=True, tokens=TOKENS)
    assert door.identify(scope()) == Identity("anyone", rights_of(Role.READ), Proof.OPEN)
    assert door.identify(scope(bearer(ADMIN))) == of_token("ops", Role.ADMIN)


def test_without_tokens_none_is_looked_at() -> None:
    assert doorman().identify(scope(bearer("of-another-muster-0"))) == LOOPBACK


# ---- rights ---------------------------------------------------------------------------------------------------------


def test_requests_without_a_role_are_never_refused() -> None:
    door = doorman(tokens=TOKENS)
    assert admitted(door, scope(), Right.NONE).identity == NOBODY
    assert admitted(door, scope(bearer("not-a-token-of-ours")), Right.NONE).identity == NOBODY
    assert admitted(door, scope(bearer(READER)), Right.NONE).identity == of_token("dashboard", Role.READ)


def test_too_low_a_role_is_refused() -> None:
    door = doorman(tokens=TOKENS)
    assert admitted(door, scope(bearer(ADMIN)), Right.ADMIN).identity.name == "ops"
    with pytest.raises(PermissionDenied, match="this needs the role admin, and dashboard has read"):
        admitted(door, scope(bearer(READER)), Right.ADMIN)
    with pytest.raises(Unauthenticated):
        admitted(door, scope(), Right.READ)


# ---- proxies --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("192.0.2.1", [], "192.0.2.1"),
        ("192.0.2.1", ["10.0.0.1"], "192.0.2.1"),
        ("10.1.0.1", ["192.0.2.7"], "192.0.2.7"),
        ("10.1.0.1", ["6.6.6.6, 192.0.2.7"], "192.0.2.7"),
        ("10.1.0.1", ["6.6.6.6", "192.0.2.7, 10.1.0.9"], "192.0.2.7"),
        ("::ffff:10.1.0.1", ["192.0.2.7"], "192.0.2.7"),
        ("10.1.0.1", ["10.1.0.2, ::ffff:10.1.0.3"], ""),
        ("10.1.0.1", [], ""),
        ("2001:db8::5", ["192.0.2.7"], "192.0.2.7"),
        ("2001:db8::6", ["192.0.2.7"], "2001:db8::6"),
    ],
)
def test_only_trusted_proxies_name_the_client(peer: str, forwarded: list[str], client: str) -> None:
    door = doorman(trusted_proxies=["10.1.0.0/16", "2001:db8::5"])
    assert door.client(scope(*(("X-Forwarded-For", each) for each in forwarded), client=peer)) == client


def test_a_trusted_local_proxy_that_names_no_client_is_not_admin() -> None:
    door = doorman(trusted_proxies=["127.0.0.1"])
    assert refusal(door, scope()) == AuthFailure.NOT_LOCAL
    assert refusal(door, scope(("X-Forwarded-For", "127.0.0.1"))) == AuthFailure.NOT_LOCAL, "itself"
    assert refusal(door, scope(("X-Forwarded-For", "192.0.2.7"))) == AuthFailure.NOT_LOCAL
    assert door.identify(scope(("X-Forwarded-For", "::1"))) == LOOPBACK


def test_the_loopback_of_a_proxy_elsewhere_is_not_ours() -> None:
    door = doorman(trusted_proxies=["10.1.0.1"])
    assert refusal(door, scope(("X-Forwarded-For", "127.0.0.1"), client="10.1.0.1")) == AuthFailure.NOT_LOCAL


# ---- the door -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["0.0.0.0:9080", "[::]:9080", "192.0.2.7:0", "[::ffff:192.0.2.7]:9080"])
def test_a_wide_door_without_tokens_is_not_opened(address: str) -> None:
    with pytest.raises(UnprotectedListener) as raised:
        doorman(http_address=address)
    story = str(raised.value)
    assert isinstance(raised.value, InvalidGatewaySettings)
    assert story.startswith(f"gateway.http_address {address}: ")
    for way_out in ("127.0.0.1:9080", "gateway.tokens.NAME", "gateway.http_open=true", 'the role "read"'):
        assert way_out in story


@pytest.mark.parametrize("settings", [{"tokens": TOKENS}, {"http_open": True}])
def test_it_is_with_a_token_or_the_setting(settings: dict[str, Any]) -> None:
    doorman(http_address="0.0.0.0:9080", **settings)


@pytest.mark.parametrize("address", ["0.0.0.0:9090", "[::]:9090", "192.0.2.7:0"])
def test_a_wide_grpc_address_without_tokens_is_not_opened(address: str) -> None:
    with pytest.raises(UnprotectedListener) as raised:
        doorman(grpc_address=address)
    story = str(raised.value)
    assert story.startswith(f"gateway.grpc_address {address}: ")
    for way_out in ("127.0.0.1:9090", "gateway.tokens.NAME", "gateway.grpc_open=true", "docs/security.md"):
        assert way_out in story
    doorman(grpc_address=address, grpc_open=True)
    doorman(grpc_address=address, tokens=TOKENS)


def test_without_a_door_there_is_nothing_to_guard() -> None:
    doorman(http_address="")
    doorman(http_address="nobody.invalid:9080")  # whoever listens says what is wrong with it


def test_a_client_that_tries_without_end_does_not_fill_the_log() -> None:
    now_s = 5.0
    seldom = LogThrottle(1.0, lambda: now_s)
    assert [seldom.suppressed_if_due() for _ in range(4)] == [0, None, None, None]
    now_s = 6.0
    assert [seldom.suppressed_if_due() for _ in range(2)] == [3, None]
    now_s = 7.5
    assert seldom.suppressed_if_due() == 1
