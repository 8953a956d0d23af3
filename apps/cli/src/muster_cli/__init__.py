"""The command line, and the composition of the services."""

import gc
import os

# Modules that load leave no garbage. Collections while they load cost a tenth of a command's start; Python's own
# threshold would make 400 of them. What serves sets its own thresholds (gc_tuning.py).
gc.set_threshold(10_000)

# gRPC's core writes to standard error past the log: a line for each connection without proper TLS, so as many as
# anybody likes. What matters raises an error here. (It reads this once, when it is loaded.)
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
