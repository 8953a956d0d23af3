"""Kafka, Redis and PostgreSQL for tests: found, or started.

Each is looked for in this order, and the first that answers is taken:

1. its address in the environment: MUSTER_TEST_KAFKA ("host:port"), MUSTER_TEST_REDIS ("redis://host:port/0"),
   MUSTER_TEST_POSTGRES ("postgresql://user@host:port/database"). An address that does not answer is an error;
2. a container (testcontainers), when a Docker daemon answers and has the image or can pull it in time;
3. a process on this machine: Kafka's jars fetched by Maven into the cache and run by Java, redis-server, PostgreSQL;
4. none: :class:`NoServer` says what was tried; wanting.py makes it a skip, or a failure if MUSTER_REQUIRE_SERVERS=1.

MUSTER_TEST_SERVERS=docker or =local leaves the other way out. What was started is written down in a directory, so that
all workers of one test session share it, and whoever owns the directory ends it: containers by id, processes by pid.

As a command, for servers that last::

    python tests/servers.py start --env-file servers.env     # prints and writes the three variables
    python tests/servers.py stop
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import pwd
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from muster_replay.local_process import free_ports

Kind = Literal["kafka", "redis", "postgres"]
Origin = Literal["environment", "docker", "local"]

KINDS: tuple[Kind, ...] = ("kafka", "redis", "postgres")
ENVIRONMENT: dict[Kind, str] = {
    "kafka": "MUSTER_TEST_KAFKA",
    "redis": "MUSTER_TEST_REDIS",
    "postgres": "MUSTER_TEST_POSTGRES",
}
KAFKA_VERSION = os.environ.get("MUSTER_TEST_KAFKA_VERSION", "3.9.1")
IMAGES: dict[Kind, str] = {
    "kafka": f"apache/kafka:{KAFKA_VERSION}",
    "redis": "redis:7.4-alpine",
    "postgres": "postgres:15-alpine",
}

GIVEN_TIMEOUT_S = 60.0  # a server of the environment is up already
ANSWER_TIMEOUT_S = 120.0  # a JVM on a busy two-core machine needs up to 60 s
PULL_TIMEOUT_S = 120.0  # an image that is not here after two minutes is not worth a test session
FETCH_TIMEOUT_S = 600.0  # Kafka's jars, about 110 MB, once per machine
STOP_TIMEOUT_S = 15.0  # then SIGKILL: nothing here is worth keeping

# A user of Kafka's secured listener without any right.
STRANGER, STRANGER_PASSWORD = "stranger", "a-stranger-has-one-too"

# One broker, small: a test's first transaction should not wait for fifty internal partitions.
_KAFKA_SETTINGS = {
    "node.id": "1",
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,BROKER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "inter.broker.listener.name": "BROKER",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",  # the scheduler's default is under the broker's
    "num.partitions": "1",
    "auto.create.topics.enable": "false",
    "log.retention.check.interval.ms": "60000",
}


# A broker that lives for minutes never earns back what the second compiler and the parallel collector cost.
_BRIEF_JVM = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData")


class NoServer(Exception):
    """No way to a server of this kind. The message holds one line for each way tried."""


class _Unusable(Exception):
    """One way did not work; the next one is tried."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server that answers.

    :param address: as the environment variable of its kind takes it.
    :param pid: of a local process; 0 otherwise.
    :param started_ticks: the process's start time, so that a re-used pid is never ended by mistake.
    :param container: id of a container; "" otherwise.
    :param command: of a local process, for it to be started again.
    :param secured_address: of Kafka's listener with SASL_SSL; "" if it has none (secured_servers.py).
    :param secrets: the folder with its certificates and passwords.
    """

    kind: Kind
    address: str
    origin: Origin
    pid: int = 0
    started_ticks: int = 0
    container: str = ""
    command: tuple[str, ...] = ()
    secured_address: str = ""
    secrets: str = ""


def find(kind: Kind, directory: Path) -> Server:
    """The session's server of this kind: started at most once per directory, whoever of its processes asks first.

    :param directory: where the session writes down what it started; exists.
    :raises NoServer: with every way tried, and why it failed.
    """
    directory.mkdir(parents=True, exist_ok=True)
    note = directory / f"{kind}.json"
    with (directory / f"{kind}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if note.exists():
            content = json.loads(note.read_text())
            if "tried" in content:
                raise NoServer(content["tried"])
            return Server(**content)
        try:
            server = _find(kind, directory)
        except NoServer as error:
            note.write_text(json.dumps({"tried": str(error)}))
            raise
        note.write_text(json.dumps(asdict(server)))
        return server


def stop_all(directory: Path) -> None:
    """Ends everything that was started under a directory, and removes the directory."""
    for note in directory.glob("*.json"):
        content = json.loads(note.read_text())
        if "pid" in content:
            stop(Server(**content))
    shutil.rmtree(directory, ignore_errors=True)


def own(kind: Kind, directory: Path) -> Server:
    """A server for one test alone, at an address that survives :func:`kill` and :func:`start_again`.

    One of the environment is never taken: it is not ours to break. Whoever asks ends it with :func:`stop`.

    :param directory: where a local one works; it is made, and must not be shared.
    :raises NoServer: as :func:`find` does.
    """
    directory.mkdir(parents=True, exist_ok=True)
    return _one_of_ours(kind, directory, [])


def own_local(kind: Kind, directory: Path) -> Server:
    """The same, always a process. Raises NoServer."""
    directory.mkdir(parents=True, exist_ok=True)
    try:
        return _LOCAL[kind](kind, directory)
    except _Unusable as error:
        raise NoServer(f"no {kind}: local: {error}") from error


def start_process(kind: Kind, command: Sequence[str], address: str, work: Path, *, listens: tuple[str, int]) -> Server:
    """Starts a process, and waits until it listens. Raises NoServer."""
    try:
        return _process(kind, command, address, work, listens=listens)
    except _Unusable as error:
        raise NoServer(f"no {kind}: {error}") from error


def postgres_binaries() -> Path:
    """The directory of PostgreSQL's programs. Raises NoServer."""
    try:
        return _postgres_binaries()
    except _Unusable as error:
        raise NoServer(str(error)) from error


