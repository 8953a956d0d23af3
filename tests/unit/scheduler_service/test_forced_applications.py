"""A forced application (``application.create.force``) is accepted under any configuration."""

from __future__ import annotations

from dataclasses import replace

from admitting import admit
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from muster_core.config.queue_config import ClusterConfig, QueueConfig
from muster_core.model.commands import UpdateConfiguration
from muster_core.model.outcome import AcceptedApplication, NewAllocation, RejectedApplication, RejectedAsk
from muster_gateway.settings import AdmissionLimits
from muster_gateway.stream_kind import StreamKind
from muster_proto.si.v1 import si_pb2 as si
from muster_scheduler import ingest
from muster_si.constants import APP_TAG_CREATE_FORCE, APP_TAG_NAMESPACE_RESOURCE_QUOTA
from scenario.core.runner import World
from unit.scheduler_service.test_queue_yaml_round_trip import CONFIGS, _written

RM = "rm"
TEXTS = st.text(max_size=20) | st.sampled_from(["", "x" * 5000, "a\nb", "ann", "\x00"])
QUEUES = TEXTS | st.sampled_from(["root", "root.a.b.c", "root.@recovery@", "root.@recovery@.x", "a b", "." * 300])
QUANTITIES = st.dictionaries(st.sampled_from(["vcore", "memory", "gpu"]), st.integers(0, 2**53), max_size=3)
QUOTA = '{"resources": {"vcore": {"value": "1"}}}'


@st.composite
def _items(draw: st.DrawFn) -> si.AddApplicationRequest:
    item = si.AddApplicationRequest(
        applicationID=draw(st.text("abc-é ", min_size=1, max_size=10)),
        queueName=draw(QUEUES),
        partitionName=draw(st.sampled_from(["default", ""])),
        ugi=si.UserGroupInformation(user=draw(TEXTS), groups=draw(st.lists(TEXTS, max_size=3))),
        gangSchedulingStyle=draw(st.sampled_from(["", "Hard", "Soft", "\x07"])),
        executionTimeoutMilliSeconds=draw(st.integers(-1, 10**6)),
        tags={APP_TAG_CREATE_FORCE: draw(st.sampled_from(["true", "1", "T"]))},
    )
    if draw(st.booleans()):
        item.tags[APP_TAG_NAMESPACE_RESOURCE_QUOTA] = QUOTA
    if draw(st.booleans()):
        for name, value in draw(QUANTITIES).items():
            item.placeholderAsk.resources[name].value = value
    return item


def _fair(queue: QueueConfig) -> QueueConfig:
    """Return the queue tree with fair application order, which accepts no gang."""
    properties = {**queue.properties, "application.sort.policy": "fair"}
    return replace(queue, properties=properties, queues=tuple(map(_fair, queue.queues)))


def _all_fair(config: ClusterConfig) -> ClusterConfig:
    return ClusterConfig(tuple(replace(each, root=_fair(each.root)) for each in config.partitions))


def _runs(world: World, app_id: str, key: str) -> None:
    """Report a running allocation of the application, and expect that it is adopted."""
    item = si.Allocation(allocationKey=key, applicationID=app_id, nodeID="n1", partitionName="default")
    item.resourcePerAlloc.resources["vcore"].value = 5
    request = si.AllocationRequest(rmID=RM, allocations=[item])
    out = world.do(ingest.allocations(request.SerializeToString()))
    assert not [fact for fact in out.facts if isinstance(fact, RejectedAsk)]
    assert [fact.allocation.key for fact in out.facts if isinstance(fact, NewAllocation)] == [key]


# (No shrinking: configurations are large, so it takes minutes.)
@settings(max_examples=40, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(CONFIGS, CONFIGS, st.booleans(), _items())
def test_it_is_taken_in_with_what_it_runs_under_any_configuration(
    config: ClusterConfig, later: ClusterConfig, fair: bool, item: si.AddApplicationRequest
) -> None:
    config = _all_fair(config) if fair else config
    world = World(config, _written(config))
    node = si.NodeInfo(nodeID="n1", action=si.NodeInfo.CREATE)
    node.schedulableResource.resources["vcore"].value = 100
    world.do(ingest.nodes(si.NodeRequest(rmID=RM, nodes=[node]).SerializeToString()))
    raw = si.ApplicationRequest(rmID=RM, new=[item]).SerializeToString()
    admitted = admit(StreamKind.APPLICATION, raw, RM, AdmissionLimits())
    assert not admitted.answers
    (payload,) = admitted.payloads
    out = world.do(ingest.applications(payload))
    assert not [fact.reason for fact in out.facts if isinstance(fact, RejectedApplication)]
    assert [fact.app_id for fact in out.facts if isinstance(fact, AcceptedApplication)] == [item.applicationID]
    _runs(world, item.applicationID, "first")
    world.restart()
    _runs(world, item.applicationID, "second")
    world.offered = _written(later)
    world.do(UpdateConfiguration(later))
    _runs(world, item.applicationID, "third")
    world.restart()
    _runs(world, item.applicationID, "fourth")
