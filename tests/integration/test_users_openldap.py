"""Groups from a real directory, OpenLDAP's, with TLS and without."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from certificates import Authority
from muster_scheduler.errors import GroupSourceUnavailable
from muster_scheduler.group_resolution import LdapSource, UserGroups
from muster_scheduler.settings import UserSettings
from openldap import Directory, directory_of
from wanting import server_wanted


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Directory]:
    work = tmp_path_factory.mktemp("openldap")
    authority.server().write(work / "tls.crt", work / "tls.key")
    groups = {"ops": ["ann", "bob"], "dev team": ["ann"]}
    with server_wanted(), directory_of(groups, work, work / "tls.crt", work / "tls.key") as it:
        yield it


def _secrets(work: Path, directory: Directory, **changed: str) -> Path:
    work.mkdir(exist_ok=True)
    texts = {
        "Host": "localhost",
        "Port": str(directory.port),
        "BaseDN": directory.base_dn,
        "Filter": "(uid=%s)",
        "BindUser": directory.user,
        "BindPassword": directory.password,
    }
    for name, text in (texts | changed).items():
        (work / name).write_text(text)
    return work


# (A time-out of a part of a second failed at once: no directory was ever asked.)
@pytest.mark.parametrize("timeout_s", [0.5, 5.0, 30])
def test_a_users_groups(directory: Directory, tmp_path: Path, timeout_s: float) -> None:
    source = LdapSource(_secrets(tmp_path, directory), timeout_s)
    assert set(source("ann")) == {"ann", "ops", "dev team"}
    assert source("bob") == ("bob", "ops")
    assert source("nobody") == ("nobody",)


def test_all_the_way_through(directory: Directory, tmp_path: Path) -> None:
    settings = UserSettings(ldap_directory=_secrets(tmp_path, directory), lookup_timeout_s=20)
    assert UserGroups(settings).resolve("bob", (), "ldap", 1) == ("bob", "ops")


def test_another_attribute(directory: Directory, tmp_path: Path) -> None:
    names = {"GroupAttr": "isMemberOf", "ReturnAttr": "isMemberOf"}
    assert LdapSource(_secrets(tmp_path, directory, **names), 5)("ann") == ("ann", "of ann")


def test_with_tls_its_certificate_must_be_known(
    directory: Directory, tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    guarded = {"Port": str(directory.tls_port), "SSL": "true"}
    with pytest.raises(GroupSourceUnavailable, match="LDAPSocketOpenError"):
        LdapSource(_secrets(tmp_path / "unknown", directory, **guarded), 5)("ann")
    assert LdapSource(_secrets(tmp_path / "any", directory, **guarded, Insecure="true"), 5)("bob") == ("bob", "ops")
    (tmp_path / "ca.crt").write_bytes(authority.pem)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.crt"))
    assert LdapSource(_secrets(tmp_path / "known", directory, **guarded), 5)("bob") == ("bob", "ops")


def test_a_wrong_password_and_a_port_without_tls(directory: Directory, tmp_path: Path) -> None:
    with pytest.raises(GroupSourceUnavailable, match="LDAPInvalidCredentialsResult"):
        LdapSource(_secrets(tmp_path / "password", directory, BindPassword="wrong staple"), 5)("ann")
    with pytest.raises(GroupSourceUnavailable, match="LDAPSocketOpenError"):
        LdapSource(_secrets(tmp_path / "plain", directory, SSL="true"), 5)("ann")
