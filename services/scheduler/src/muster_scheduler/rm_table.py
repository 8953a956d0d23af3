"""The RMs of one partition, with what the machine keeps for each of them (data only)."""

from __future__ import annotations

from dataclasses import dataclass, field

from muster_core.model.outcome import Outcome
from muster_state.stamps import Stamps
from muster_state.state_folder import ForgottenRm, StateFolder

from muster_scheduler.deadlines import Deadlines
from muster_scheduler.emit import Emitter


@dataclass(slots=True)
class RmTable:
    """What the machine and its parts share. All dictionaries are by the RM's id; their order is that of the turns.

    :ivar folder: registered and forgotten RMs, and the reports of external sources.
    :ivar outcomes: what was decided, or happened, and is not yet written.
    :ivar unexhausted: RMs whose last budget did not cover all decisions.
    :ivar unwritten: RMs whose registration's record must be written: for a finished pause, or a newly compiled
        configuration.
    :ivar deadlines: when an RM's core is due.
    """

    folder: StateFolder = field(default_factory=StateFolder)
    emitters: dict[str, Emitter] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    unexhausted: dict[str, None] = field(default_factory=dict)
    unwritten: dict[str, None] = field(default_factory=dict)
    deadlines: Deadlines = field(default_factory=Deadlines)

    @property
    def stamps(self) -> Stamps:
        """The stamp of the partition."""
        return self.folder.stamps

    def outcome(self, rm_id: str) -> Outcome:
        """Returns the RM's outcome that is not yet written, to add to it."""
        out = self.outcomes.get(rm_id)
        if out is None:
            out = self.outcomes[rm_id] = Outcome()
        return out

    def drop(self, rm_id: str, kept: ForgottenRm) -> None:
        """Removes an RM that is forgotten, except its numbers. The caller has taken its emitter and its outcome."""
        self.folder.rms.pop(rm_id)
        self.folder.forgotten[rm_id] = kept
        self.deadlines.set(rm_id, None)
        self.unexhausted.pop(rm_id, None)
        self.unwritten.pop(rm_id, None)
