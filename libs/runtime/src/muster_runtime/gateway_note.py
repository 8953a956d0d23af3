"""What only the gateway has and other services need for the texts about resource managers (RMs).

The gateway sends it in a header to the services behind it, which no client can set. A service that is asked directly
gets none, and its texts leave out what depends on it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import quote, unquote

from muster_runtime.rm_status_text import RmFacts

HEADER = b"x-muster-gateway-note"


@dataclass(frozen=True, slots=True)
class GatewayNote:
    """See the module's docstring.

    :param disconnect_timeout_s: an RM without streams for so long is stopped; 0: not known.
    :param unscheduled: log partitions for which no scheduler decides, each with the reason as a clause.
    """

    disconnect_timeout_s: float = 0.0
    unscheduled: Mapping[int, str] = field(default_factory=dict)

    def facts(self, partition: int) -> RmFacts:
        """Returns what the note has for an RM of a log partition."""
        return RmFacts(self.disconnect_timeout_s, self.unscheduled.get(partition, ""))

    def header(self) -> list[tuple[bytes, bytes]]:
        """Returns the header for a service behind the gateway."""
        text = json.dumps({"timeout": self.disconnect_timeout_s, "unscheduled": dict(self.unscheduled)})
        return [(HEADER, quote(text, safe="").encode("ascii"))]


NO_NOTE = GatewayNote()


def note_of(headers: Iterable[tuple[bytes, bytes]]) -> GatewayNote:
    """Returns the note in a request's headers; :data:`NO_NOTE` if there is none."""
    for name, value in headers:
        if name == HEADER:
            content = json.loads(unquote(value.decode("latin-1")))
            return GatewayNote(
                float(content["timeout"]),
                {int(number): str(reason) for number, reason in content["unscheduled"].items()},
            )
    return NO_NOTE
