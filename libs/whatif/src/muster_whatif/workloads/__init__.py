"""Readers of traces, and a generator. Each returns a Workload."""
