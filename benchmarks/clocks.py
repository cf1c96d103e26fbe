"""The GPU's clocks and power while a benchmark runs, read from NVML between problems."""

from __future__ import annotations

import ctypes
import statistics
from collections.abc import Callable

import torch

_SM, _MEMORY = 1, 2


class Clocks:
    """Samples of one GPU; without NVML (or under MIG) there are none, and the summary says so."""

    def __init__(self, device: int = 0):
        self._samples: list[tuple[int, int, int]] = []
        self._read = _reader(device)

    def sample(self) -> None:
        if self._read and (values := self._read()):
            self._samples.append(values)

    def summary(self) -> str:
        """SM and memory clock and power: median, and the range where it varies."""
        if not self._samples:
            return "unknown"
        columns = zip(*self._samples, strict=True)
        texts = ("SM {} MHz", "memory {} MHz", "power {} W")
        return ", ".join(text.format(_spread(values)) for text, values in zip(texts, columns, strict=True))


def _spread(values: tuple[int, ...]) -> str:
    middle = f"{statistics.median(values):.0f}"
    return middle if min(values) == max(values) else f"{middle} ({min(values)} to {max(values)})"


def _reader(device: int) -> Callable[[], tuple[int, int, int] | None] | None:
    """A function that gives SM MHz, memory MHz and watts, or None where there is no NVML for the device."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        uuid = str(torch.cuda.get_device_properties(device).uuid)
    except (OSError, AttributeError, RuntimeError, AssertionError):
        return None
    handle = ctypes.c_void_p()
    if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}".encode(), ctypes.byref(handle)):
        return None

    def read() -> tuple[int, int, int] | None:
        values = [ctypes.c_uint() for _ in range(3)]
        sm, memory, power = map(ctypes.byref, values)
        failed = (
            nvml.nvmlDeviceGetClockInfo(handle, _SM, sm)
            or nvml.nvmlDeviceGetClockInfo(handle, _MEMORY, memory)
            or nvml.nvmlDeviceGetPowerUsage(handle, power)
        )
        return None if failed else (values[0].value, values[1].value, values[2].value // 1000)

    return read
