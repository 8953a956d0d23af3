"""The whole of Muster in one process, in virtual time. See README.md beside this file."""
