"""Kafka, Redis and PostgreSQL with TLS and passwords: each client connects with its settings.

The error of a refused client names the setting at fault, never its secret.
"""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import traceback
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio
import secured_servers
import structlog
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from contract.informer_rigs import told
from muster_bus.backends.kafka import KafkaLog
from muster_bus.clock import SystemClock
from muster_bus.errors import LogError, LogRefused, LogUnavailable
from muster_bus.log import OutRecord
from muster_bus.settings import LogSettings
from muster_cli.main import main
from muster_core.external.errors import InformerSettingsWrong, SourceUnavailable
from muster_event_publisher.errors import InvalidSinkSettings, SinkUnavailable
from muster_event_publisher.history.registry import readers_of, sinks_of
from muster_event_publisher.settings import PublisherSettings
from muster_gateway.errors import InvalidStoreCredentials, SessionStoreDown
from muster_gateway.rm_lifecycle import RmLifecycleState
from muster_gateway.sessions import make_sessions
from muster_gateway.sessions.contract import Cursor, Session
from muster_gateway.settings import GatewaySettings
from muster_informers.contract import ChangeType, InformerContext, ListWatch
from muster_informers.sources import kafka as kafka_source
from muster_informers.sources import redis as redis_source
from secured_servers import CERTIFIED, Secured
from servers import STRANGER, STRANGER_PASSWORD

pytestmark = [pytest.mark.kafka, pytest.mark.redis, pytest.mark.postgres]

WRONG = "wr0ng-passw0rd-that-nobody-may-see"


