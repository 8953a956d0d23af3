"""A sorted line of which mostly the first entry is read: of the applications in a leaf that have something to try.

With each allocation, an application leaves the line and enters it at another place. ``SortedList`` would serve as well,
but it is written for any values and many uses, and costs several times as much for each change. It also is never
compiled.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Any

# A list of so many entries is searched and shifted in less time than a second list costs.
CHUNK_MAX = 512

Entry = tuple[Any, ...]


class SortedQueue:
    """Entries in ascending order. No two entries are equal."""

    __slots__ = ("_chunks",)

    def __init__(self) -> None:
        # Parts of the line, in order. None is empty, except the only one.
        self._chunks: list[list[Entry]] = [[]]

    def __bool__(self) -> bool:
        return len(self._chunks[0]) > 0

    def __len__(self) -> int:
        return sum([len(chunk) for chunk in self._chunks])

    def __iter__(self) -> Iterator[Entry]:
        for chunk in self._chunks:
            yield from chunk

    def first(self) -> Entry:
        """The first entry. The line must not be empty."""
        return self._chunks[0][0]

    def add(self, entry: Entry) -> None:
        """Adds an entry."""
        chunks = self._chunks
        index = self._place(entry) if len(chunks) > 1 else 0
        chunk = chunks[index]
        insort(chunk, entry)
        if len(chunk) > CHUNK_MAX:
            half = CHUNK_MAX // 2
            chunks.insert(index + 1, chunk[half:])
            del chunk[half:]

    def remove(self, entry: Entry) -> None:
        """Removes an entry that is in the line."""
        chunks = self._chunks
        index = self._place(entry) if len(chunks) > 1 else 0
        chunk = chunks[index]
        spot = bisect_left(chunk, entry)
        assert chunk[spot] == entry, f"{entry} is not in the line"
        del chunk[spot]
        if len(chunks) > 1 and len(chunk) < CHUNK_MAX // 4:
            self._join(index)

    def clear(self) -> None:
        """Removes all entries."""
        self._chunks = [[]]

    def _place(self, entry: Entry) -> int:
        """The first chunk that ends with the entry or behind it; if there is none, the last chunk."""
        chunks = self._chunks
        low, high = 0, len(chunks) - 1
        while low < high:
            middle = (low + high) // 2
            if chunks[middle][-1] < entry:
                low = middle + 1
            else:
                high = middle
        return low

    def _join(self, index: int) -> None:
        """Joins a small chunk with a neighbour that has room for it."""
        chunks = self._chunks
        left_index = index if index + 1 < len(chunks) else index - 1
        if not chunks[index]:
            del chunks[index]
        elif len(chunks[left_index]) + len(chunks[left_index + 1]) <= CHUNK_MAX // 4 * 3:
            chunks[left_index] += chunks[left_index + 1]
            del chunks[left_index + 1]

    def __repr__(self) -> str:
        return f"SortedQueue({list(self)})"
