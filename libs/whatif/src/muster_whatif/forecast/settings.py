"""What forecasts may cost."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class ForecastSettings(BaseModel):
    """When will it run? Forecasts are made in a process of their own, one at a time (docs/what-if-when.md)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cpu_s: float = Field(
        20.0,
        gt=0,
        le=600,
        description="Processor time for one forecast, at the lowest priority; fewer simulations if more is needed.",
    )
    memory_bytes: int = Field(
        1 << 30, ge=64 << 20, description="Memory to make one, beside that of the idle process; more ends it."
    )
    state_bytes_max: int = Field(
        64 << 20, ge=1 << 16, le=200 << 20, description="A larger state of an RM is not simulated."
    )
    wait_s: float = Field(3.0, ge=0, description="A request waits so long for a forecast; then the answer says MAKING.")
    reuse_s: float = Field(30.0, ge=0, description="For so long a forecast answers for all asks of its RM.")
    waiting_max: int = Field(8, ge=1, description="RMs whose forecasts wait for their turn; more get a 503.")
