"""Benchmarks. Each is a program; README.md says which measures what."""
