"""The resolver of groups for users without groups."""

from __future__ import annotations

import grp
import os
import pwd
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from muster_scheduler import group_resolution
from muster_scheduler.errors import BadLdapConfig, GroupSourceUnavailable, UnknownUser
from muster_scheduler.group_resolution import (
    KNOWN_NS,
    LOOKUPS_MAX,
    SECRET_BYTES_MAX,
    SWEEP_NS,
    UNKNOWN_NS,
    UserGroups,
    groups_of_test_users,
    os_groups,
    read_ldap_config,
)
from muster_scheduler.settings import UserSettings

NOW_NS = 10**18


class Source:
    """A source of groups that counts how often it is asked.

    :ivar answer: groups to return, or an error to raise.
    """

    def __init__(self, *groups: str) -> None:
        self.asked: list[str] = []
        self.answer: tuple[str, ...] | Exception = groups

    def __call__(self, user: str) -> Sequence[str]:
        self.asked.append(user)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def _asking(source: Callable[[str], Sequence[str]], *, timeout_s: float = 30.0) -> UserGroups:
    return UserGroups(UserSettings(lookup_timeout_s=timeout_s), {"os": source})


def _reason(groups: UserGroups, user: str = "ann", now_ns: int = NOW_NS) -> str:
    with pytest.raises(UnknownUser) as raised:
        groups.resolve(user, (), "os", now_ns)
    assert str(raised.value) == raised.value.reason
    return raised.value.reason


# ---- without looking up ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("resolver", ["", "os", "ldap", "test", "unheard of"])
def test_groups_that_are_given_are_taken_as_they_are(resolver: str) -> None:
    assert UserGroups().resolve("ann", ["Ops Team", "dev"], resolver, NOW_NS) == ("Ops Team", "dev")


@pytest.mark.parametrize("user", ["a:b", "team/ann", "me$", "_x", "a@b.c#d-e"])
def test_names_that_may_come_with_groups(user: str) -> None:
    assert UserGroups().resolve(user, ("g",), "", NOW_NS) == ("g",)


@pytest.mark.parametrize("user", ["1st", "a b", "a\n", "$", "-x", "a*"])
def test_names_that_may_not(user: str) -> None:
    with pytest.raises(UnknownUser, match="invalid username"):
        UserGroups().resolve(user, ("g",), "", NOW_NS)


@pytest.mark.parametrize("user", ["ann", "1st", "a b"])
@pytest.mark.parametrize("resolver", ["", "unheard of"])
def test_without_a_resolver_the_group_has_the_users_name(user: str, resolver: str) -> None:
    assert UserGroups().resolve(user, (), resolver, NOW_NS) == (user,)


@pytest.mark.parametrize("groups", [(), ("ops",)])
def test_an_empty_user_cannot_be_resolved(groups: tuple[str, ...]) -> None:
    with pytest.raises(UnknownUser, match="empty user cannot resolve"):
        UserGroups().resolve("", groups, "", NOW_NS)


# ---- remembering -----------------------------------------------------------------------------------------------------


def test_an_answer_holds_for_five_minutes() -> None:
    source = Source("ops", "dev")
    groups = _asking(source)
    for now_ns in (NOW_NS, NOW_NS + KNOWN_NS - 1):
        assert groups.resolve("ann", (), "os", now_ns) == ("ops", "dev")
    assert source.asked == ["ann"]
    source.answer = ("ops",)
    assert groups.resolve("ann", (), "os", NOW_NS + KNOWN_NS) == ("ops",)
    assert source.asked == ["ann", "ann"]


def test_a_refusal_holds_for_half_a_minute() -> None:
    source = Source()
    source.answer = UnknownUser("who is ann?")
    groups = _asking(source)
    assert _reason(groups) == _reason(groups, now_ns=NOW_NS + UNKNOWN_NS - 1) == "who is ann?"
    assert source.asked == ["ann"]
    source.answer = ("ops",)
    assert groups.resolve("ann", (), "os", NOW_NS + UNKNOWN_NS) == ("ops",)


