"""What is derived from ``si.events``: a topic for each kind of event, and usage in windows (docs/usage.md).

``fan_out.py`` and ``usage.py`` are pure. ``batches.py`` puts them together for one partition; two drivers feed that:
``plain.py`` in transactions of the log, ``faust_app.py`` by Faust on Kafka. ``rest.py`` answers what ``si.usage`` says.
"""