def kill(server: Server) -> None:
    """kill -9. Its data stays, for :func:`start_again`."""
    if server.container:
        subprocess.run(["docker", "kill", server.container], check=True, capture_output=True, timeout=60)
        return
    os.kill(server.pid, signal.SIGKILL)
    _await_end(server)


def start_again(server: Server, directory: Path) -> Server:
    """Starts what :func:`kill` ended, with the data that it left, and waits until it answers."""
    if server.container:
        subprocess.run(["docker", "start", server.container], check=True, capture_output=True, timeout=60)
        _await_answer(server.kind, server.address, lambda: _container_runs(server.container), ANSWER_TIMEOUT_S)
        return server
    work = directory / server.kind
    pid_file = work / "data" / "postmaster.pid" if server.kind == "postgres" else None
    return _process(server.kind, server.command, server.address, work, pid_file=pid_file)


def await_kafka(server: Server) -> None:
    """Returns when a local broker answers. Raises NoServer."""
    try:
        _await_answer("kafka", server.address, lambda: started_ticks(server.pid) > 0, ANSWER_TIMEOUT_S)
    except _Unusable as error:
        raise NoServer(f"kafka at {server.address}: {error}") from error


def stop(server: Server) -> None:
    """Ends a server that was started here; does nothing to one from the environment."""
    if server.container:
        subprocess.run(["docker", "rm", "--force", "--volumes", server.container], capture_output=True, timeout=60)
    if server.pid and started_ticks(server.pid) == server.started_ticks:
        # PostgreSQL: SIGINT is its fast shutdown. The others take SIGTERM.
        os.kill(server.pid, signal.SIGINT if server.kind == "postgres" else signal.SIGTERM)
        _await_end(server)
        if started_ticks(server.pid) == server.started_ticks:
            os.kill(server.pid, signal.SIGKILL)


# --- the ways -------------------------------------------------------------------------------------------------------


def _await_end(server: Server) -> None:
    """Returns when the process has ended, or the time for that is over."""
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while started_ticks(server.pid) == server.started_ticks and time.monotonic() < deadline:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(server.pid, os.WNOHANG)
        time.sleep(0.05)


def _find(kind: Kind, directory: Path) -> Server:
    given = os.environ.get(ENVIRONMENT[kind])
    if given:
        try:
            _await_answer(kind, given, alive=lambda: True, timeout_s=GIVEN_TIMEOUT_S)
        except _Unusable as error:
            raise NoServer(f"{ENVIRONMENT[kind]}={_without_password(given)}: {error}") from error
        return Server(kind, given, "environment")
    return _one_of_ours(kind, directory, [f"{ENVIRONMENT[kind]} is not set"])


