"""History: stores outside of the log that keep every tracking event (``sink.py`` has the contract)."""
