"""Kafka, Redis and PostgreSQL that enforce TLS and passwords, for tests.

Kafka is the session's own broker (servers.py): beside its plaintext listener it has one with SASL_SSL, if it was
started here. A broker of the environment, or in a container, has none; then one is started. Redis and PostgreSQL are
processes of their own: Redis listens with TLS only and knows no user but ``muster``; PostgreSQL takes ``hostssl`` only.

Certificates and passwords are those that ``scripts/store-secrets`` makes, so that script is tested as well.
"""

from __future__ import annotations

import fcntl
import json
import os
import pwd
import shutil
import subprocess
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import servers
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.protocol.admin import CreateAclsRequest
from muster_replay.local_process import free_ports
from servers import NoServer, Server

ROOT = Path(__file__).resolve().parents[1]

# PostgreSQL: who needs a client certificate.
CERTIFIED = "certified"


@dataclass(frozen=True, slots=True)
class Secured:
    """Three servers and the files for their clients.

    :param secrets: the folder that scripts/store-secrets filled.
    :param kafka: "127.0.0.1:port" of the SASL_SSL listener; SCRAM-SHA-256 and -512.
    :param kafka_plain: of the plaintext listener of the same broker; its users may do everything.
    :param redis: "127.0.0.1:port"; TLS, user muster.
    :param postgres: "127.0.0.1:port"; TLS, users muster (password) and certified (client certificate).
    """

    secrets: str
    kafka: str
    kafka_plain: str
    redis: str
    postgres: str

    def file(self, name: str) -> Path:
        return Path(self.secrets) / name

    def secret(self, name: str) -> str:
        return self.file(name).read_text().strip()


