"""Why a whole application waits, after its single asks waited."""

from __future__ import annotations

from typing import TYPE_CHECKING

from muster_core.model.reason_history import PAST_KEPT, with_begun, with_ended, with_replaced

if TYPE_CHECKING:
    from muster_core.model.application import Application
    from muster_core.model.reasons import Reason


def begin(app: Application, reason: Reason, now_ns: int) -> None:
    """Records the reason of the whole application. The reasons of its single asks become its past."""
    if app.reason is not None:
        app.past, app.reason = with_replaced(app.past, app.reason, reason, now_ns)
        return
    app.past, app.reason = with_begun(app.past, reason, now_ns)
    history = list(app.past)
    recorded = {(past_reason.shape, past_reason.reason.since_ns, past_reason.until_ns) for past_reason in history}
    for group in app.groups.values():
        waitlist = app.queue.waitlists.get(group.wait_key)
        head = group.head()
        if waitlist is not None and head is not None:
            for past_reason in with_ended(waitlist.past, waitlist.reason, now_ns):
                about = (group.shape, past_reason.reason.since_ns, past_reason.until_ns)
                if past_reason.until_ns > head.created_ns and about not in recorded:
                    recorded.add(about)
                    history.append(past_reason._replace(shape=group.shape))
    if len(history) > len(app.past):
        history.sort(key=lambda past_reason: past_reason.until_ns)
        app.past = tuple(history[-PAST_KEPT:])
