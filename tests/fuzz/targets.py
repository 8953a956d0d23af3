"""The targets of fuzzing: every decoder of bytes or text from outside of the process.

A target takes bytes. It returns, or raises an error that its callers expect. Any other error is a finding, and so is
a failed assertion of the target.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any

from admitting import admit, admit_callbacks, admit_configuration, admit_registration, hello_of, rm_id_of
from muster_bus.backends import blocks
from muster_bus.errors import CodecError, LogDamaged
from muster_bus.log import Record
from muster_bus.topics import parse_state_key
from muster_cli.settings import load
from muster_cli.settings_loader import SettingsError
from muster_core.external.errors import BadDocument
from muster_event_publisher import event_decoding as event_codec
from muster_event_publisher import grpc_codec, ring_blocks
from muster_event_publisher.errors import BadRequest
from muster_event_publisher.history.file_stores import LocalFileStore
from muster_event_publisher.history.files import UnreadableFile
from muster_event_publisher.history.jsonl import JsonlFormat
from muster_event_publisher.history.parquet import read_footer
from muster_gateway import admin_codec, metrics_codec
from muster_gateway import codec as gateway_codec
from muster_gateway.access.policy import Policy, read_policy
from muster_gateway.admission import KINDS
from muster_gateway.audit_codec import decode_read
from muster_gateway.audit_pages import read_query
from muster_gateway.authentication import Authenticator
from muster_gateway.callback_codec import connected_note
from muster_gateway.errors import GatewayError, InvalidPolicy, PermissionDenied, Unauthenticated
from muster_gateway.http_front import HttpFront, respond
from muster_gateway.quota_settings import QuotaSettings
from muster_gateway.quotas import QuotaBook
from muster_gateway.rm_lifecycle import RmLifecycleState
from muster_gateway.sessions.codec import from_json, to_json
from muster_gateway.sessions.contract import Cursor, Seat, Session
from muster_gateway.settings import AdmissionLimits, GatewaySettings
from muster_gateway.stream_kind import SI_KINDS, StreamKind
from muster_informers.documents import read_document, read_identity
from muster_proto.muster.bus.v1 import envelope_pb2 as pb
from muster_proto.muster.v1 import admin_pb2, callbacks_pb2, events_pb2, metrics_pb2
from muster_proto.si.v1 import si_pb2 as si
from muster_queue_config.queue_yaml import checksum, load_queue_config
from muster_rest.shapes.health import SystemHealthDao
from muster_rest.system_health import unreachable
from muster_runtime.identity import Identity, Proof, Right, Rights, Role
from muster_runtime.invisible import first_invisible, visible, visible_json
from muster_runtime.secrets import masked_json, masked_text, masked_yaml
from muster_scheduler import ingest
from muster_scheduler.dead_letters import without_secrets
from muster_state.state_folder import StateFolder
from muster_whatif.errors import InvalidWorkload
from muster_whatif.scenario import Scenario
from muster_whatif.simulation import play
from muster_whatif.stats import figures
from muster_whatif.workload_source import WorkloadSource
from unit.scheduler_service.rig import CONFIG, Rig, envelope, registration

from fuzz import wire_messages
from fuzz.admission_oracle import TINY, compare

LIMITS = AdmissionLimits()


@dataclass(frozen=True)
class Target:
    """:ivar call: takes the bytes.
    :ivar seeds: valid inputs, which mutation changes.
    :ivar expected: the errors that its callers handle.
    """

    name: str
    call: Callable[[bytes], object]
    seeds: Callable[[], Sequence[bytes]]
    expected: tuple[type[Exception], ...] = ()


# ---- valid inputs ----------------------------------------------------------------------------------------------------


def _resource(**quantities: int) -> si.Resource:
    return si.Resource(resources={name: si.Quantity(value=value) for name, value in quantities.items()})


def _requests() -> list[Any]:
    tags = {"note": "x", "foreign": "static"}
    ask = si.Allocation(
        allocationKey="k", applicationID="app", resourcePerAlloc=_resource(vcore=1), allocationTags=tags
    )
    old = si.AllocationAsk(allocationKey="o", applicationID="app", resourceAsk=_resource(vcore=2), maxAllocations=3)
    releases = si.AllocationReleasesRequest(
        allocationsToRelease=[si.AllocationRelease(applicationID="app", allocationKey="k", message="m")],
        allocationAsksToRelease=[si.AllocationAskRelease(applicationID="app", allocationKey="o")],
    )
    app = si.AddApplicationRequest(
        applicationID="app", queueName="root.a", ugi=si.UserGroupInformation(user="u", groups=["g"])
    )
    node = si.NodeInfo(nodeID="n1", action=1, schedulableResource=_resource(vcore=9), attributes=tags)
    return [
        si.AllocationRequest(rmID="rm-1", allocations=[ask], asks=[old], releases=releases),
        si.ApplicationRequest(rmID="rm-1", new=[app], remove=[si.RemoveApplicationRequest(applicationID="gone")]),
        si.NodeRequest(rmID="rm-1", nodes=[node]),
    ]


@lru_cache(maxsize=1)
def _lived() -> Rig:
    rig = Rig()
    rig.register()
    for request in reversed(_requests()):
        rig.send(request)
    rig.settle()
    return rig


def _serialised(messages: Sequence[Any]) -> list[bytes]:
    return [each.SerializeToString() for each in messages]


def _envelopes() -> list[bytes]:
    found = [envelope(each, "rm-1") for each in (*_requests(), registration(CONFIG, "rm-1"))]
    admin = pb.AdminCommand(pause="why")
    note = pb.ExternalSourceNote(state="LIVE")
    external = pb.ExternalChanges(partition="default", source="s", life="l", note=note)
    external.changes.add(kind="node", id="h1").node.capacity["vcore"] = 1
    found += [pb.RequestEnvelope(rm_id="rm-1", admin=admin), pb.RequestEnvelope(rm_id="rm-1", external=external)]
    return _serialised(found)


def _states() -> list[bytes]:
    return [key + b"\n" + value for key, value in _lived().state.items()]


def _events() -> list[bytes]:
    return _serialised([event for _, event in _lived().events])


# ---- the log ---------------------------------------------------------------------------------------------------------


class _Machine:
    """One machine takes many inputs. A new one starts now and then, so that the last few inputs explain a finding."""

    def __init__(self) -> None:
        self.rig, self.taken = Rig(), 500

    def take(self, data: bytes) -> None:
        self.taken += 1
        if self.taken > 100:
            self.rig, self.taken = Rig(), 0
            self.rig.register()
        try:
            self.rig.send(data)
        except BaseException:
            self.taken = 500
            raise


def _state(data: bytes) -> None:
    key, _, value = data.partition(b"\n")
    record = Record("si.state.v1", 0, 0, 0, key, value)
    for read in (gateway_codec.read_rm_state, gateway_codec.read_forgotten, gateway_codec.read_registration):
        with suppress(CodecError):
            read(record)
    event_codec.registered_extra_config(value)
    event_codec.recorded_rm(value)
    event_codec.forgotten_stamp(value)
    event_codec.queue_of_application(value)
    folder = StateFolder()
    for name, content in _lived().state.items():
        folder.fold(record._replace(key=name, value=content))
    folder.build()
    folder.fold(record)


def _response(data: bytes) -> None:
    gateway_codec.read_response(Record("r", 0, 0, 0, b"", data))


def _letter(data: bytes) -> None:
    value, left_out = without_secrets(data)
    assert isinstance(value, bytes)
    assert left_out or len(value) or not data


# ---- RMs, operators --------------------------------------------------------------------------------------------------


def _admission(data: bytes) -> None:
    for kind in SI_KINDS:
        with suppress(GatewayError):
            rm_id_of(kind, data, LIMITS)
        with suppress(GatewayError):
            admitted = admit(kind, data, "rm-1", LIMITS)
            for payload in admitted.payloads:  # an accepted input can be decoded
                {"ALLOCATION": ingest.allocations, "APPLICATION": ingest.applications, "NODE": ingest.nodes}[kind.name](
                    payload
                )
    for judge in (admit_registration, admit_configuration):
        with suppress(GatewayError):
            judge(data, LIMITS)


def _steps(data: bytes) -> None:
    """Admission in steps judges as protobuf reads the whole message."""
    for kind in SI_KINDS:
        for sizes in TINY:
            compare(kind, data, sizes)


def _callbacks(data: bytes) -> None:
    for metadata in (None, "rm-1"):
        with suppress(GatewayError):
            _, wishes = hello_of(data, metadata, LIMITS)
            connected_note(wishes, 1).SerializeToString()  # an accepted hello goes to the log
    for first in (True, False):
        with suppress(GatewayError):
            admit_callbacks(data, "rm-1", LIMITS, first=first)


def _operators(data: bytes) -> None:
    decoders: tuple[Callable[..., object], ...] = (
        *(admin_codec.decode_pause, admin_codec.decode_resume, admin_codec.decode_forget, admin_codec.decode_drain),
        *(admin_codec.decode_list, admin_codec.decode_dump, admin_codec.decode_explain),
        *(metrics_codec.decode_request, metrics_codec.decode_watch),
    )
    for decode in decoders:
        with suppress(GatewayError):
            decode(data, LIMITS)


def _events_calls(data: bytes) -> None:
    for read in (grpc_codec.read_batch, grpc_codec.read_watch):
        with suppress(BadRequest):
            read(data)


def _operator_seeds() -> list[bytes]:
    return _serialised([
        admin_pb2.PauseResourceManagerRequest(rm_id="rm-1", reason="why"),
        admin_pb2.DrainNodeRequest(rm_id="rm-1", node_id="n1", partition="default", schedulable=True),
        admin_pb2.ExplainRequest(rm_id="rm-1", queue="root.a"),
        metrics_pb2.WatchMetricsRequest(),
    ])  # fmt: skip


def _step_seeds() -> list[bytes]:
    found = []
    for kind in SI_KINDS:
        name = b"\x12\x02rm" if kind is StreamKind.NODE else b"\x1a\x02rm"
        descriptor = KINDS[kind].message.DESCRIPTOR
        found += [wire_messages.message(Random(seed), descriptor, 6, broken=0) + name for seed in range(20)]
    return found


def _callback_seeds() -> list[bytes]:
    answer = callbacks_pb2.PredicatesAnswer(id=1, fits=False, reason="no")
    return _serialised([
        callbacks_pb2.FromResourceManager(hello=callbacks_pb2.Hello(predicates=True)),
        callbacks_pb2.FromResourceManager(
            hello=callbacks_pb2.Hello(rm_id="rm-1", events_after=2**64 - 1, open_proposals=4)  # type: ignore[arg-type]
        ),
        callbacks_pb2.FromResourceManager(predicates=[answer]),
    ])  # fmt: skip


# ---- stored forms ----------------------------------------------------------------------------------------------------


def _session(data: bytes) -> None:
    from_json(data.decode(errors="replace"), 1)


def _session_seeds() -> list[bytes]:
    state, seats = RmLifecycleState.RUNNING, {StreamKind.NODE: Seat("gateway-1", 3)}
    return [to_json(Session("rm-1", 1, state, 5, "why", state, Cursor(1, 2, 3), seats)).encode()]


def _event(data: bytes) -> None:
    event_codec.decode(data)
    event_codec.decodes(data)
    grpc_codec.decoded(1, data)
    grpc_codec.request_event(data)
    values = [data, None, *_events()[:3]]
    assert ring_blocks.unpack(ring_blocks.pack(values)) == values, "the ring gives back what it took"


def _block(data: bytes) -> None:
    for codec in (0, 1):
        with suppress(LogDamaged):
            blocks.decode("t", 0, blocks.Block(0, 1_000, 0, codec, data))


def _block_seeds() -> list[bytes]:
    run = blocks.encode_run(0, 0, [b"k"] * 3, _events()[:3], [()] * 3)
    return [run.body]


def _history(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = LocalFileStore(Path(folder))
        (Path(folder) / "f").write_bytes(data)
        with suppress(OSError, UnreadableFile):
            read_footer(place, "f")
        for compress in (False, True):
            with suppress(OSError, UnreadableFile):
                JsonlFormat(compress=compress).summary(place, "f")


# ---- texts -----------------------------------------------------------------------------------------------------------


def _yaml(data: bytes) -> None:
    text = data.decode(errors="replace")
    config, problems = load_queue_config(text)
    assert config is not None or any(problem.severity == "error" for problem in problems)
    checksum(text)


def _yaml_seeds() -> list[bytes]:
    more = """
