"""Limits of reading queue configurations that others send."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class QueueConfigSettings(BaseModel):
    """What one configuration may cost. Reading happens in a process of its own."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_bytes: int = Field(
        128 << 10, ge=1024, le=1 << 20, description="Largest text of a queue configuration; a larger one is refused."
    )
    # The scheduler makes a thousand queues in about 0.1 s, in which it decides nothing else.
    max_queues: int = Field(
        1_000, ge=1, le=10_000, description="Most queues of one configuration; a larger one is refused."
    )
    cpu_s: float = Field(2.0, gt=0, le=60, description="Processor time to read one; one that needs more is refused.")
    memory_bytes: int = Field(
        256 << 20, ge=32 << 20, description="Memory to read one, beside that of the idle process; more is refused."
    )
    idle_s: float = Field(60.0, gt=0, description="The reading process ends after so long without a text.")