def _one_of_ours(kind: Kind, directory: Path, tried: list[str]) -> Server:
    only = os.environ.get("MUSTER_TEST_SERVERS", "auto")
    if only not in ("auto", "docker", "local"):
        raise NoServer(f"MUSTER_TEST_SERVERS={only}: expected auto, docker or local")
    ways: list[tuple[str, Callable[[Kind, Path], Server]]] = [("docker", _container), ("local", _LOCAL[kind])]
    for name, way in ways:
        if only not in ("auto", name):
            tried.append(f"{name}: left out by MUSTER_TEST_SERVERS={only}")
            continue
        try:
            return way(kind, directory)
        except _Unusable as error:
            tried.append(f"{name}: {error}")
    raise NoServer(f"no {kind}: " + "; ".join(tried))


def _container(kind: Kind, directory: Path) -> Server:
    image = IMAGES[kind]
    _ensure_image(image)
    # Read by testcontainers when it is imported. Its reaper is one more image to pull; we end containers by id.
    os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")
    if os.environ.get("DOCKER_HOST", "unix://").startswith("unix://"):
        os.environ.setdefault("TESTCONTAINERS_HOST_OVERRIDE", "127.0.0.1")
    try:
        from testcontainers.core.container import DockerContainer
    except ImportError as error:
        raise _Unusable(f"testcontainers is not installed ({error})") from error
    container = DockerContainer(image)
    host = container.get_docker_client().host()
    if kind == "kafka":
        # The broker tells its clients where it is, so the port must be known before it starts.
        (port,) = free_ports(1)
        settings = _kafka_settings("0.0.0.0", 9092, (9093, 9094), f"{host}:{port}", "/tmp/kafka-data")
        container.with_bind_ports(9092, port).with_env("KAFKA_HEAP_OPTS", "-Xms256m -Xmx768m")
        for name, value in settings.items():
            container.with_env("KAFKA_" + name.upper().replace(".", "_"), value)
    elif kind == "redis":
        (port,) = free_ports(1)  # one that a restart keeps
        container.with_bind_ports(6379, port)
    else:
        (port,) = free_ports(1)
        container.with_bind_ports(5432, port).with_env("POSTGRES_USER", "muster").with_env("POSTGRES_DB", "muster")
        container.with_env("POSTGRES_PASSWORD", "muster-test")  # for a throw-away container on the loopback
    try:
        container.start()
        identity = container.get_container_id()
    except Exception as error:
        raise _Unusable(f"container of {image} did not start: {error}") from error
    server = Server(kind, "", "docker", container=identity)
    try:
        if kind == "kafka":
            address = f"{host}:{port}"
        elif kind == "redis":
            address = f"redis://{host}:{port}/0"
        else:
            address = f"postgresql://muster:muster-test@{host}:{port}/muster"
        _await_answer(kind, address, alive=lambda: _container_runs(identity), timeout_s=ANSWER_TIMEOUT_S)
    except Exception as error:
        stop(server)
        raise _Unusable(f"container of {image} did not answer: {error}") from error
    return Server(kind, address, "docker", container=identity)