partitions:
  - name: default
    nodesortpolicy: {type: fair, resourceweights: {vcore: 2}}
    placementrules: [{name: tag, value: namespace, create: true, filter: {type: allow, users: ['^a.*$']}}]
    preemption: {enabled: true}
    limits: [{limit: all, users: ['*'], maxresources: {vcore: 10}, maxapplications: 3}]
    queues:
      - {name: root, submitacl: 'a,b g', properties: {priority.offset: '5'}, childtemplate: {maxapplications: 2},
         queues: [{name: x, resources: {guaranteed: {memory: 1Gi}, max: {memory: 2Gi}}}]}
"""
    return [CONFIG.encode(), more.encode()]


def _document(data: bytes) -> None:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return
    for read in (read_document, read_identity):
        with suppress(BadDocument):
            read(value)


def _document_seeds() -> list[bytes]:
    return [
        json.dumps(each).encode()
        for each in (
            {"kind": "node", "id": "h1", "capacity": {"vcore": 4, "memory": "8Gi"}, "attributes": {"a": "b"}},
            {"kind": "allocation", "id": "a", "node": "h1", "resource": {"vcore": 1}, "application": "x"},
            {"kind": "offer", "id": "o", "node": "h1", "resource": {"vcore": 1}, "idle": "30s", "version": 3},
            {"kind": "pool", "id": "gpu", "quantity": 10},
        )
    ]


def _settings_text(data: bytes) -> None:
    text = data.decode(errors="replace")
    names = {"MUSTER_GATEWAY__MAX_STREAMS": text[:200], "MUSTER_GATEWAY__HTTP_TOKENS": text[:2_000]}
    for given in ({}, {name: value for name, value in names.items() if "\0" not in value}):
        with suppress(SettingsError):
            load(None, [line for line in text.splitlines()[:5] if line] if not given else [], environment=given)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "settings.toml"
        file.write_bytes(data)
        with suppress(SettingsError):
            load(file, [], environment={})


def _settings_seeds() -> list[bytes]:
    return [
        b'[gateway]\nmax_streams = 10\nhttp_tokens.ops = {role = "admin", token = "0123456789abcdef"}\n',
        b'[scheduler.external.informers.vms]\nkind = "file"\npath = "x"\n[publisher.sinks.a]\nkind = "jsonl"\n',
        b"gateway.max_streams=5\nlog.partitions=2\ngateway.trusted_proxies=10.0.0.0/8",
    ]


def _shown(data: bytes) -> None:
    text = data.decode(errors="surrogateescape")
    masked_text(masked_text(text))
    masked_yaml(text)
    masked_json({text: [text]})
    assert first_invisible(visible(text, breaks=False)) is None
    assert json.loads(visible_json(json.dumps(text, ensure_ascii=False))) == text


def _shown_seeds() -> list[bytes]:
    from planted import every_form

    return [each.text.encode() for each in every_form("fuzz")]


# ---- HTTP ------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _front() -> HttpFront:
    async def behind(_: Any, __: Any, send: Any) -> None:
        await respond(send, 200, "text/plain", b"behind")

    async def live() -> bool:
        return True

    async def fine() -> tuple[bool, list[str]]:
        return True, []

    async def well() -> SystemHealthDao:
        return unreachable("it is a test's", "", 0)

    return HttpFront(behind, behind, Authenticator(GatewaySettings()), live, fine, well)


def _http(data: bytes) -> None:
    """The first line is the target; the others are headers, in the form that an HTTP server gives."""
    target, *lines = data.split(b"\n")
    raw_path, _, query = target.partition(b"?")
    headers = [(name.strip().lower(), value.strip()) for name, _, value in (line.partition(b":") for line in lines)]
    scope = {
        "type": "http",
        "method": "GET",
        "http_version": "1.1",
        "scheme": "http",
        "client": ("127.0.0.1", 5),
        "path": raw_path.decode(errors="replace"),
        "raw_path": raw_path,
        "query_string": query,
        "root_path": "",
        "headers": [*headers, (b"host", b"localhost")],
        "server": ("127.0.0.1", 9080),
    }
    started: list[int] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            started.append(message["status"])

    asyncio.run(_front()(scope, receive, send))
    assert len(started) == 1
    assert started[0] < 500
    doorman = Authenticator(GatewaySettings())
    doorman.client(scope)
    with suppress(Unauthenticated, PermissionDenied):
        doorman.identify(scope)


def _http_seeds() -> list[bytes]:
    return [
        b"/ws/v1/partition/default/queue/root.a?rm=x\nhost: localhost:9080\norigin: http://localhost",
        b"/ws/v1/events/batch?count=5&start=3\nx-forwarded-for: 10.0.0.1, 127.0.0.1\nauthorization: Bearer x",
        b"//WS/v1//Partitions/\nforwarded: for=1.2.3.4;by=x\nsec-fetch-site: cross-site",
        b"/page/../../etc/passwd\nvia: 1.1 x\nhost: [::1]:9080",
    ]


# ---- decoders of other packages --------------------------------------------------------------------------------------


_CALLERS = [
    Identity(name, Rights(Role.NONE), proof) for name, proof in (("rm-1", Proof.CERTIFICATE), ("ops", Proof.JWT))
]


def _policy(data: bytes) -> None:
    """A file is taken as a whole or refused with its name. What is taken gives rights and quotas that can be used."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "policy.toml"
        path.write_bytes(data)
        file, refusal = None, f"{path}: "
        try:
            file = read_policy(path)
        except InvalidPolicy as error:
            refusal = str(error)
    assert all(line.startswith(f"{path}: ") for line in refusal.splitlines()), refusal
    if file is None:
        return
    policy = Policy(file)
    book = QuotaBook(QuotaSettings.model_validate({}), lambda: policy.quotas)
    for caller in _CALLERS:
        identity = policy.apply(caller)
        assert identity.name == caller.name
        if not any(rule.matches(caller) for rule in file.rule):
            assert identity.rights == Rights(Role.NONE)
        assert identity.rights.reads.can_read_rm("rm-1") or not identity.rights.may(Right.CONFIGURE, "rm-1")
        identity.rights.reads.header()
        rates = (book.rm_rate(identity, "rm-1"), book.identity_rate(identity))
        assert all(0 <= number < float("inf") for rate in rates for number in (rate.requests_per_s, rate.bytes_per_s))
        pb.Quotas(
            **asdict(book.rm(identity, "rm-1")), resource_managers=book.resource_managers(identity)
        )  # go on the log


