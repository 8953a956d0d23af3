"""The event publisher: reads ``si.events``, keeps the ring, answers REST, writes history. It changes nothing.

``app.PublisherService`` is the service, ``settings.PublisherSettings`` its settings. (Nothing is imported here: reading
the settings must not load an HTTP server.)
"""
