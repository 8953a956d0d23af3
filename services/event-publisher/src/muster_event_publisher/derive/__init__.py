"""Derived topics: one topic for each kind of event, and usage in windows (docs/usage.md).

``fan_out.py`` and ``usage.py`` are pure. ``batches.py`` combines them for one partition of ``si.events``. Two drivers
feed it: ``plain.py`` uses transactions of the log, ``faust_app.py`` uses Faust on Kafka. ``rest.py`` answers requests
from ``si.usage``.
"""
