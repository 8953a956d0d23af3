"""Resource managers for operators, and their configuration."""

from __future__ import annotations

from msgspec import field

from muster_rest.shapes.base import MusterShape


class CountsDao(MusterShape, kw_only=True):
    """What an RM has now, in all its partitions. ``applications``: live ones. ``asks``: pending allocations.
    ``allocations``: those of applications, as ``totalContainers`` counts them.
    """

    nodes: int
    applications: int
    asks: int
    allocations: int
    queues: int
    users: int


class QuotaDao(MusterShape, kw_only=True):
    """The use of a quota, and its limit (0: none). ``reached``: something was refused for it a short while ago.

    The use is no count: ``allocations`` has pending and foreign ones, too, and ``applications`` those that have ended
    and are stored.
    """

    name: str
    used: int
    limit: int
    reached: bool


class ResourceManagerDao(MusterShape, kw_only=True):
    """An RM. Times are nanoseconds since the epoch, 0: none.

    ``life``: INIT, RUNNING, DISCONNECTED or STOPPED, as the scheduler knows it, since ``lifeSince``. ``held``: an
    operator paused it. ``description``: the meaning of the state, and what to do (``muster_runtime.rm_status_text``).
    ``default``: requests that name no RM mean this one. ``callbacks``: the calls that its callback stream takes;
    ``callbacksConnected``: whether the stream is open now. ``identity``: the name of the identity that registered it.
    """

    rm_id: str = field(name="rmID")
    life: str
    life_since: int
    held: bool
    held_reason: str
    held_since: int
    description: str
    default: bool
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
    identity: str
    counts: CountsDao
    quotas: list[QuotaDao]


class ConfigurationDao(MusterShape, kw_only=True):
    """The queue configuration in force, as text."""

    rm_id: str = field(name="rmID")
    config: str
