"""Verdicts on queue configurations that the Musters of one test process share.

Most of them read the same few texts. Each text is read once, by a real process; without this each Muster would start
that process again, for a fifth of a second of a core.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import pytest
from muster_queue_config.sandboxed_parser import ParseResult, SandboxedParser
from muster_queue_config.settings import QueueConfigSettings

# What these test is the reading itself.
_OWN = ("test_bad_configuration", "test_neighbours")

_kept: dict[str, OrderedDict[bytes, ParseResult]] = {}  # by the settings


@pytest.fixture(scope="module", autouse=True)
def shared_verdicts(request: pytest.FixtureRequest) -> Iterator[None]:
    """Lets all Musters of a module know the verdicts of earlier ones with the same settings."""
    if request.path.stem in _OWN:
        yield
        return
    own = SandboxedParser.__init__

    def with_shared(self: SandboxedParser, settings: QueueConfigSettings, *more: Any) -> None:
        own(self, settings, *more)
        if more:  # (another sandbox is what its test is about)
            return
        self._kept = _kept.setdefault(settings.model_dump_json(), OrderedDict())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SandboxedParser, "__init__", with_shared)
        yield