def test_an_unknown_user_does_not_count_against_the_source() -> None:
    source = Source("ops")
    source.answer = UnknownUser("who?")
    groups = _asking(source)
    _reason(groups, "ann")
    source.answer = ("ops",)
    assert groups.resolve("bob", (), "os", NOW_NS) == ("ops",)


def test_a_source_that_did_not_answer_is_let_alone_for_half_a_minute() -> None:
    source = Source()
    source.answer = GroupSourceUnavailable("gone")
    groups = _asking(source)
    assert "did not answer" in _reason(groups, "ann")
    assert "did not answer" in _reason(groups, "bob", NOW_NS + UNKNOWN_NS - 1)
    assert source.asked == ["ann"]
    source.answer = ("ops",)
    assert groups.resolve("bob", (), "os", NOW_NS + UNKNOWN_NS) == ("ops",)


def test_a_known_user_stays_known_while_the_source_is_silent() -> None:
    source = Source("ops")
    groups = _asking(source)
    groups.resolve("ann", (), "os", NOW_NS)
    source.answer = OSError("a network")
    assert "did not answer" in _reason(groups, "bob")
    assert groups.resolve("ann", (), "os", NOW_NS + 1) == ("ops",)


@pytest.mark.parametrize("user", ["a\0b", "x" * 513, "\n"])
def test_a_name_that_no_source_can_take_does_not_silence_it(user: str) -> None:
    source = Source("ops")
    groups = _asking(source)
    assert "invalid username" in _reason(groups, user)
    assert source.asked == []
    assert groups.resolve("ann", (), "os", NOW_NS) == ("ops",)


def test_a_source_that_hangs_costs_one_wait_and_then_none() -> None:
    never = threading.Event()
    groups = _asking(lambda user: (str(never.wait(60)),), timeout_s=0.05)
    try:
        for user in ("ann", "bob", "zoe"):
            assert "did not answer" in _reason(groups, user)
        # After that, each further wait keeps one thread, up to a limit.
        for turn in range(1, LOOKUPS_MAX + 3):
            _reason(groups, f"user{turn}", NOW_NS + turn * UNKNOWN_NS)
        assert sum(thread.name == "user-groups" for thread in threading.enumerate()) <= LOOKUPS_MAX
    finally:
        never.set()


def test_expired_answers_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_resolution, "REMEMBERED_MAX", 50)
    source = Source("ops")
    groups = _asking(source)
    for number in range(200):
        groups.resolve(f"u{number}", (), "os", NOW_NS)
        assert len(groups._answers) <= 50
    groups.resolve("last", (), "os", NOW_NS + KNOWN_NS + SWEEP_NS)
    assert list(groups._answers) == [("os", "last")]


# ---- sources ---------------------------------------------------------------------------------------------------------


def test_the_operating_system_resolves_the_user_of_this_process() -> None:
    me = pwd.getpwuid(os.getuid())
    found = UserGroups().resolve(me.pw_name, (), "os", NOW_NS)
    numbers = os.getgrouplist(me.pw_name, me.pw_gid)
    assert found[0] == grp.getgrgid(me.pw_gid).gr_name
    assert len(found) == len(set(found)) == len(set(numbers))


@pytest.mark.parametrize("user", ["no-such-user-here", "a\0b"])
def test_the_operating_system_does_not_know_everybody(user: str) -> None:
    with pytest.raises(UnknownUser, match="not known to the operating system"):
        os_groups(user)


def test_a_group_without_a_name_goes_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getgrouplist", lambda user, gid: [gid, 4_000_000_001])
    assert os_groups(pwd.getpwuid(os.getuid()).pw_name)[-1] == "4000000001"


