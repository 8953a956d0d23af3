"""The event handlers that come with Muster (entry points of ``muster.event_handlers``)."""
