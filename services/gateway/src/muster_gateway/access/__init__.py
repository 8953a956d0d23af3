"""Who may come in: tokens, and the door of gRPC. ``authentication.py`` beside this folder puts the parts together."""
