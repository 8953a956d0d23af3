"""Tests are for the source, unless `make test-compiled` runs them: to be imported before anything of Muster is.

(A folder's conftest.py may be imported before any hook is called.)
"""

import os

os.environ.setdefault("MUSTER_COMPILED", "0")
