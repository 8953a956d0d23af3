"""Project, image and changelog have the same version."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_project_image_and_changelog_have_one_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    image = re.findall(r'image\.version="([^"]*)"', (ROOT / "deploy/compose/Dockerfile").read_text())
    newest = re.findall(r"^## (\d+\.\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0]
    assert (image, newest) == ([version], version)
