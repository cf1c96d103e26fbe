"""TORCH_CUDA_ARCH_LIST -> the architectures to compile for.

The list has torch's own syntax ("8.0;9.0a", spaces or commas too, "8.6+PTX", "Hopper"). 9.0 is promoted to 9.0a, since
that is what the Hopper kernels' instructions (wgmma, setmaxnreg) need and what every 9.0 device runs.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from build_tools.errors import BuildError

DEFAULT = "8.0;9.0a"

FIRST_TENSOR_CORES = (7, 0)

NAMED = {
    "volta": "7.0",
    "turing": "7.5",
    "ampere": "8.0;8.6",
    "ada": "8.9",
    "hopper": "9.0a",
    "blackwell": "10.0;10.3;12.0;12.1",
}

_ENTRY = re.compile(r"(?P<major>\d+)\.(?P<minor>\d)(?P<suffix>[af]?)(?P<ptx>\+PTX)?", re.IGNORECASE)


@dataclass(frozen=True, order=True)
class Arch:
    """One architecture: compute capability, suffix (a: it alone, f: its family), and whether PTX is kept too."""

    major: int
    minor: int
    suffix: str = ""
    ptx: bool = False

    @property
    def number(self) -> str:
        """Digits and suffix as nvcc spells them, e.g. ``90a``."""
        return f"{self.major}{self.minor}{self.suffix}"

    @property
    def sm(self) -> str:
        """The real architecture, e.g. ``sm_90a``."""
        return f"sm_{self.number}"

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}{self.suffix}" + ("+PTX" if self.ptx else "")

    @property
    def is_hopper(self) -> bool:
        """Whether the kernels in generated_kernels/sm90 are compiled for it."""
        return (self.major, self.minor, self.suffix) == (9, 0, "a")

    def gencode(self) -> list[str]:
        """nvcc flags that compile for it. PTX drops the suffix: later devices could not run a suffixed one."""
        flags = [f"-gencode=arch=compute_{self.number},code=sm_{self.number}"]
        if self.ptx:
            plain = f"{self.major}{self.minor}"
            flags.append(f"-gencode=arch=compute_{plain},code=compute_{plain}")
        return flags


def parse(text: str | None) -> list[Arch]:
    """Architectures that `text` names, sorted, each once; of DEFAULT if it is None or blank. Raises BuildError."""
    entries = [entry for entry in re.split(r"[;,\s]+", text or "") if entry] or DEFAULT.split(";")
    found: dict[str, Arch] = {}
    for entry in entries:
        for arch in _expand(entry, text or DEFAULT):
            known = found.get(arch.number)
            found[arch.number] = Arch(
                arch.major, arch.minor, arch.suffix, arch.ptx or (known is not None and known.ptx)
            )
    return sorted(found.values())


def _expand(entry: str, text: str) -> list[Arch]:
    name, plus, _ = entry.partition("+")
    if name.lower() in NAMED:
        # torch's rule for a name with PTX: the PTX of its last architecture.
        return [_number(number, text) for number in (NAMED[name.lower()] + ("+PTX" if plus else "")).split(";")]
    return [_number(entry, text)]


def _number(entry: str, text: str) -> Arch:
    match = _ENTRY.fullmatch(entry)
    if not match:
        raise BuildError(
            f"TORCH_CUDA_ARCH_LIST={text!r}: {entry!r} is not an architecture. Expected a list such as '{DEFAULT}': "
            "numbers like 8.0, 9.0a or 8.6+PTX, or names "
            f"({', '.join(name.capitalize() for name in NAMED)}), separated by ';' or spaces."
        )
    major, minor, suffix = int(match["major"]), int(match["minor"]), match["suffix"].lower()
    if (major, minor) < FIRST_TENSOR_CORES:
        raise BuildError(
            f"TORCH_CUDA_ARCH_LIST={text!r}: architecture {entry} has no tensor cores, and so no cudal2 kernel. "
            "Leave it out."
        )
    if (major, minor) == (9, 0) and not suffix:
        suffix = "a"
    return Arch(major, minor, suffix, bool(match["ptx"]))


def check_supported(archs: list[Arch], known: Collection[str], nvcc: str) -> None:
    """Raise BuildError unless nvcc's own list (`known`, such as {"sm_80", "sm_90"}) has each of `archs`."""
    for arch in archs:
        # nvcc lists only the plain names; a suffixed variant comes with them.
        if f"sm_{arch.major}{arch.minor}" not in known:
            numbers = sorted((name.removeprefix("sm_") for name in known), key=lambda number: (len(number), number))
            raise BuildError(
                f"TORCH_CUDA_ARCH_LIST: {nvcc} cannot compile for {arch}; it knows "
                f"{', '.join(f'{number[:-1]}.{number[-1]}' for number in numbers)}."
            )
