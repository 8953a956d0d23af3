"""Where a benchmark's result goes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def put(result: Any, path: Path | None) -> None:
    """Writes a result as indented JSON: into a file, or (None) to standard output."""
    text = json.dumps(result, indent=2) + "\n"
    if path is None:
        sys.stdout.write(text)
    else:
        path.write_text(text)
