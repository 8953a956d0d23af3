"""The client's settings."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class ClientSettings(BaseModel):
    """The settings of an RmClient, with the reason for each number."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    register_timeout_s: float = Field(default=30.0, gt=0, description="Time for a registration, including retries.")
    backoff_min_ms: int = Field(
        default=50, ge=1, description="First wait before a reconnection: a gateway's restart takes about a second."
    )
    backoff_max_ms: int = Field(
        default=2_000, ge=1, description="Longest wait: a gateway that is back is found within two seconds."
    )
    backoff_seed: int | None = Field(default=None, description="Seed of the backoff's jitter; unset: from the system.")
    unsent_messages: int = Field(
        default=64, ge=1, description="Messages that a stream keeps for the network before send waits."
    )
    journal_messages: int = Field(
        default=10_000, ge=1, description="Sent messages that a stream keeps, to send them again."
    )
    journal_bytes: int = Field(default=64 << 20, ge=1, description="Their size; whichever limit is reached first.")
    resend_window_s: float = Field(
        default=60.0, gt=0, description="After this time a sent message counts as taken when the journal needs room."
    )
    fruitless_attempts: int = Field(
        default=10,
        ge=1,
        description="Reconnections without a response between them before a status that may pass (INTERNAL, UNKNOWN, "
        "RESOURCE_EXHAUSTED) counts as final. UNAVAILABLE never does.",
    )
    questions_at_once: int = Field(
        default=256, ge=1, description="Questions of the scheduler that are answered at the same time; others wait."
    )
    welcome_timeout_s: float = Field(
        default=5.0,
        gt=0,
        description="Wait for the callback stream at a registration; afterwards the registration continues without it.",
    )
    close_timeout_s: float = Field(default=5.0, gt=0, description="Time for unsent messages to be written at close.")
    linger_s: float = Field(
        default=0.5, ge=0, description="Wait at close until written messages are known as taken; some never are."
    )
    max_message_bytes: int = Field(default=64 << 20, ge=1 << 10, description="Largest response that is accepted.")
    reregister: Literal["callback", "automatic"] = Field(
        default="callback", description="If the gateway does not know the RM: report it, or register again."
    )
