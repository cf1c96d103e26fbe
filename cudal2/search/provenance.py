"""Where measurements come from: what every table and results file says in its head."""

from __future__ import annotations

import datetime
import os
import subprocess
from pathlib import Path

import torch

from cudal2.search import cublaslt


def provenance(device: int = 0) -> dict[str, str]:
    """GPU, versions, date and commit, for a table measured on this device."""
    properties = torch.cuda.get_device_properties(device)
    return {
        "gpu": properties.name,
        "arch": f"{properties.major}.{properties.minor}",
        "sms": str(properties.multi_processor_count),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
        "torch": torch.__version__,
        "cuda": torch.version.cuda or "none",
        "cublas": _cublas_version(),
        "driver": _driver_version(),
        "commit": _commit(),
    }


def _cublas_version() -> str:
    try:
        return cublaslt.version()
    except cublaslt.LtError:
        return "unknown"


def _driver_version() -> str:
    try:
        with open("/proc/driver/nvidia/version") as file:
            words = file.readline().split()
        return next(word for word in words if word[0].isdigit() and "." in word)
    except (OSError, StopIteration):
        return "unknown"


def _commit() -> str:
    """CUDAL2_COMMIT where it is set (for a copy of the tree without git's data), else git's."""
    if named := os.environ.get("CUDAL2_COMMIT"):
        return named
    try:
        root = Path(__file__).parents[2]
        run = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=root, capture_output=True, text=True)
    except OSError:
        return "unknown"
    return run.stdout.strip() or "unknown"