def _policy_seeds() -> list[bytes]:
    rules = """
[[rule]]
identities = ["rm-*", "spiffe://prod/rm/?"]
proofs = ["certificate"]
act = ["rm-*"]
operate = ["rm-1"]
role = "read"
[[rule.read]]
rm = "shared"
partitions = ["default"]
"""
    quotas = """
[[rule]]
identities = ["ops"]
role = "admin"
[[quota]]
identities = ["rm-*"]
rms = ["rm-*"]
nodes = 5
asks = 200
requests_per_s = 1.5
[[quota]]
identity_resource_managers = 20
identity_bytes_per_s = 1e6
"""
    return [rules.encode(), quotas.encode()]


def _audit_query(data: bytes) -> None:
    _, wanted, limit = read_query(data)
    assert 1 <= limit <= 1_000
    assert wanted.since_ns >= 0 <= wanted.until_ns
    decode_read(wanted.SerializeToString())


def _audit_query_seeds() -> list[bytes]:
    return [
        b"rm=rm-1&identity=ann%40x&action=pause&result=refused&limit=500&after=1.2.3.4",
        b"from=1769846400.5&to=2026-01-31T08:00:00%2B01:00",
    ]


def _workload_log(data: bytes) -> None:
    """A log of jobs is read or refused. What is read runs: each task starts once, and nothing ends before it begins."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "log.swf"
        file.write_bytes(data)
        workload = WorkloadSource(str(file)).read()
    if len(workload.tasks) > 200 or len(workload.machines) > 200:
        return
    found = figures(play(workload, Scenario("fuzz", workload.config)))
    assert (found.all.never, found.all.refused, len(found.starts)) == (0, 0, len(workload.tasks))
    assert found.makespan_s >= 0


def _workload_log_seeds() -> list[bytes]:
    log = b"""; MaxNodes: 5 (3 2)
