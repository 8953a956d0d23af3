"""The command line, and the composition of the services."""

import gc

# Modules that load leave no garbage. Collections while they load cost a tenth of a command's start; Python's own
# threshold would make 400 of them. What serves sets its own thresholds (garbage.py).
gc.set_threshold(10_000)
