"""Who may come in: tokens, and the door of gRPC. ``identity.py`` beside this folder puts the parts together."""
