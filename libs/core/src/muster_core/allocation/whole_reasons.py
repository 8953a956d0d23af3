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
    found = list(app.past)
    known = {(each.shape, each.reason.since_ns, each.until_ns) for each in found}
    for group in app.groups.values():
        waitlist = app.queue.waitlists.get(group.wait_key)
        head = group.head()
        if waitlist is not None and head is not None:
            for each in with_ended(waitlist.past, waitlist.reason, now_ns):
                about = (group.shape, each.reason.since_ns, each.until_ns)
                if each.until_ns > head.created_ns and about not in known:
                    known.add(about)
                    found.append(each._replace(shape=group.shape))
    if len(found) > len(app.past):
        found.sort(key=lambda each: each.until_ns)
        app.past = tuple(found[-PAST_KEPT:])
