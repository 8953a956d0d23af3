"""The informers that come with Muster."""