def broker_program(
    work: Path, settings: Mapping[str, str], cluster: str, heap: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Prepares a broker in a directory that exists. Returns the command of Kafka's Java tools, and that of the broker.

    Raises NoServer.
    """
    try:
        return _kafka_program(work, settings, (), cluster, heap)
    except _Unusable as error:
        raise NoServer(f"no kafka: local: {error}") from error


def _kafka_program(
    work: Path,
    settings: Mapping[str, str],
    users: Sequence[str],
    cluster: str = "TXVzdGVyVGVzdENsdXN0ZQ",
    heap: Sequence[str] = ("-Xms256m", "-Xmx768m"),
) -> tuple[list[str], list[str]]:
    if not shutil.which("java"):
        raise _Unusable("no java (Debian: apt-get install default-jre-headless)")
    jars = kafka_jars()
    (work / "server.properties").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    (work / "log4j.properties").write_text(
        "log4j.rootLogger=WARN, out\nlog4j.appender.out=org.apache.log4j.ConsoleAppender\n"
        "log4j.appender.out.layout=org.apache.log4j.PatternLayout\n"
        "log4j.appender.out.layout.ConversionPattern=[%d] %p %m (%c)%n\n"
    )
    (work / "log4j2.properties").write_text(
        "rootLogger.level=warn\nrootLogger.appenderRef.out.ref=out\nappender.out.type=Console\nappender.out.name=out\n"
        "appender.out.layout.type=PatternLayout\nappender.out.layout.pattern=[%d] %p %m (%c)%n\n"
    )
    java = [
        "java",
        *_BRIEF_JVM,
        f"-Dlog4j.configuration=file:{work}/log4j.properties",
        f"-Dlog4j2.configurationFile={work}/log4j2.properties",
        "-cp",
        f"{jars}/*",
    ]
    formatted = subprocess.run(
        [
            *java,
            "kafka.tools.StorageTool",
            "format",
            "-t",
            cluster,
            "-c",
            f"{work}/server.properties",
            *users,
        ],
        capture_output=True,
        text=True,
        timeout=ANSWER_TIMEOUT_S,
    )
    if formatted.returncode != 0:
        raise _Unusable(f"kafka's storage could not be formatted: {_tail(formatted.stderr)}")
    return java, [java[0], *heap, *java[1:], "kafka.Kafka", str(work / "server.properties")]


def _local_kafka(kind: Kind, directory: Path) -> Server:
    work = directory / "kafka"
    port, controller_port, broker_port = free_ports(3)
    own_ports = (controller_port, broker_port)
    settings = _kafka_settings("127.0.0.1", port, own_ports, f"127.0.0.1:{port}", str(work / "data"))
    work.mkdir(parents=True, exist_ok=True)
    secured, users = _secure(settings, work)
    command = _kafka_program(work, settings, users)[1]
    server = _process(kind, command, f"127.0.0.1:{port}", work)
    return replace(server, secured_address=secured, secrets=str(work / "secrets") if secured else "")


def _secure(settings: dict[str, str], work: Path) -> tuple[str, list[str]]:
    """Gives a broker a listener with SASL_SSL beside its others, and access lists.

    Users of the plaintext listeners may do everything; those of the secured one only what an access list allows.

    :return: the listener's address, and StorageTool's arguments for its users; nothing where openssl is missing.
    """
    if not shutil.which("openssl"):
        return "", []
    secrets, (port,) = work / "secrets", free_ports(1)
    script = Path(__file__).resolve().parents[1] / "scripts" / "store-secrets"
    made = subprocess.run([str(script), str(secrets)], capture_output=True, text=True, timeout=ANSWER_TIMEOUT_S)
    if made.returncode != 0:
        raise _Unusable(f"{script.name}: {_tail(made.stderr)}")
    address = f"127.0.0.1:{port}"
    for name in ("listeners", "advertised.listeners"):
        settings[name] += f",SECURED://{address}"
    settings["listener.security.protocol.map"] += ",SECURED:SASL_SSL"
    jaas = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    settings |= {
        "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
        "listener.name.secured.scram-sha-256.sasl.jaas.config": jaas,
        "listener.name.secured.scram-sha-512.sasl.jaas.config": jaas,
        "ssl.keystore.type": "PEM", "ssl.keystore.location": str(secrets / "kafka.pem"),
        "ssl.truststore.type": "PEM", "ssl.truststore.location": str(secrets / "ca.crt"),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }  # fmt: skip
    users = []
    passwords = {"muster": (secrets / "kafka-muster.password").read_text().strip(), STRANGER: STRANGER_PASSWORD}
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        for name, password in passwords.items():
            users += ["--add-scram", f'{mechanism}=[name={name},password="{password}"]']
    return address, users


def _local_redis(kind: Kind, directory: Path) -> Server:
    if not shutil.which("redis-server"):
        raise _Unusable("no redis-server (Debian: apt-get install redis-server)")
    work = directory / "redis"
    work.mkdir(parents=True, exist_ok=True)
    (port,) = free_ports(1)
    command = ["redis-server", "--bind", "127.0.0.1", "--port", str(port), "--save", "", "--dir", str(work)]
    return _process(kind, command, f"redis://127.0.0.1:{port}/0", work)


def _local_postgres(kind: Kind, directory: Path) -> Server:
    binaries = _postgres_binaries()
    work = directory / "postgres"
    work.mkdir(parents=True, exist_ok=True)
    user: list[str] = []
    if os.geteuid() == 0:  # the server refuses to run as root
        try:
            account = pwd.getpwnam("postgres")
        except KeyError as error:
            raise _Unusable("running as root, and no user postgres to run the server as") from error
        if not shutil.which("runuser"):
            raise _Unusable("running as root, and no runuser to become postgres with")
        user = ["runuser", "-u", "postgres", "--"]
        os.chown(work, account.pw_uid, account.pw_gid)
    data = work / "data"
    initialised = subprocess.run(
        [*user, str(binaries / "initdb"), "-D", str(data), "-U", "muster", "--auth=trust", "-E", "UTF8", "--no-sync"],
        capture_output=True,
        text=True,
        cwd="/",
        timeout=ANSWER_TIMEOUT_S,
    )
    if initialised.returncode != 0:
        raise _Unusable(f"initdb: {_tail(initialised.stderr)}")
    (port,) = free_ports(1)
    options = ["-h", "127.0.0.1", "-p", str(port), "-k", "", "-c", "fsync=off", "-c", "max_connections=200"]
    command = [*user, str(binaries / "postgres"), "-D", str(data), *options]
    dsn = f"postgresql://muster@127.0.0.1:{port}"
    server = _process(kind, command, f"{dsn}/muster", work, pid_file=data / "postmaster.pid", ready=f"{dsn}/postgres")
    created = subprocess.run(
        [str(binaries / "createdb"), "-h", "127.0.0.1", "-p", str(port), "-U", "muster", "muster"],
        capture_output=True,
        text=True,
        timeout=ANSWER_TIMEOUT_S,
    )
    if created.returncode != 0:
        stop(server)
        raise _Unusable(f"createdb: {_tail(created.stderr)}")
    return server


_LOCAL: dict[Kind, Callable[[Kind, Path], Server]] = {
    "kafka": _local_kafka,
    "redis": _local_redis,
    "postgres": _local_postgres,
}


# --- their parts ----------------------------------------------------------------------------------------------------


def kafka_jars(version: str = KAFKA_VERSION) -> Path:
    """Kafka's server jars, fetched by Maven into the cache when they are not there."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "muster"
    target = cache / f"kafka-{version}"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "kafka.lock").open("w") as lock:  # two sessions fetch once
        fcntl.flock(lock, fcntl.LOCK_EX)
        if target.exists():
            return target
        if not shutil.which("mvn"):
            raise _Unusable("no Kafka jars in the cache and no mvn to fetch them (Debian: apt-get install maven)")
        print(f"fetching Kafka {version} into {target}", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(dir=cache) as work:
            artifacts = "".join(
                f"<dependency><groupId>org.apache.kafka</groupId><artifactId>{name}</artifactId>"
                f"<version>{version}</version></dependency>"
                for name in ("kafka_2.13", "kafka-tools")
            )
            Path(work, "pom.xml").write_text(
                '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
                "<groupId>muster</groupId><artifactId>kafka-jars</artifactId><version>1</version>"
                f"<packaging>pom</packaging><dependencies>{artifacts}</dependencies></project>"
            )
            try:
                fetched = subprocess.run(
                    ["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={work}/jars"],
                    cwd=work,
                    capture_output=True,
                    text=True,
                    timeout=FETCH_TIMEOUT_S,
                )
            except subprocess.TimeoutExpired as error:
                raise _Unusable(f"Kafka's jars did not arrive in {FETCH_TIMEOUT_S:.0f} s") from error
            if fetched.returncode != 0:
                raise _Unusable(f"mvn could not fetch Kafka's jars: {_tail(fetched.stdout + fetched.stderr)}")
            Path(work, "jars").rename(target)  # whole or not at all
    return target


def _kafka_settings(host: str, port: int, own_ports: tuple[int, int], advertised: str, log_dirs: str) -> dict[str, str]:
    """A broker's properties.

    :param own_ports: of the controller, and of the broker's connections to itself: it ends transactions through them,
        and where a container is reached from outside is no address inside.
    """
    controller_port, broker_port = own_ports
    return _KAFKA_SETTINGS | {
        "listeners": f"PLAINTEXT://{host}:{port},BROKER://127.0.0.1:{broker_port},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://{advertised},BROKER://127.0.0.1:{broker_port}",
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "log.dirs": log_dirs,
    }


def _postgres_binaries() -> Path:
    """Directory of the newest PostgreSQL >= 15: Debian keeps the server's programs off the PATH."""
    homes = [path for path in Path("/usr/lib/postgresql").glob("*/bin") if path.parent.name.isdigit()]
    for home in sorted(homes, key=lambda path: -int(path.parent.name)):
        if int(home.parent.name) >= 15 and (home / "initdb").exists():
            return home
    found = shutil.which("initdb")
    if found:
        return Path(found).resolve().parent
    raise _Unusable("no PostgreSQL >= 15 (Debian: apt-get install postgresql)")


def _process(
    kind: Kind,
    command: Sequence[str],
    address: str,
    work: Path,
    *,
    pid_file: Path | None = None,
    ready: str = "",
    listens: tuple[str, int] | None = None,
) -> Server:
    """Starts a process of its own session, its output in a file, and waits until it answers.

    :param listens: wait until this port is open instead: the server answers nobody without TLS.
    """
    with (work / "output.log").open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd="/", start_new_session=True
        )
    server = Server(kind, address, "local", process.pid, started_ticks(process.pid), command=tuple(command))
    try:
        _await_answer(
            kind, ready or address, alive=lambda: process.poll() is None, timeout_s=ANSWER_TIMEOUT_S, listens=listens
        )
    except _Unusable as error:
        stop(server)
        log = (work / "output.log").read_text(errors="replace")
        raise _Unusable(f"{command[0]}: {error}: {_tail(log)}") from error
    if pid_file is not None:  # runuser stays in front of the server and does not pass signals on
        pid = int(pid_file.read_text().split()[0])
        return replace(server, pid=pid, started_ticks=started_ticks(pid))
    return server


