"""The rows of ``neighbours_bench``: others beside which a quiet RM is measured. One module for each kind.

A module of this package that has ``ROWS`` (a tuple of :class:`~bench.neighbours.rows.Row`) adds them; there is no list.
"""
