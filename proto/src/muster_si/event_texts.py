"""Messages of events by which readers tell what the event's numbers do not say."""

from __future__ import annotations

# Of APP_REQUEST: what the RM runs without having asked for it, or reports in place of its request; and the end of a
# request that goes on as another amount, which the next event of its key says.
REPORTED = "reported as an allocation"
REQUEST_CHANGED = "the request changed"
