"""The client's settings."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from muster_client.errors import BadSettings

Reregister = Literal["callback", "automatic"]


def _number(default: Any, description: str, *, least: float = 0.0, above: bool = False) -> Any:
    """Returns a field for a number with its bound.

    :param above: the number must be greater than ``least``; else it may be ``least``.
    """
    return field(default=default, metadata={"description": description, "least": least, "above": above})


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """The settings of an RmClient, with the reason for each number.

    The constructor raises BadSettings, naming field, value and expectation.
    """

    register_timeout_s: float = _number(30.0, "Time for a registration, including retries.", above=True)
    backoff_min_ms: int = _number(
        50, "First wait before a reconnection: a gateway's restart takes about a second.", least=1
    )
    backoff_max_ms: int = _number(2_000, "Longest wait: a gateway that is back is found within two seconds.", least=1)
    backoff_seed: int | None = field(
        default=None, metadata={"description": "Seed of the backoff's jitter; unset: from the system."}
    )
    unsent_messages: int = _number(64, "Messages that a stream keeps for the network before send waits.", least=1)
    journal_messages: int = _number(10_000, "Sent messages that a stream keeps, to send them again.", least=1)
    journal_bytes: int = _number(64 << 20, "Their size; whichever limit is reached first.", least=1)
    resend_window_s: float = _number(
        60.0, "After this time a sent message counts as taken when the journal needs room.", above=True
    )
    fruitless_attempts: int = _number(
        10,
        "Reconnections without a response between them before a status that may pass (INTERNAL, UNKNOWN, "
        "RESOURCE_EXHAUSTED) counts as final. UNAVAILABLE never does.",
        least=1,
    )
    questions_at_once: int = _number(
        256, "Questions of the scheduler that are answered at the same time; others wait.", least=1
    )
    welcome_timeout_s: float = _number(
        5.0,
        "Wait for the callback stream at a registration; afterwards the registration continues without it.",
        above=True,
    )
    close_timeout_s: float = _number(5.0, "Time for unsent messages to be written at close.", above=True)
    linger_s: float = _number(0.5, "Wait at close until written messages are known as taken; some never are.")
    max_message_bytes: int = _number(64 << 20, "Largest response that is accepted.", least=1 << 10)
    reregister: Reregister = field(
        default="callback",
        metadata={"description": "If the gateway does not know the RM: report it, or register again."},
    )

    def __post_init__(self) -> None:
        for setting in fields(self):
            value = getattr(self, setting.name)
            if "least" in setting.metadata:
                _check_number(
                    setting.name, value, str(setting.type), setting.metadata["least"], above=setting.metadata["above"]
                )
        if self.backoff_seed is not None and not _is_whole(self.backoff_seed):
            raise BadSettings(f"backoff_seed {self.backoff_seed!r}: expected a whole number or None")
        if self.reregister not in get_args(Reregister):
            raise BadSettings(f"reregister {self.reregister!r}: expected {' or '.join(get_args(Reregister))}")


def _check_number(name: str, value: Any, kind: str, least: float, *, above: bool) -> None:
    right = _is_whole(value) if kind == "int" else _is_whole(value) or isinstance(value, float)
    if not right or not (value > least if above else value >= least):
        kind_text = "a whole number" if kind == "int" else "a number"
        raise BadSettings(f"{name} {value!r}: expected {kind_text} {'above' if above else 'of at least'} {least:g}")


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
