"""Plays a workload through the scheduler's core in virtual time, under any configuration. See README.md here."""
