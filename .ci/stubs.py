"""Put a copy of webapp.py into the wheel, from which type checkers read the types.

pyproject.toml names this file as a build hook of hatchling.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class StubsHook(BuildHookInterface):
    """Copy the file aside, because a build takes each file of the project only once."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        self.folder = tempfile.TemporaryDirectory()
        stubs = Path(self.folder.name, "__init__.pyi")
        shutil.copyfile(Path(self.root, "webapp.py"), stubs)
        for included in ("force_include", "force_include_editable"):
            build_data[included][str(stubs)] = "webapp-stubs/__init__.pyi"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        self.folder.cleanup()
