"""The stamp of a log partition (``muster_si.positions``), as the scheduler moves it and as followers fold it.

The scheduler writes what it decided for a resource manager in one go: first the RM's object, with a stamp and the
number of state records that follow, then those. All of it is in one transaction, but a reader may get a part of it
first.
"""

from __future__ import annotations

from muster_si.positions import NO_STAMP, Stamp


class Stamps:
    """The present stamp. It never goes back.

    The scheduler moves it: with each request, and with each go that no request precedes. A new owner of the partition
    goes on from what it has folded.
    """

    def __init__(self) -> None:
        self._now = self._recorded = NO_STAMP
        self._has_more = False
        self._whole = NO_STAMP
        self._missing = 0  # records of the newest stamp that are not folded

    # ---- the scheduler ---------------------------------------------------------------------------------------------

    def note_request(self, offset: int) -> None:
        """What follows is decided behind the request with this offset.

        (In a log that is a copy, requests may have lower offsets than those that the stamps are of.)
        """
        if offset >= self._now.before:
            self._now, self._has_more = Stamp(offset + 1), False
        else:
            self._has_more = True

    def note_step(self) -> None:
        """What follows is caused by time, or is in a record that is still to come."""
        self._has_more = True

    def begin(self) -> None:
        """What follows is written in another go: each record that has a stamp has one of its own."""
        if self.now == self._recorded:
            self._has_more = True

    def record(self) -> Stamp:
        """Returns the stamp of a record that is written now."""
        self.begin()
        self._recorded = self.now
        return self._recorded

    @property
    def now(self) -> Stamp:
        """The stamp of what is written now."""
        if self._has_more:
            self._now, self._has_more = Stamp(self._now.before, self._now.step + 1), False
        return self._now

    # ---- followers -------------------------------------------------------------------------------------------------

    def fold(self, before: int, step: int, records: int = 0) -> None:
        """Folds a recorded stamp.

        :param records: how many records of it follow.
        """
        if (before, step) > self._now:
            self._whole, self._now = self._now, Stamp(before, step)
            self._missing = records
            self._update_folded()

    def fold_record(self) -> None:
        """Folds one of the records that follow."""
        if self._missing:
            self._missing -= 1
            self._update_folded()

    def fold_all(self) -> None:
        """All records up to now are folded."""
        self._missing = 0
        self._update_folded()

    @property
    def folded(self) -> Stamp:
        """The newest stamp of which all records are folded."""
        return self._whole

    def _update_folded(self) -> None:
        if not self._missing:
            self._whole = self._now
