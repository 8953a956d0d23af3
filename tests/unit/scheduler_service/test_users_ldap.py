"""Groups from an LDAP directory, simulated by ldap3's own mock server."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
from muster_scheduler.errors import GroupSourceUnavailable, UnknownUser
from muster_scheduler.group_resolution import LdapConfig, LdapSource, UserGroups
from muster_scheduler.settings import UserSettings

BASE = "dc=example,dc=com"
READER = f"cn=reader,{BASE}"
PASSWORD = "correct horse"  # the password of this test's directory

PEOPLE: dict[str, dict[str, Any]] = {
    "ann": {"memberOf": [f"CN=ops,OU=groups,{BASE}", f"cn=dev team , {BASE}"], "mail": "CN=not-a-group,x=y"},
    "bob": {"memberOf": f"cn=ops,{BASE}"},
    "zoe": {},
    "eve": {"memberOf": [rf"cn=a\,b\+c,{BASE}", rf"cn=f\C3\BCnf+uid=5,{BASE}", "no name at all", f"cn=eve,{BASE}"]},
    "kim": {"isMemberOf": [f"cn=oracle,{BASE}"], "memberOf": [f"cn=ops,{BASE}"]},
    "a*": {"memberOf": [f"cn=star,{BASE}"]},
}


def _secrets(directory: Path, **changed: str) -> Path:
    known = {
        "Host": "directory.invalid",
        "BaseDN": BASE,
        "Filter": "(uid=%s)",
        "BindUser": READER,
        "BindPassword": PASSWORD,
    }
    for name, text in {**known, **changed}.items():
        (directory / name).write_text(text)
    return directory


def _connect(config: LdapConfig, timeout_s: float) -> Any:
    from ldap3 import MOCK_SYNC, Connection, Server

    connection = Connection(
        Server(config.host),
        config.bind_user,
        config.bind_password,
        client_strategy=MOCK_SYNC,
        raise_exceptions=True,
    )
    connection.strategy.add_entry(READER, {"userPassword": PASSWORD, "sn": "reader"})
    for name, attributes in PEOPLE.items():
        connection.strategy.add_entry(f"uid={name},ou=people,{BASE}", {"uid": name, "sn": name, **attributes})
    connection.bind()
    return connection


def _source(directory: Path, **changed: str) -> LdapSource:
    return LdapSource(_secrets(directory, **changed), 5.0, _connect)


@pytest.mark.parametrize(
    ("user", "groups"),
    [
        ("ann", ("ann", "ops", "dev team")),
        ("bob", ("bob", "ops")),
        ("zoe", ("zoe",)),  # in no group
        ("nobody", ("nobody",)),  # not in the directory, as in YuniKorn
        ("eve", ("eve", "a,b+c", "fünf")),
        ("a*", ("a*", "star")),  # a star in a name is no wildcard
        ("ann)(uid=bob", ("ann)(uid=bob",)),  # brackets do not leave the filter
    ],
)
def test_a_users_groups(tmp_path: Path, user: str, groups: tuple[str, ...]) -> None:
    assert _source(tmp_path)(user) == groups


def test_the_group_attribute_is_read_beside_member_of_where_it_is_returned(tmp_path: Path) -> None:
    assert _source(tmp_path, GroupAttr="isMemberOf")("kim") == ("kim", "ops")
    named = _source(tmp_path, GroupAttr="isMemberOf", ReturnAttr="isMemberOf,memberOf,mail")
    assert sorted(named("kim")) == ["kim", "ops", "oracle"]
    assert named("ann") == ("ann", "ops", "dev team")


def test_a_wrong_password_is_a_source_that_does_not_answer(tmp_path: Path) -> None:
    with pytest.raises(GroupSourceUnavailable, match="LDAP: LDAPInvalidCredentialsResult") as raised:
        _source(tmp_path, BindPassword="wrong staple")("ann")
    assert "staple" not in str(raised.value)


def test_the_secrets_may_change_between_two_look_ups(tmp_path: Path) -> None:
    source = _source(tmp_path, Filter="(mail=%s)")
    assert source("ann") == ("ann",)
    _secrets(tmp_path, Filter="(uid=%s)")
    assert source("ann") == ("ann", "ops", "dev team")


def test_all_the_way_through(tmp_path: Path) -> None:
    groups = UserGroups(UserSettings(lookup_timeout_s=30), {"ldap": _source(tmp_path)})
    assert groups.resolve("bob", (), "ldap", 1) == ("bob", "ops")


@pytest.mark.parametrize("ssl", ["false", "true"])
def test_a_directory_that_is_not_there_and_one_that_says_nothing(tmp_path: Path, ssl: str) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as silent:
        port = silent.getsockname()[1]
        directory = _secrets(tmp_path, Host="127.0.0.1", Port=str(port), SSL=ssl)
        groups = UserGroups(UserSettings(ldap_directory=directory, lookup_timeout_s=0.3))
        for user in ("ann", "bob"):
            with pytest.raises(UnknownUser, match="did not answer") as raised:
                groups.resolve(user, (), "ldap", 1)
            assert "127.0.0.1" not in raised.value.reason
    with socket.socket() as closed:  # (bound, so that nobody else listens there)
        closed.bind(("127.0.0.1", 0))
        (directory / "Port").write_text(str(closed.getsockname()[1]))
        with pytest.raises(GroupSourceUnavailable, match="LDAPSocketOpenError"):
            LdapSource(directory, 5.0)("ann")
