"""Informers and event handlers: they bring resources that the RM does not know to the scheduler (the event handler
framework).
"""
