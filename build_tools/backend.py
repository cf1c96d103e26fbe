"""The build backend that pyproject.toml names: setuptools' own, which here asks for torch only where it is needed.

Torch's headers are taken from the environment that is installed into, if it has them; only where it has no torch does
pip fetch one for the build.
"""

from __future__ import annotations

import sys
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import (  # noqa: F401  (the backend's interface)
    build_editable,
    build_sdist,
    build_wheel,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

from build_tools import torch_headers
from build_tools.errors import BuildError


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    """What the build environment needs beyond build-system.requires."""
    return [*build_meta.get_requires_for_build_wheel(config_settings), *torch_requirement()]


def get_requires_for_build_editable(config_settings: Any = None) -> list[str]:
    """As for a wheel."""
    return [*build_meta.get_requires_for_build_editable(config_settings), *torch_requirement()]


def torch_requirement() -> list[str]:
    """torch, if neither the build environment nor the target environment has one. Ends the build if it is too old."""
    try:
        return [] if torch_headers.find() else [torch_headers.REQUIREMENT]
    except BuildError as error:
        sys.exit(f"cudal2: {error}")
