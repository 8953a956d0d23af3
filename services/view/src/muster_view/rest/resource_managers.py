"""Resource managers for operators: their registration, and whether the scheduler decides for them."""

from __future__ import annotations

from muster_core.model.quotas import QuotaKind
from muster_rest.shapes.managers import ConfigurationDao, CountsDao, QuotaDao, ResourceManagerDao
from muster_runtime import rm_status_text
from muster_runtime.secrets import masked, masked_text, masked_yaml
from muster_state.state_folder import RmEntry, RmInfo

from muster_view.rest import dao

_WANTS = ("predicates", "preemption_predicates", "scheduling_states", "state_dump", "events")


def describe(info: RmInfo, now_ns: int, facts: rm_status_text.RmFacts = rm_status_text.NO_FACTS) -> str:
    """The meaning of the RM's state, and advice."""
    return rm_status_text.description(
        info.life,
        info.life_ns,
        now_ns,
        paused=info.paused,
        paused_reason=masked_text(info.paused_reason),
        paused_since_ns=info.paused_ns,
        rm_id=info.rm_id,
        replay=rm_status_text.is_replay(info.extra_config),
        facts=facts,
    )


def to_dao(state: RmEntry, description: str, *, default: bool) -> ResourceManagerDao:
    """An RM without its configuration, which may be large."""
    info, quotas = state.info, state.core.quotas
    return ResourceManagerDao(
        rm_id=info.rm_id,
        life=info.life,
        life_since=info.life_ns,
        held=info.paused,
        held_reason=masked_text(info.paused_reason),
        held_since=info.paused_ns,
        description=description,
        default=default,
        version=masked_text(info.version),
        policy_group=info.policy_group,
        build_info=masked(info.build_info),
        extra_config=masked(info.extra_config),
        generation=info.generation,
        registered=info.registered_ns,
        registrations=info.registrations,
        instance_uuid=info.instance_uuid,
        callbacks_connected=info.callbacks.connected,
        callbacks_since=info.callbacks_since_ns,
        callbacks=[name for name in _WANTS if info.callbacks.connected and getattr(info.callbacks, name)],
        identity=info.identity,
        counts=counts(state),
        quotas=[
            QuotaDao(
                name=kind, used=quotas.used(kind), limit=getattr(info.quotas, kind), reached=kind in info.quotas_reached
            )
            for kind in QuotaKind
        ],
    )


def counts(state: RmEntry) -> CountsDao:
    """What the RM has: O(users and partitions)."""
    partitions = list(state.core.partitions.values())
    used = state.core.quotas.used
    return CountsDao(
        nodes=used(QuotaKind.NODES),
        applications=sum(sum(partition.users.values()) for partition in partitions),
        asks=used(QuotaKind.ASKS),
        allocations=dao.total_containers(partitions),
        queues=used(QuotaKind.QUEUES),
        users=used(QuotaKind.USERS),
    )


def configuration(info: RmInfo) -> ConfigurationDao:
    """The configuration's text, secrets masked."""
    return ConfigurationDao(rm_id=info.rm_id, config=masked_yaml(info.config))