; MaxProcs: 26 (18 8)
; MaxMemory: 4096
1 0 -1 100 6 -1 -1 6 200 1024 1 7 1 -1 2 1 -1 -1
2 30 5 50.5 1 -1 -1 -1 -1 -1 1 8 1 -1 2 -1 1 10
2 30 5 20 1 -1 -1 -1 -1 -1 2 8 1 -1 2 -1 -1 -1
2 -1 9 30.5 1 -1 -1 -1 -1 -1 3 8 1 -1 2 -1 -1 -1
3 40 -1 -1 1 -1 -1 1 -1 -1 5 8 1 -1 1 -1 -1 -1
"""
    return [log, log.replace(b"\n", b"\r\n"), b"\xef\xbb\xbf" + log.replace(b"; Max", b" ;max")]


def further() -> list[Target]:
    """Return more targets: decoders of optional parts."""
    return [
        Target("policy", _policy, _policy_seeds),
        Target("audit-queries", _audit_query, _audit_query_seeds, (GatewayError,)),
    ]


TARGETS = [
    Target("requests", _Machine().take, _envelopes),
    Target("states", _state, _states, (CodecError,)),
    Target(
        "responses",
        lambda data: gateway_codec.read_response(Record("r", 0, 0, 0, b"", data)),
        _envelopes,
        (CodecError,),
    ),
    Target("state-keys", parse_state_key, lambda: list(_lived().state), (ValueError,)),
    Target("dead-letters", _letter, _envelopes),
    Target("events", _event, _events),
    Target("si", _admission, lambda: _serialised([*_requests(), registration(CONFIG, "rm-1")])),
    Target("admission-steps", _steps, _step_seeds),
    Target("callbacks", _callbacks, _callback_seeds),
    Target("operators", _operators, _operator_seeds),
    Target("event-calls", _events_calls, lambda: _serialised([events_pb2.EventBatchRequest(rm_id="r", count=3)])),
    Target("sessions", _session, _session_seeds, (ValueError,)),
    Target("log-blocks", _block, _block_seeds),
    Target("history", _history, lambda: [b"PAR1" + b"\x00" * 40 + b"PAR1", b'{"offset": 1, "rm": "a", "id": 3}\n']),
    Target("yaml", _yaml, _yaml_seeds),
    Target("documents", _document, _document_seeds),
    Target("settings", _settings_text, _settings_seeds),
    Target("texts", _shown, _shown_seeds),
    Target("http", _http, _http_seeds),
    Target("workload-logs", _workload_log, _workload_log_seeds, (InvalidWorkload,)),
    *further(),
]
