"""Settings of the scheduler service."""

from __future__ import annotations

from pathlib import Path

from muster_bus.worker_settings import WorkerSettings
from muster_informers.settings import ExternalSettings
from pydantic import BaseModel, ConfigDict, Field


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
        default=(), description="Partitions of the requests topic that this instance owns; empty: all."
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
        default=512,
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
