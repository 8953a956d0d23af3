"""Resource managers as an operator sees them: what they registered with, and whether anything is decided for them."""

from __future__ import annotations

from msgspec import Struct, field
from muster_service.secrets import masked, masked_yaml

from muster_scheduler.follower import RmInfo


class ResourceManagerDao(Struct, kw_only=True, rename="camel"):
    """An RM. Times are nanoseconds since the epoch, 0: none.

    ``life``: INIT, RUNNING, PAUSED or STOPPED, as the scheduler was told. ``held``: an operator paused it.
    ``callbacks``: what its callback stream wants; ``callbacksConnected``: whether there is one now.
    """

    rm_id: str = field(name="rmID")
    life: str
    held: bool
    held_reason: str
    version: str
    policy_group: str
    build_info: dict[str, str]
    extra_config: dict[str, str]
    generation: str
    registered: int
    registrations: int
    instance_uuid: str = field(name="instanceUUID")
    callbacks_connected: bool
    callbacks_since: int
    callbacks: list[str]


class ConfigurationDao(Struct, kw_only=True, rename="camel"):
    """The queue configuration in force, as text."""

    rm_id: str = field(name="rmID")
    config: str


_WANTS = ("predicates", "preemption_predicates", "scheduling_states", "state_dump", "events")


def shown(info: RmInfo) -> ResourceManagerDao:
    """Without the configuration, which may be large."""
    return ResourceManagerDao(
        rm_id=info.rm_id,
        life=info.life,
        held=info.held,
        held_reason=info.held_reason,
        version=info.version,
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
    )


def configuration(info: RmInfo) -> ConfigurationDao:
    """The configuration's text, secrets masked."""
    return ConfigurationDao(rm_id=info.rm_id, config=masked_yaml(info.config))
