"""A batch in parts."""

from __future__ import annotations

from muster_event_publisher.event_runs import EventBatch, EventRun


def pieces(batch: EventBatch, size: int) -> list[EventBatch]:
    """The batch in parts of at most ``size`` events; each ends where the next begins."""
    parts: list[EventBatch] = []
    runs: list[EventRun] = []
    start, count = batch.start, 0
    for run in batch.runs:
        while run:
            part = EventRun(
                run.rm_id, run.instance, run.partition, run.first_id,
                run.offsets[: size - count], run.values[: size - count],
            )  # fmt: skip
            run = run.from_index(len(part))
            runs.append(part)
            count += len(part)
            if count == size:
                end = part.offsets[-1] + 1
                parts.append(EventBatch(batch.partition, start, end, runs))
                start, runs, count = end, [], 0
    if runs:
        parts.append(EventBatch(batch.partition, start, batch.end, runs))
    elif parts:
        parts[-1].end = batch.end
    return parts