def test_the_users_of_the_real_cores_tests() -> None:
    assert groups_of_test_users("testuser1") == ("group1000", "group1001")
    assert UserGroups().resolve("testuser2", (), "test", NOW_NS) == ("100", "group1001", "group1002")
    with pytest.raises(UnknownUser, match="lookup failed for user: ann"):
        UserGroups().resolve("ann", (), "test", NOW_NS)


# ---- the directory's secrets -----------------------------------------------------------------------------------------

SECRETS = {
    "Host": "ldap.example.com\n",
    "Port": "3636",
    "BaseDN": "dc=example,dc=com",
    "Filter": "(&(uid=%s)(objectClass=person))",
    "GroupAttr": "memberUid",
    "ReturnAttr": "memberOf, cn",
    "BindUser": "cn=reader,dc=example,dc=com",
    "BindPassword": "correct horse\n",
    "Insecure": "true",
    "SSL": "1",
}


def secrets(directory: Path, **changed: str | None) -> Path:
    """Fill a secrets directory; None removes a file."""
    directory.mkdir(exist_ok=True)
    for name, text in {**SECRETS, **changed}.items():
        if text is not None:
            (directory / name).write_text(text)
    return directory


def test_every_secret_is_read(tmp_path: Path) -> None:
    config = read_ldap_config(secrets(tmp_path))
    assert config == group_resolution.LdapConfig(
        "ldap.example.com",
        3636,
        "dc=example,dc=com",
        "(&(uid=%s)(objectClass=person))",
        "memberUid",
        ("memberOf", "cn"),
        "cn=reader,dc=example,dc=com",
        "correct horse",
        insecure=True,
        ssl=True,
    )
    assert "horse" not in repr(config)


@pytest.mark.parametrize(("ssl", "port"), [(None, 389), ("false", 389), ("true", 636)])
def test_optional_secrets_have_defaults(tmp_path: Path, ssl: str | None, port: int) -> None:
    config = read_ldap_config(secrets(tmp_path, Port=None, GroupAttr=None, ReturnAttr=None, Insecure=None, SSL=ssl))
    assert (config.port, config.group_attribute, config.return_attributes) == (port, "memberOf", ("memberOf",))
    assert not config.insecure


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"Host": None, "BindPassword": " \n"}, "Host is missing; BindPassword is missing"),
        ({"Port": "ldap"}, "Port: expected a number from 1 to 65535"),
        ({"Port": "0"}, "Port: expected"),
        ({"Port": "65536"}, "Port: expected"),
        ({"Filter": "(uid=ann)"}, "Filter: expected %s"),
        ({"SSL": "maybe"}, "SSL: expected true or false"),
        ({"BindPassword": "x" * (SECRET_BYTES_MAX + 1)}, "BindPassword cannot be read: expected a short UTF-8 text"),
    ],
)
def test_faults_of_the_secrets_are_reported_without_the_secrets(
    tmp_path: Path, changed: dict[str, str | None], why: str
) -> None:
    with pytest.raises(BadLdapConfig) as raised:
        read_ldap_config(secrets(tmp_path, **changed))
    assert why in str(raised.value)
    assert "horse" not in str(raised.value)
    assert "xxx" not in str(raised.value)


def test_a_configuration_that_wants_ldap_is_refused_where_there_are_no_secrets(tmp_path: Path) -> None:
    groups = UserGroups(UserSettings(ldap_directory=tmp_path / "absent"))
    assert "absent is not there: expected a directory with Host, BaseDN" in groups.problem("ldap")
    assert [groups.problem(other) for other in ("", "os", "test")] == ["", "", ""]
    assert UserGroups(UserSettings(ldap_directory=secrets(tmp_path / "there"))).problem("ldap") == ""


def test_secrets_that_vanish_refuse_users_and_end_nothing(tmp_path: Path) -> None:
    groups = UserGroups(UserSettings(ldap_directory=tmp_path / "absent"))
    with pytest.raises(UnknownUser, match="did not answer") as raised:
        groups.resolve("ann", (), "ldap", NOW_NS)
    assert str(tmp_path) not in raised.value.reason