@pytest.fixture(autouse=True)
def no_secret_is_logged(secured: Secured, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Check the logs of all libraries."""
    caplog.set_level(logging.DEBUG)
    logging.getLogger("asyncio").setLevel(logging.INFO)
    with structlog.testing.capture_logs() as captured:
        yield
    _holds_no_secret(secured, caplog.text + repr(captured))


def _holds_no_secret(secured: Secured, text: str) -> None:
    names = ("kafka-muster.password", "redis-muster.password", "postgres-muster.password")
    for secret in (WRONG, STRANGER_PASSWORD, *map(secured.secret, names)):
        assert secret not in text


def _said(secured: Secured, error: BaseException) -> str:
    """Return an error's text. Check that the text, its causes and the traceback hold no secret."""
    _holds_no_secret(secured, "".join(traceback.format_exception(error)) + repr(error))
    return str(error)


@pytest.fixture(scope="module")
def another_ca(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The certificate of a CA that signed nothing."""
    directory = tmp_path_factory.mktemp("ca")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=another"]
    files = ["-keyout", str(directory / "ca.key"), "-out", str(directory / "ca.crt")]
    subprocess.run([*command, *files], check=True, capture_output=True, timeout=60)
    return directory / "ca.crt"


@pytest.fixture
def files(secured: Secured, another_ca: Path, tmp_path: Path) -> dict[str, Path]:
    """Files for the tables below, by name."""
    (tmp_path / "wrong").write_text(f"{WRONG}\n")
    (tmp_path / "empty").write_text("\n")
    names = ("ca.crt", "client.crt", "client.key", "redis.key")
    return {
        **{name: secured.file(name) for name in names},
        "another-ca": another_ca,
        "wrong": tmp_path / "wrong",
        "empty": tmp_path / "empty",
        "absent": tmp_path / "absent",
    }


# ---- Kafka ---------------------------------------------------------------------------------------------------------


def _kafka(secured: Secured, prefix: str, **changes: Any) -> LogSettings:
    usual: dict[str, Any] = {
        "backend": "kafka",
        "topic_prefix": prefix,
        "partitions": 1,
        "derived_topics": False,
        "kafka_bootstrap_servers": secured.kafka,
        "kafka_start_timeout_s": 60,
        "kafka_security_protocol": "SASL_SSL",
        "kafka_sasl_username": "muster",
        "kafka_sasl_password_file": secured.file("kafka-muster.password"),
        "kafka_ca_file": secured.file("ca.crt"),
    }
    return LogSettings.model_validate({**usual, **changes})


@asynccontextmanager
async def _opened(settings: LogSettings) -> AsyncIterator[KafkaLog]:
    log = KafkaLog(settings.topics().specs(), settings, SystemClock())
    try:
        await log.start()
        yield log
    finally:
        await log.close()


NO_SASL = {"kafka_sasl_username": "", "kafka_sasl_password_file": None}
KAFKA_REFUSALS: list[tuple[dict[str, Any], type[LogError], str]] = [
    (
        {"kafka_sasl_password": WRONG, "kafka_sasl_password_file": None},
        LogRefused,
        "log.kafka_sasl_username, log.kafka_sasl_password: the brokers refuse user 'muster'",
    ),
    ({"kafka_sasl_password_file": "wrong"}, LogRefused, "the brokers refuse user 'muster' or its password"),
    ({"kafka_sasl_username": "nobody"}, LogRefused, "the brokers refuse user 'nobody'"),
    ({"kafka_sasl_mechanism": "PLAIN"}, LogRefused, "do not offer the SASL mechanism PLAIN"),
    ({"kafka_ca_file": "another-ca"}, LogRefused, "log.kafka_ca_file: the certificate of Kafka is not trusted"),
    ({"kafka_ca_file": None}, LogRefused, "log.kafka_ca_file: the certificate of Kafka is not trusted"),
    ({"kafka_ca_file": "absent"}, LogRefused, "log.kafka_ca_file /"),
    ({"kafka_ca_file": "empty"}, LogRefused, "expected PEM certificates of CAs"),
    ({"kafka_client_cert_file": "client.crt", "kafka_client_key_file": "redis.key"}, LogRefused, "client_cert_file /"),
    ({"kafka_client_cert_file": "client.crt", "kafka_client_key_file": "absent"}, LogRefused, "client_key_file /"),
    ({"kafka_sasl_password_file": "absent"}, LogRefused, "log.kafka_sasl_password_file /"),
    ({"kafka_sasl_password_file": "empty"}, LogRefused, "expected one line with the password"),
    (
        {"kafka_security_protocol": "PLAINTEXT", "kafka_ca_file": None, **NO_SASL},
        LogUnavailable,
        "log.kafka_security_protocol: Kafka closed the connection without an answer; a TLS port needs SSL or SASL_SSL",
    ),
    (
        {"kafka_security_protocol": "SASL_PLAINTEXT", "kafka_ca_file": None},
        LogUnavailable,
        "log.kafka_security_protocol: Kafka closed the connection without an answer",
    ),
    (
        {"kafka_security_protocol": "SSL", **NO_SASL},
        LogUnavailable,
        "log.kafka_security_protocol: the brokers close connections of SSL; expected another protocol",
    ),
]


@pytest.mark.parametrize(
    ("changes", "kind", "told"), KAFKA_REFUSALS, ids=[str(number) for number in range(len(KAFKA_REFUSALS))]
)
async def test_kafka_refuses(
    secured: Secured, files: dict[str, Path], changes: dict[str, Any], kind: type[LogError], told: str
) -> None:
    named = {name: files.get(value, value) if isinstance(value, str) else value for name, value in changes.items()}
    # (The client repeats an uncertain refusal until the timeout, then asks the brokers once more.)
    settings = _kafka(secured, "t.", kafka_start_timeout_s=60 if kind is LogRefused else 1, **named)
    with pytest.raises(kind) as refused:
        async with _opened(settings):
            pass
    assert type(refused.value) is kind
    assert told in _said(secured, refused.value)


async def test_tls_at_a_port_without_it(secured: Secured) -> None:
    settings = _kafka(secured, "t.", kafka_bootstrap_servers=secured.kafka_plain, kafka_start_timeout_s=1)
    with pytest.raises(LogError) as refused:
        async with _opened(settings):
            pass
    assert "log.kafka_security_protocol" in _said(secured, refused.value)


async def test_a_kafka_user_without_rights_is_told_which(secured: Secured) -> None:
    prefix = f"t{uuid.uuid4().hex}."
    settings = _kafka(
        secured,
        prefix,
        kafka_sasl_username=STRANGER,
        kafka_sasl_password=STRANGER_PASSWORD,
        kafka_sasl_password_file=None,
    )
    with pytest.raises(LogRefused) as refused:
        async with _opened(settings):
            pass
    said = _said(secured, refused.value)
    assert "log.kafka_sasl_username 'stranger'" in said
    assert "ACL with Create on the topic" in said


async def test_a_kafka_password_can_change_while_muster_runs(secured: Secured, tmp_path: Path) -> None:
    prefix, file = f"t{uuid.uuid4().hex}.", tmp_path / "password"
    file.write_text(secured.secret("kafka-muster.password"))
    await secured_servers.allow(secured, prefix)
    settings = _kafka(secured, prefix, kafka_sasl_password_file=file)
    async with _opened(settings) as log:
        assert await log.healthy()
        file.write_text(WRONG)
        with pytest.raises(LogUnavailable) as refused:
            await log.writer("w")
        assert "log.kafka_sasl_password: the brokers refuse user 'muster'" in _said(secured, refused.value)
        file.write_text(secured.secret("kafka-muster.password"))
        writer = await log.writer("w")
        assert await writer.append(OutRecord(settings.topics().events, 0, b"k", b"v")) == 0
        file.unlink()
        with pytest.raises(LogUnavailable, match=r"log\.kafka_sasl_password_file"):
            await log.take_over("g", settings.topics().requests, 0)


def test_a_command_ends_with_2_and_one_line(
    secured: Secured, capsys: pytest.CaptureFixture[str], logs_as_before: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {
        "BACKEND": "kafka",
        "KAFKA_BOOTSTRAP_SERVERS": secured.kafka,
        "KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
        "KAFKA_SASL_USERNAME": "muster",
        "KAFKA_SASL_PASSWORD": WRONG,
        "KAFKA_CA_FILE": str(secured.file("ca.crt")),
    }
    for name, value in settings.items():
        monkeypatch.setenv(f"MUSTER_LOG__{name}", value)
    monkeypatch.setattr("sys.argv", ["muster", "topics", "verify"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    output = capsys.readouterr()
    assert "log.kafka_sasl_password" in output.err
    _holds_no_secret(secured, output.out + output.err)


# ---- Redis ---------------------------------------------------------------------------------------------------------


def _sessions(secured: Secured, **changes: Any) -> GatewaySettings:
    usual: dict[str, Any] = {
        "sessions_url": f"rediss://{secured.redis}/0",
        "sessions_prefix": f"muster:t{uuid.uuid4().hex}:",
        "sessions_username": "muster",
        "sessions_password_file": secured.file("redis-muster.password"),
        "sessions_ca_file": secured.file("ca.crt"),
    }
    return GatewaySettings.model_validate({**usual, **changes})


def _session() -> Session:
    return Session(
        rm_id="rm", version=0, state=RmLifecycleState.RUNNING, since_ns=1, state_reason="",
        announced=RmLifecycleState.INIT, registered_at=Cursor(0, 0, 0),
    )  # fmt: skip


@pytest.mark.parametrize("how", ["file", "setting", "url", "certificate"])
async def test_sessions_are_kept_in_a_secured_redis(secured: Secured, how: str) -> None:
    password = secured.secret("redis-muster.password")
    changes: dict[str, Any] = {
        "file": {},
        "setting": {"sessions_password": password, "sessions_password_file": None},
        "url": {
            "sessions_url": f"rediss://muster:{password}@{secured.redis}/0",
            "sessions_username": "",
            "sessions_password_file": None,
        },
        "certificate": {
            "sessions_client_cert_file": secured.file("client.crt"),
            "sessions_client_key_file": secured.file("client.key"),
        },
    }[how]
    store = make_sessions(_sessions(secured, **changes), SystemClock())
    await store.start()
    try:
        assert await store.compare_and_set(_session())
        assert [session.rm_id for session in await store.all()] == ["rm"]
        await store.renew_lease("gateway", 10)
        assert await store.live_gateways() == {"gateway"}
        await store.begin_fill("one")
        assert await store.end_fill("one")
    finally:
        await store.close()


NO_TLS_FILES = {"sessions_ca_file": None}
REDIS_REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"sessions_password_file": "wrong"}, "gateway.sessions_username, gateway.sessions_password: Redis refuses"),
    ({"sessions_username": "default"}, "gateway.sessions_username, gateway.sessions_password: Redis refuses"),
    (
        {"sessions_username": "", "sessions_password_file": None},
        "gateway.sessions_username, gateway.sessions_password: Redis refuses",
    ),
    ({"sessions_ca_file": "another-ca"}, "gateway.sessions_ca_file: the certificate of Redis is not trusted"),
    ({"sessions_ca_file": None}, "gateway.sessions_ca_file: the certificate of Redis is not trusted"),
    ({"sessions_url": "redis", **NO_TLS_FILES}, "gateway.sessions_url: Redis closed the connection without an answer"),
]


@pytest.mark.parametrize(("changes", "told"), REDIS_REFUSALS, ids=[str(n) for n in range(len(REDIS_REFUSALS))])
async def test_redis_refuses(secured: Secured, files: dict[str, Path], changes: dict[str, Any], told: str) -> None:
    named = {name: files.get(value, value) if isinstance(value, str) else value for name, value in changes.items()}
    if named.get("sessions_url") == "redis":
        named["sessions_url"] = f"redis://{secured.redis}/0"
    store = make_sessions(_sessions(secured, **named), SystemClock())
    with pytest.raises(SessionStoreDown) as refused:
        await store.start()
    assert told in _said(secured, refused.value)
    await store.close()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"sessions_password_file": "absent"}, "gateway.sessions_password_file /"),
        ({"sessions_ca_file": "absent"}, "gateway.sessions_ca_file /"),
        ({"sessions_client_cert_file": "absent"}, "gateway.sessions_client_cert_file /"),
    ],
)
def test_a_file_for_redis_is_not_there(
    secured: Secured, files: dict[str, Path], changes: dict[str, Any], told: str
) -> None:
    settings = _sessions(secured, **{name: files[value] for name, value in changes.items()})
    with pytest.raises(InvalidStoreCredentials) as wrong:
        make_sessions(settings, SystemClock())
    assert told in str(wrong.value)


async def test_what_redis_forbids_is_logged_and_no_client_reads_it(secured: Secured, no_secret_is_logged: None) -> None:
    store = make_sessions(_sessions(secured, sessions_prefix="others:"), SystemClock())
    await store.start()
    try:
        with structlog.testing.capture_logs() as captured, pytest.raises(SessionStoreDown) as refused:
            await store.compare_and_set(_session())
    finally:
        await store.close()
    assert "gateway.sessions" not in _said(secured, refused.value)
    assert [entry["event"] for entry in captured] == ["sessions.refused"]
    assert captured[0]["problem"].startswith("gateway.sessions_username, gateway.sessions_password: Redis forbids it")


# ---- PostgreSQL ----------------------------------------------------------------------------------------------------


def _publisher(secured: Secured, flat: bool, **changes: Any) -> PublisherSettings:
    usual: dict[str, Any] = {
        "dsn": f"postgresql://muster@{secured.postgres}/muster",
        "schema": f"t{uuid.uuid4().hex}",
        "password_file": secured.file("postgres-muster.password"),
        "sslmode": "verify-full",
        "ca_file": secured.file("ca.crt"),
        **changes,
    }
    options = {name: str(value) for name, value in usual.items() if value is not None}
    if flat:
        return PublisherSettings.model_validate({f"postgres_{name}": value for name, value in options.items()})
    return PublisherSettings.model_validate({"sinks": {"postgres": options}})


@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("how", ["file", "setting", "dsn", "certificate", "verify-ca", "require"])
async def test_history_is_kept_in_a_secured_postgresql(secured: Secured, how: str, flat: bool) -> None:
    password = secured.secret("postgres-muster.password")
    changes: dict[str, Any] = {
        "file": {},
        "setting": {"password": password, "password_file": None},
        "dsn": {"dsn": f"postgresql://muster:{password}@{secured.postgres}/muster", "password_file": None},
        "certificate": {
            "dsn": f"postgresql://{CERTIFIED}@{secured.postgres}/muster",
            "password_file": None,
            "client_cert_file": secured.file("client.crt"),
            "client_key_file": secured.file("client.key"),
        },
        "verify-ca": {"sslmode": "verify-ca"},
        "require": {"sslmode": "require", "ca_file": None},
    }[how]
    settings = _publisher(secured, flat, **changes)
    topics = LogSettings().topics()
    [(sink, _)] = sinks_of(settings, topics, SystemClock())
    [reader] = readers_of(settings, topics, SystemClock())
    try:
        await sink.start()
        assert await sink.progress(0) is None
        assert await reader.read("rm", "instance", 0, 10) is None
    finally:
        await reader.close()
        await sink.close()


POSTGRES_REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"password_file": "wrong"}, "{0}dsn, {0}password: PostgreSQL refuses the user or its password"),
    ({"password": WRONG, "password_file": None}, "{0}dsn, {0}password: PostgreSQL refuses the user or its password"),
    ({"ca_file": "another-ca"}, "{0}ca_file: the certificate of PostgreSQL is not trusted"),
    ({"ca_file": None}, "{0}ca_file: the certificate of PostgreSQL is not trusted"),
    ({"sslmode": "disable", "ca_file": None}, "{0}sslmode: PostgreSQL refuses this user without TLS"),
    ({"dsn": CERTIFIED}, "{0}client_cert_file: PostgreSQL wants a client certificate"),
]


@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize(("changes", "told"), POSTGRES_REFUSALS, ids=[str(n) for n in range(len(POSTGRES_REFUSALS))])
async def test_postgresql_refuses(
    secured: Secured, files: dict[str, Path], changes: dict[str, Any], told: str, flat: bool
) -> None:
    named = {name: files.get(value, value) if isinstance(value, str) else value for name, value in changes.items()}
    if "dsn" in named:
        named["dsn"] = f"postgresql://{named['dsn']}@{secured.postgres}/muster"
    [(sink, _)] = sinks_of(_publisher(secured, flat, **named), LogSettings().topics(), SystemClock())
    with pytest.raises(SinkUnavailable) as refused:
        await sink.start()
    await sink.close()
    assert told.format("publisher.postgres_" if flat else "publisher.sinks.postgres.") in _said(secured, refused.value)


@pytest.mark.parametrize("option", ["password_file", "ca_file", "client_cert_file"])
def test_a_file_for_postgresql_is_not_there(secured: Secured, files: dict[str, Path], option: str) -> None:
    settings = _publisher(secured, True, **{option: files["absent"]})
    with pytest.raises(InvalidSinkSettings, match=f"^publisher.postgres_{option} /"):
        sinks_of(settings, LogSettings().topics(), SystemClock())


# ---- sources of informers ------------------------------------------------------------------------------------------


@asynccontextmanager
async def _source(module: Any, options: dict[str, Any]) -> AsyncIterator[ListWatch]:
    source: ListWatch = module.make_informer(
        {name: str(value) if isinstance(value, Path) else value for name, value in options.items()},
        InformerContext("hosts", SystemClock()),
    )
    try:
        yield source
    finally:
        await source.close()


@pytest.fixture
async def kafka_inventory(secured: Secured) -> dict[str, Any]:
    """Make a topic with one host; return the options to read it."""
    topic = f"t{uuid.uuid4().hex}"
    admin = AIOKafkaAdminClient(bootstrap_servers=secured.kafka_plain)
    await admin.start()
    await admin.create_topics([NewTopic(topic, 1, 1)])
    await admin.close()
    async with AIOKafkaProducer(bootstrap_servers=secured.kafka_plain) as producer:
        await producer.send_and_wait(topic, key=b"node/a", value=b'{"version": 1}')
    await secured_servers.allow(secured, topic)
    return {
        "bootstrap_servers": secured.kafka,
        "topic": topic,
        "give_back_topic": f"{topic}-back",
        "security_protocol": "SASL_SSL",
        "sasl_username": "muster",
        "sasl_password_file": secured.file("kafka-muster.password"),
        "ca_file": secured.file("ca.crt"),
    }


async def test_an_informer_reads_a_secured_kafka(secured: Secured, kafka_inventory: dict[str, Any]) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=secured.kafka_plain)
    await admin.start()
    await admin.create_topics([NewTopic(kafka_inventory["give_back_topic"], 1, 1)])
    await admin.close()
    async with _source(kafka_source, kafka_inventory) as source:
        listing = await source.list()
        assert [document["id"] for document in listing.documents] == ["a"]
        await source.give_back(["offer-1"])  # type: ignore[attr-defined]


async def test_an_informer_that_kafka_refuses_says_why(secured: Secured, kafka_inventory: dict[str, Any]) -> None:
    prefix = "scheduler.external.informers.hosts."
    changes = {**kafka_inventory, "sasl_password": WRONG, "sasl_password_file": ""}
    async with _source(kafka_source, changes) as source:
        with pytest.raises(SourceUnavailable) as refused:
            await source.list()
    assert f"{prefix}sasl_username, {prefix}sasl_password: the brokers refuse" in _said(secured, refused.value)
    with pytest.raises(InformerSettingsWrong, match=f"^{prefix}sasl_password_file /"):
        async with _source(kafka_source, {**kafka_inventory, "sasl_password_file": "/nowhere/password"}):
            pass


async def test_an_informer_reads_a_secured_redis(secured: Secured, files: dict[str, Path]) -> None:
    key, prefix = f"muster:t{uuid.uuid4().hex}", "scheduler.external.informers.hosts."
    password = secured.secret("redis-muster.password")
    client: Any = redis.asyncio.Redis.from_url(
        f"rediss://muster:{password}@{secured.redis}/0", ssl_ca_certs=str(secured.file("ca.crt"))
    )
    options: dict[str, Any] = {
        "url": f"rediss://{secured.redis}/0",
        "key": key,
        "stream": f"{key}:changes",
        "username": "muster",
        "password_file": secured.file("redis-muster.password"),
        "ca_file": secured.file("ca.crt"),
    }
    try:
        await client.hset(key, "node/a", json.dumps({"version": 1}))
        async with _source(redis_source, options) as source:
            listing = await source.list()
            assert [document["id"] for document in listing.documents] == ["a"]
            await client.xadd(f"{key}:changes", {"kind": "node", "id": "b", "document": '{"version": 1}'})
            assert await told(source, listing.cursor) == [(ChangeType.MODIFIED, "b")]
        for changes, said in (
            ({"password_file": files["wrong"]}, f"{prefix}username, {prefix}password: Redis refuses"),
            ({"ca_file": files["another-ca"]}, f"{prefix}ca_file: the certificate of Redis is not trusted"),
            ({"key": "others"}, f"{prefix}username, {prefix}password: Redis forbids it"),
        ):
            async with _source(redis_source, {**options, **changes}) as source:
                with pytest.raises(SourceUnavailable) as refused:
                    await source.list()
            assert said in _said(secured, refused.value)
    finally:
        await client.delete(key, f"{key}:changes")
        await client.aclose()
    with pytest.raises(InformerSettingsWrong, match=f"^{prefix}password_file /"):
        async with _source(redis_source, {**options, "password_file": "/nowhere/password"}):
            await asyncio.sleep(0)
