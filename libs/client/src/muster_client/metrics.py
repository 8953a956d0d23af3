"""The client's counts. They are plain numbers: an RM chooses the metrics system for them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class ClientMetrics:
    """Counts since the client was made. They only grow."""

    messages_sent: int = 0
    messages_sent_again: int = 0
    responses_received: int = 0
    responses_dropped_as_duplicate: int = 0
    answers_dropped_as_repeated: int = 0  # second answers to items that were sent again
    streams_opened: int = 0
    streams_lost: int = 0
    registrations: int = 0
    questions_answered: int = 0  # on the callback stream
    questions_failed: int = 0  # those in which the RM's function raised
    sequence_numbers_missing: int = 0  # missing at some time; they may have come since