def find(directory: Path) -> Secured:
    """The session's secured servers, started at most once per directory. Raises NoServer."""
    directory.mkdir(parents=True, exist_ok=True)
    note = directory / "secured.json"
    with (directory / "secured.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not note.exists():
            found = _start(directory)
            note.write_text(json.dumps(asdict(found)))
        return Secured(**json.loads(note.read_text()))


def _start(directory: Path) -> Secured:
    broker = servers.find("kafka", directory)
    if not broker.secured_address:
        broker = _noted(directory, "secured-kafka", servers.own_local("kafka", directory / "secured-kafka"))
    secrets = Path(broker.secrets)
    redis = _noted(directory, "secured-redis", _redis(directory / "secured-redis", secrets))
    postgres = _noted(directory, "secured-postgres", _postgres(directory / "secured-postgres", secrets))
    return Secured(broker.secrets, broker.secured_address, broker.address, redis.address, postgres.address)


def _noted(directory: Path, name: str, server: Server) -> Server:
    """Writes a server down, so that the session's end ends it (servers.stop_all)."""
    (directory / f"{name}.json").write_text(json.dumps(asdict(server)))
    return server


def _redis(work: Path, secrets: Path) -> Server:
    if not shutil.which("redis-server"):
        raise NoServer("no redis-server (Debian: apt-get install redis-server)")
    work.mkdir(parents=True, exist_ok=True)
    (port,) = free_ports(1)
    command = [
        "redis-server", "--bind", "127.0.0.1", "--port", "0", "--tls-port", str(port), "--save", "", "--dir", str(work),
        "--tls-cert-file", str(secrets / "redis.crt"), "--tls-key-file", str(secrets / "redis.key"),
        "--tls-ca-cert-file", str(secrets / "ca.crt"), "--tls-auth-clients", "optional",
        "--aclfile", str(secrets / "redis.acl"),
    ]  # fmt: skip
    return servers.start_process("redis", command, f"127.0.0.1:{port}", work, listens=("127.0.0.1", port))


def _postgres(work: Path, secrets: Path) -> Server:
    binaries = servers.postgres_binaries()
    work.mkdir(parents=True, exist_ok=True)
    user: list[str] = []
    for name in ("ca.crt", "postgres.crt", "postgres.key"):
        shutil.copyfile(secrets / name, work / name)
    (work / "postgres.key").chmod(0o600)
    (work / "password").write_text((secrets / "postgres-admin.password").read_text())
    if os.geteuid() == 0:  # the server refuses to run as root
        try:
            account = pwd.getpwnam("postgres")
        except KeyError as error:
            raise NoServer("running as root, and no user postgres to run the server as") from error
        user = ["runuser", "-u", "postgres", "--"]
        for path in (work, work / "postgres.key", work / "password"):
            os.chown(path, account.pw_uid, account.pw_gid)
    data, hba, (port,) = work / "data", work / "pg_hba.conf", free_ports(1)
    hba.write_text(
        f"local all postgres trust\nhostssl all {CERTIFIED} all cert clientcert=verify-full map=certified\n"
        "hostssl all all all scram-sha-256\n"
    )
    (work / "pg_ident.conf").write_text(f"certified muster {CERTIFIED}\n")
    run = [*user, str(binaries / "initdb"), "-D", str(data), "-U", "postgres", "--no-sync", "-E", "UTF8"]
    _run([*run, "--auth=scram-sha-256", f"--pwfile={work / 'password'}"])
    sets = {
        "listen_addresses": "127.0.0.1", "port": str(port), "unix_socket_directories": str(work), "fsync": "off",
        "ssl": "on", "ssl_cert_file": str(work / "postgres.crt"), "ssl_key_file": str(work / "postgres.key"),
        "ssl_ca_file": str(work / "ca.crt"), "hba_file": str(hba), "ident_file": str(work / "pg_ident.conf"),
    }  # fmt: skip
    command = [*user, str(binaries / "postgres"), "-D", str(data)]
    for name, value in sets.items():
        command += ["-c", f"{name}={value}"]
    address = f"127.0.0.1:{port}"
    server = servers.start_process("postgres", command, address, work, listens=("127.0.0.1", port))
    server = replace(server, pid=int((data / "postmaster.pid").read_text().split()[0]))
    server = replace(server, started_ticks=servers.started_ticks(server.pid))
    password = (secrets / "postgres-muster.password").read_text().strip()
    statements = (
        f"create role muster login password '{password}'", f"create role {CERTIFIED} login",
        "create database muster owner muster", f"grant all on database muster to {CERTIFIED}",
    )  # fmt: skip
    psql = [*user, str(binaries / "psql"), "-qX", "-h", str(work), "-p", str(port), "-U", "postgres", "-d", "postgres"]
    try:
        _run([*psql, *(part for statement in statements for part in ("-c", statement))], tries=50)
    except NoServer:
        servers.stop(server)
        raise
    return server


def _run(command: list[str], tries: int = 1) -> None:
    for _ in range(tries):
        ended = subprocess.run(command, capture_output=True, text=True, cwd="/", timeout=servers.ANSWER_TIMEOUT_S)
        if ended.returncode == 0:
            return
    raise NoServer(f"{Path(command[-1] if len(command) < 4 else command[3]).name}: {ended.stderr[-300:]}")


async def allow(secured: Secured, prefix: str, user: str = "muster") -> None:
    """Gives a Kafka user the rights of docs/security-stores.md on the topics, groups and transactions of a prefix."""
    admin = AIOKafkaAdminClient(bootstrap_servers=secured.kafka_plain)
    await admin.start()
    try:
        for resource, operations in RIGHTS.items():
            for operation in operations:
                answer = await admin._send_request(
                    CreateAclsRequest(resource, prefix, _PREFIXED, f"User:{user}", "*", operation, _ALLOW)
                )
                assert [code for code, _ in answer.creation_responses] == [0], answer
    finally:
        await admin.close()


# Numbers of Kafka's protocol: resource types, pattern, permission, operations.
_TOPIC, _GROUP, _TRANSACTIONAL_ID = 2, 3, 5
_PREFIXED, _ALLOW = 4, 3
_READ, _WRITE, _CREATE, _DESCRIBE, _DESCRIBE_CONFIGS = 3, 4, 5, 8, 10
RIGHTS = {
    _TOPIC: (_CREATE, _DESCRIBE, _DESCRIBE_CONFIGS, _READ, _WRITE),
    _GROUP: (_READ,),
    _TRANSACTIONAL_ID: (_WRITE,),
}
