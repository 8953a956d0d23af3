"""Settings of the scheduler service."""

from __future__ import annotations

from pathlib import Path

from muster_bus.worker_settings import WorkerSettings
from muster_informers.settings import ExternalSettings
from pydantic import BaseModel, ConfigDict, Field, model_validator


class UserSettings(BaseModel):
    """The directory service that finds the groups of users that come without groups."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ldap_directory: Path = Field(
        default=Path("/run/secrets/ldap"),
        description="Directory of files for resolver ldap: Host, BaseDN, Filter, BindUser, BindPassword, and more.",
    )
    lookup_timeout_s: float = Field(
        default=3.0, gt=0, le=60, description="Longest look-up of a user's groups; decisions wait for it."
    )


class SchedulerSettings(BaseModel):
    """The scheduler's settings."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    group: str = Field(
        default="scheduler", min_length=1, description="Name under which the input's positions are committed."
    )
    partitions: tuple[int, ...] = Field(
        default=(),
        description="Partitions of the requests topic that this instance owns, by hand; empty: on Kafka the live "
        "schedulers of the group share them out, on the embedded log all (docs/scaling.md).",
    )
    standby_partitions: int = Field(
        default=64,
        ge=0,
        description="Limit of the partitions of others that this instance follows, to take them over at once; each "
        "costs the memory of its state, and folding costs processor time. 0: none.",
    )
    session_timeout_s: float = Field(
        default=3.0,
        ge=0.5,
        le=300,
        description="A scheduler that is silent for this long loses its partitions to others. Under 6 s the brokers "
        "must allow it (group.min.session.timeout.ms); otherwise it is 6 s.",
    )
    heartbeat_s: float = Field(
        default=0.2,
        gt=0,
        description="Interval of a scheduler's signs of life; also how soon it notices a change of the group.",
    )
    hand_over_s: float = Field(
        default=5.0,
        ge=0,
        description="A scheduler that stops waits so long until others have its partitions; then it stops anyway.",
    )
    default_queue_config: Path | None = Field(
        default=None,
        description="Queue configuration (YAML) for RMs that register with an empty one; none: the built-in default.",
    )
    policy_groups_dir: Path | None = Field(
        default=None,
        description="Directory of files <policyGroup>.yaml: the configuration of a policy group's RMs that register "
        "with an empty one. Without such a file: the default.",
    )
    share_policy_groups: bool = Field(
        default=False,
        description="Whether an RM that registers with an empty configuration gets that of another RM of its policy "
        "group (in the same partition of the log), if there is no file.",
    )
    max_allocations_batch: int = Field(
        default=128,
        ge=1,
        description="Allocations that are made in one go; then other RMs, and requests that came meanwhile, have their "
        "turn.",
    )
    check_invariants_every_s: float = Field(
        default=300.0, ge=0, description="How often the whole state is checked for contradictions; 0: only at recovery."
    )
    users: UserSettings = Field(default=UserSettings(), description="The resolver of groups for users without groups.")
    external: ExternalSettings = Field(
        default_factory=ExternalSettings,
        description="Informers and event handlers: resources that the RM does not know.",
    )
    http_address: str = Field(default="", description="Health and metrics; empty: not served.")
    worker: WorkerSettings = Field(
        # Small transactions: their records reach the RM while the scheduler makes the next decisions.
        default=WorkerSettings(max_output_records=4000),
        description="Limits and waits of partition workers.",
    )

    @model_validator(mode="after")
    def _beats_often(self) -> SchedulerSettings:
        if self.heartbeat_s * 3 > self.session_timeout_s:
            raise ValueError(
                f"heartbeat_s {self.heartbeat_s}: at most a third of session_timeout_s ({self.session_timeout_s})"
            )
        return self