def _ensure_image(image: str) -> None:
    if not shutil.which("docker"):
        raise _Unusable("no docker")
    try:
        if subprocess.run(["docker", "info"], capture_output=True, timeout=10).returncode != 0:
            raise _Unusable("no daemon answers")
        if subprocess.run(["docker", "image", "inspect", image], capture_output=True, timeout=10).returncode == 0:
            return
        pulled = subprocess.run(["docker", "pull", "-q", image], capture_output=True, text=True, timeout=PULL_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise _Unusable(f"{' '.join(error.cmd)}: no answer in {error.timeout:.0f} s") from error
    if pulled.returncode != 0:
        raise _Unusable(f"{image} is not here and cannot be pulled: {_tail(pulled.stderr)}")


def _container_runs(identity: str) -> bool:
    state = subprocess.run(
        ["docker", "inspect", "-f", "{{.State.Running}}", identity], capture_output=True, text=True, timeout=10
    )
    return state.stdout.strip() == "true"


def _await_answer(
    kind: Kind,
    address: str,
    alive: Callable[[], bool],
    timeout_s: float,
    listens: tuple[str, int] | None = None,
) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            if listens is None:
                _ASK[kind](address)
            else:
                socket.create_connection(listens, timeout=2.0).close()
            return
        except (OSError, struct.error, _Unusable) as error:
            if not alive():
                raise _Unusable("it ended before it answered") from error
            if time.monotonic() > deadline:
                raise _Unusable(f"no answer in {timeout_s:.0f} s ({error})") from error
        time.sleep(0.1)


def _ask_kafka(address: str) -> None:
    """ApiVersions, version 0: a broker answers it when it serves requests, not when it merely listens."""
    host, _, port = address.partition(",")[0].rpartition(":")
    with _connection(host, int(port)) as peer:
        request = struct.pack(">hhih", 18, 0, 1, 6) + b"muster"
        peer.sendall(struct.pack(">i", len(request)) + request)
        answer = _receive(peer, 10)
    if struct.unpack(">iih", answer)[1:] != (1, 0):
        raise _Unusable("what listens there is no Kafka broker")


def _ask_redis(address: str) -> None:
    parts = urllib.parse.urlsplit(address)
    with _connection(parts.hostname or "127.0.0.1", parts.port or 6379) as peer:
        peer.sendall(b"PING\r\n")
        if not _receive(peer, 5).startswith((b"+PONG", b"-NOAU")):  # a password is the tests' affair
            raise _Unusable("what listens there is no Redis, or it is still loading")


def _ask_postgres(address: str) -> None:
    """A startup message: an authentication request ("R") comes back once connections are taken, an error before."""
    parts = urllib.parse.urlsplit(address)
    with _connection(parts.hostname or "127.0.0.1", parts.port or 5432) as peer:
        fields = {"user": parts.username or "postgres", "database": parts.path.lstrip("/") or "postgres"}
        body = struct.pack(">i", 196608) + b"".join(f"{k}\0{v}\0".encode() for k, v in fields.items()) + b"\0"
        peer.sendall(struct.pack(">i", len(body) + 4) + body)
        if _receive(peer, 1) != b"R":
            raise _Unusable("PostgreSQL takes no connections for this user and database yet")


_ASK: dict[Kind, Callable[[str], None]] = {"kafka": _ask_kafka, "redis": _ask_redis, "postgres": _ask_postgres}


@contextlib.contextmanager
def _connection(host: str, port: int) -> Iterator[socket.socket]:
    with socket.create_connection((host, port), timeout=2.0) as peer:
        peer.settimeout(2.0)
        yield peer


def _receive(peer: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = peer.recv(count - len(data))
        if not piece:
            raise _Unusable("the connection was closed without an answer")
        data += piece
    return data


def started_ticks(pid: int) -> int:
    """Start time of a process in clock ticks since boot; 0 when it is gone (a zombie is gone)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] == "Z" else int(fields[19])


def _without_password(address: str) -> str:
    parts = urllib.parse.urlsplit(address)
    return address.replace(f":{parts.password}@", ":***@") if parts.password else address


def _tail(text: str, lines: int = 3) -> str:
    return " | ".join(text.strip().splitlines()[-lines:])[-600:]


# --- sessions and the command ---------------------------------------------------------------------------------------


def session_directory(owner: int | None = None) -> Path:
    """Makes the directory of one test session, and ends what killed sessions left behind.

    :param owner: pid of the process that the session ends with; in the directory's name. None: this one.
    """
    for left in Path(tempfile.gettempdir()).glob("muster-servers-*-*"):
        pid, ticks = left.name.split("-")[2:4]
        if pid.isdigit() and ticks.isdigit() and started_ticks(int(pid)) != int(ticks) and os.access(left, os.W_OK):
            stop_all(left)
    owner = owner or os.getpid()
    directory = Path(tempfile.gettempdir()) / f"muster-servers-{owner}-{started_ticks(owner)}"
    directory.mkdir(mode=0o711, exist_ok=True)  # PostgreSQL's user must get through
    return directory


def _is_stale(note: dict[str, Any]) -> bool:
    """Whether a new try may find another answer: something may have been installed, or the server has ended."""
    if "tried" in note:
        return True
    return bool(note["pid"]) and started_ticks(note["pid"]) != note["started_ticks"]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Servers for development and tests, that last until stopped.")
    parser.add_argument("action", choices=["start", "stop", "show", "session"])
    parser.add_argument("--env-file", type=Path, help="also write the variables there, as export lines")
    parser.add_argument("--only", choices=KINDS, action="append", help="this kind only; may be repeated")
    default = Path(tempfile.gettempdir()) / f"muster-dev-servers-{os.getuid()}"
    parser.add_argument("--directory", type=Path, default=default, help="where they live (default: %(default)s)")
    parser.add_argument("--owner", type=int, help="pid of the process that a session ends with")
    options = parser.parse_args(arguments)
    if options.action == "session":  # for several runs of pytest that share servers
        print(session_directory(options.owner))
        return 0
    if options.action == "stop":
        stop_all(options.directory)
        if options.env_file:
            options.env_file.unlink(missing_ok=True)
        return 0
    lines = []
    options.directory.mkdir(mode=0o711, parents=True, exist_ok=True)
    for kind in options.only or KINDS:
        note = options.directory / f"{kind}.json"
        if options.action == "show" and not note.exists():
            continue
        if note.exists() and _is_stale(json.loads(note.read_text())):
            note.unlink()
        try:
            server = find(kind, options.directory)
        except NoServer as error:
            print(error, file=sys.stderr)
            return 1
        lines.append(f"export {ENVIRONMENT[kind]}={server.address}\n")
    print("".join(lines), end="")
    if options.env_file:
        options.env_file.write_text("".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
