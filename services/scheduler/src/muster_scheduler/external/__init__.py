"""Informers and event handlers: how resources that the RM does not know reach the scheduler (seed 004)."""
