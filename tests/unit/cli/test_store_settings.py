"""Settings of users, passwords and TLS for Kafka, Redis and PostgreSQL: contradictions, and masked output."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from muster_cli.settings import load
from muster_cli.settings_loader import SettingsError
from muster_runtime.secrets import MASK
from muster_runtime.store_credentials import ClientTls, Password, StoreFileUnusable, StoreNames, tls_problem
from pydantic import SecretStr

SECRET = "s3cret-of-a-store"
NAMES = StoreNames.prefixed(
    "section.", "Store", account="user password", protocol="mode", tls="verify-full", address="url"
)
SASL = ["log.kafka_security_protocol=SASL_SSL", "log.kafka_sasl_username=muster"]
REDIS = ["gateway.sessions_url=rediss://redis/0"]
POSTGRES = ["publisher.postgres_dsn=postgresql://muster@host/muster"]


@pytest.mark.parametrize(
    ("assignments", "told"),
    [
        (["log.kafka_security_protocol=SASL_SSL"], "without kafka_sasl_username"),
        (SASL, "without kafka_sasl_username, or without kafka_sasl_password"),
        (
            [*SASL, f"log.kafka_sasl_password={SECRET}", "log.kafka_sasl_password_file=f"],
            "kafka_sasl_password and kafka_sasl_password_file: expected one of them",
        ),
        ([f"log.kafka_sasl_password={SECRET}"], "with kafka_security_protocol PLAINTEXT: expected SASL_SSL"),
        (["log.kafka_ca_file=ca"], "with kafka_security_protocol PLAINTEXT: expected SSL or SASL_SSL"),
        (
            ["log.kafka_security_protocol=SSL", "log.kafka_client_key_file=k"],
            "kafka_client_key_file without kafka_client_cert_file",
        ),
        (["gateway.sessions_username=u"], "with memory: expected a Redis as sessions_url"),
        ([*REDIS, "gateway.sessions_username=u"], "without sessions_password and sessions_password_file"),
        (
            [f"gateway.sessions_url=redis://u:{SECRET}@h/0", "gateway.sessions_password_file=f"],
            "sessions_url has a user or password, and sessions_username or sessions_password is set",
        ),
        (
            [*REDIS, f"gateway.sessions_password={SECRET}", "gateway.sessions_password_file=f"],
            "sessions_password and sessions_password_file: expected one of them",
        ),
        (["gateway.sessions_url=redis://h/0", "gateway.sessions_ca_file=f"], "with redis: expected rediss://"),
        (
            [f"publisher.postgres_dsn=postgresql://u:{SECRET}@h/d", "publisher.postgres_password_file=f"],
            "postgres_dsn has a password",
        ),
        (["publisher.postgres_sslmode=verify-full"], "without postgres_dsn"),
        ([*POSTGRES, "publisher.postgres_ca_file=f"], "with postgres_sslmode None: expected verify-full"),
        (
            [*POSTGRES, "publisher.postgres_sslmode=disable", "publisher.postgres_ca_file=f"],
            "with postgres_sslmode disable: expected verify-full",
        ),
        ([*POSTGRES, "publisher.postgres_sslmode=full"], "publisher.postgres_sslmode"),
    ],
)
def test_contradictory_settings_are_refused(assignments: list[str], told: str) -> None:
    with pytest.raises(SettingsError) as wrong:
        load(None, assignments, environment={})
    assert told in str(wrong.value)
    assert SECRET not in str(wrong.value)


def test_no_password_is_shown() -> None:
    composed = load(
        None,
        [
            *SASL,
            f"log.kafka_sasl_password={SECRET}",
            *REDIS,
            f"gateway.sessions_password={SECRET}",
            *POSTGRES,
            f"publisher.postgres_password={SECRET}",
            f'publisher.sinks={{"second": {{"kind": "postgres", "dsn": "postgresql://h/d", "password": "{SECRET}"}}}}',
        ],
        environment={},
    )
    shown = {setting.name: setting.shown for setting in composed.effective()}
    for name in ("log.kafka_sasl_password", "gateway.sessions_password", "publisher.postgres_password"):
        assert shown[name] == MASK
    assert SECRET not in "".join(shown.values()) + repr(composed.values)


def test_a_password_file_is_read_each_time(tmp_path: Path) -> None:
    file = tmp_path / "password"
    password = Password(None, file, "section.password_file")
    assert password
    for text in ("first\n", "second\r\n", " spaces count "):
        file.write_bytes(text.encode())
        assert password.reveal() == text.rstrip("\r\n")


@pytest.mark.parametrize("content", [b"", b"\n", b"two\nlines\n", b"\xff\xfe", b"a\0b", b"x" * 100_000])
def test_a_file_that_is_no_password_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "password"
    file.write_bytes(content)
    with pytest.raises(StoreFileUnusable) as wrong:
        Password(None, file, "section.password_file").reveal()
    assert str(wrong.value) == f"section.password_file {file}: expected one line with the password"


def test_a_password_is_in_one_place_or_nowhere() -> None:
    assert Password(SecretStr(SECRET), None, "f").reveal() == SECRET
    assert SECRET not in repr(Password(SecretStr(SECRET), None, "f"))
    nothing = Password(SecretStr(""), None, "f")
    assert not nothing
    assert nothing.reveal() is None


def test_a_context_verifies_unless_told_otherwise() -> None:
    files = ClientTls(None, None, None)
    usual = files.context(NAMES)
    assert (usual.verify_mode, usual.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert usual.minimum_version == ssl.TLSVersion.TLSv1_2
    without_name = files.context(NAMES, check_name=False)
    assert (without_name.verify_mode, without_name.check_hostname) == (ssl.CERT_REQUIRED, False)
    without = files.context(NAMES, verify=False)
    assert (without.verify_mode, without.check_hostname) == (ssl.CERT_NONE, False)


def _certificate_error(code: int) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError()
    error.verify_code, error.verify_message = code, "the library's words"
    return error


def _tls_error(reason: str) -> ssl.SSLError:
    error = ssl.SSLError()
    error.reason = reason
    return error


@pytest.mark.parametrize(
    ("error", "setting"),
    [
        (_certificate_error(62), "section.url: the certificate of Store is for another name"),
        (_certificate_error(64), "section.url: the certificate of Store is for another name"),
        (_certificate_error(20), "section.ca_file: the certificate of Store is not trusted"),
        (_certificate_error(10), "section.ca_file: the certificate of Store is not trusted"),
        (_tls_error("WRONG_VERSION_NUMBER"), "section.mode: Store does not answer with TLS"),
        (_tls_error("TLSV13_ALERT_CERTIFICATE_REQUIRED"), "section.client_cert_file: Store refuses"),
        (_tls_error("TLSV1_ALERT_UNKNOWN_CA"), "section.client_cert_file: Store refuses"),
        (_tls_error("TLSV1_ALERT_PROTOCOL_VERSION"), "section.mode: the TLS handshake with Store failed"),
        (StoreFileUnusable("section.ca_file f: gone"), "section.ca_file f: gone"),
    ],
)
def test_a_failed_handshake_names_the_setting(error: OSError, setting: str) -> None:
    behind = ConnectionError("a client's own words")
    behind.__cause__ = error
    for each in (error, behind):
        said = tls_problem(each, NAMES)
        assert said is not None
        assert said.startswith(setting)
    assert tls_problem(ConnectionRefusedError(), NAMES) is None
