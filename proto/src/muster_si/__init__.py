"""The scheduler interface's words that are no messages: its constants (``constants.py``). Written by hand; pure."""
