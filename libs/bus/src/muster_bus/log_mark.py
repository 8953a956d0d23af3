"""A log's identity and high-water mark, by which others notice that the log is another one or older than it was.

The terms:

identity
    A random text that a log gets when it is created. A restored backup keeps it.
mark
    The identity, and the end offset of each partition at one moment. Ends never go back. Every mark is of records that
    were durable before the mark was taken: a *witness* (a side file, the session store) that keeps a mark is never
    ahead of a log that lost nothing.
loss
    The log has less than a witness knows. A log with a loss does not start: an operator who continues with it must say
    so, with a word (``token``) that holds for this loss only.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple, Protocol, runtime_checkable

from muster_bus.errors import LogBehind

_NAMED_MAX = 3  # partitions that a message names


class LogMark(NamedTuple):
    """See *mark*.

    :param log_id: the identity; "": the log has none (it is new, or of a version without identities).
    :param ends: end offset by ``topic/partition``; partitions without records may be absent.
    :param heads: digest of what ends there, by ``topic/partition``, where the log has digests.
    """

    log_id: str
    ends: Mapping[str, int]
    heads: Mapping[str, int] = MappingProxyType({})

    @property
    def records(self) -> int:
        """Number of records that were ever written, including transaction markers on Kafka."""
        return sum(self.ends.values())

    def to_json(self) -> str:
        content: dict[str, object] = {
            "log": self.log_id,
            "ends": {partition: end for partition, end in self.ends.items() if end},
        }
        if heads := {partition: head for partition, head in self.heads.items() if head}:
            content["heads"] = heads
        return json.dumps(content)

    @classmethod
    def from_json(cls, text: str) -> LogMark:
        """Inverse of :meth:`to_json`. Raises ValueError."""
        content = json.loads(text)
        try:
            ends = {str(partition): int(end) for partition, end in content["ends"].items()}
            heads = {str(partition): int(head) for partition, head in content.get("heads", {}).items()}
            return cls(str(content["log"]), ends, heads)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no mark of a log: {text[:80]!r}") from error


@runtime_checkable
class MarkedLog(Protocol):
    """A log that knows its mark.

    :ivar loss: an accepted loss that the RMs' histories do not know yet, in a sentence; "": none.
    """

    loss: str

    @property
    def name(self) -> str:
        """The log in messages."""
        ...

    @property
    def accepted_loss(self) -> str:
        """The token of the loss that the settings accept."""
        ...

    async def mark_loss_reported(self) -> None:
        """The RMs' histories know the accepted loss. Until this call each start has it in ``loss``."""
        ...

    async def mark(self) -> LogMark:
        """Returns the present mark. Raises LogUnavailable, LogClosed."""
        ...


def token_of(mark: LogMark) -> str:
    """Returns the word that accepts the loss of what a witness knows."""
    return hashlib.sha256(json.dumps([mark.log_id, sorted(mark.ends.items())]).encode()).hexdigest()[:8]


def check(log_name: str, present: LogMark, witness: str, witnessed: LogMark | None, accepted: str) -> str:
    """Compares a log with what a witness knows of it.

    :param log_name: of the log, for messages.
    :param witness: what knows the mark, for messages.
    :param witnessed: its mark; None: it has none.
    :param accepted: the token of a loss that an operator accepts.
    :returns: what is lost, when the loss is accepted; "": nothing is lost.

    Raises LogBehind.
    """
    if witnessed is None or not witnessed.records:
        return ""
    if present.log_id == witnessed.log_id:
        short = {
            partition: (present.ends.get(partition, 0), end)
            for partition, end in witnessed.ends.items()
            if present.ends.get(partition, 0) < end
        }
        if not short:
            return ""
        missing = sum(end - present_end for present_end, end in short.values())
        partitions = sorted(short, key=lambda partition: short[partition][0] - short[partition][1])
        named = ", ".join(
            f"{partition} ends at {short[partition][0]} instead of {short[partition][1]}"
            for partition in partitions[:3]
        )
        more = f", and {len(partitions) - _NAMED_MAX} more" if len(partitions) > _NAMED_MAX else ""
        problem = f"{log_name} is older than {witness}: at least {missing} records are missing ({named}{more})"
    elif not present.records:
        problem = (
            f"{log_name} is empty, but {witness} knows {witnessed.records} records of the log {witnessed.log_id[:8]}"
        )
    else:
        problem = (
            f"{log_name} is another log ({present.log_id[:8] or 'no identity'}, {present.records} records), not "
            f"the one that {witness} knows ({witnessed.log_id[:8]}, {witnessed.records} records)"
        )
    token = token_of(witnessed)
    if accepted == token:
        return problem
    raise LogBehind(
        f"{problem}. Nothing was changed. Put the lost files back, or restore a backup (docs/backup.md). To go on "
        f"without what is missing, start once with --set log.accept_loss={token}",
        token,
    )
