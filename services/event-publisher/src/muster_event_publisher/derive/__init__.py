"""Derived topics: one topic for each kind of event, and usage in windows (docs/usage.md).

``fan_out.py`` and ``usage_fold.py`` are pure. ``partition_deriver.py`` combines them for one partition of
    ``si.events``. Two drivers
feed it: ``transactional_driver.py`` uses transactions of the log, ``faust_app.py`` uses Faust on Kafka.
``usage_rest.py`` answers requests from ``si.usage``.
"""
