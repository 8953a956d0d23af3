"""A whole Muster under faults, from a seed, with an auditor outside of it (README.md beside this folder)."""
