"""The exceptions of simulations, in one tree.

* WhatIfError               one clear line for the user
  x WorkloadWrong           a trace cannot be read: names the file, the line, the value, and what was expected
  x ScenarioWrong           a configuration or a change of the nodes cannot be used
"""

from __future__ import annotations


class WhatIfError(Exception):
    """Root of the tree above."""


class WorkloadWrong(WhatIfError):
    """A trace, or the generator's description, cannot be read."""


class ScenarioWrong(WhatIfError):
    """A configuration, or a change of the nodes, cannot be used."""
