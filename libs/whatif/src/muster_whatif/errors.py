"""The exceptions of simulations, in one tree.

* WhatIfError            one clear line for the user
  x InvalidWorkload      a trace cannot be read: names the file, the line, the value, and what was expected
  x InvalidScenario      a configuration or a change of the nodes cannot be used
  x ForecastUnavailable  a forecast cannot be made now: says why
  x ForecastBusy         too many forecasts are being made
"""

from __future__ import annotations


class WhatIfError(Exception):
    """Root of the tree above."""


class InvalidWorkload(WhatIfError):
    """A trace, or the generator's description, cannot be read."""


class InvalidScenario(WhatIfError):
    """A configuration, or a change of the nodes, cannot be used."""


class ForecastUnavailable(WhatIfError):
    """A forecast cannot be made now."""


class ForecastBusy(WhatIfError):
    """Too many forecasts are being made at a time."""
