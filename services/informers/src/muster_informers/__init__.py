"""Informers and event handlers report resources that the RM does not know to the scheduler (the event handler
framework).
"""
