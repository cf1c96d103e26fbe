"""Runs nvcc and fails where ptxas had to spill registers or warns that it lost performance.

    python nvcc_checked.py SOURCE OBJECT -- nvcc ... -Xptxas -v ... -c SOURCE -o OBJECT

Both are bugs in a tuned kernel that would otherwise only show as time: a spill goes through local memory; C75xx (such
as C7510, wgmma serialized) says that instructions meant to overlap no longer do. ptxas's figures for each kernel
(registers, shared memory) are kept beside the object as OBJECT.ptxas. Needs the standard library alone.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

_PERFORMANCE = re.compile(r"\(C75\d\d\).*")
_FUNCTION = re.compile(r"ptxas info\s*:\s*(?:Compiling entry function '|Function properties for )(?P<name>[\w$.]+)")
_SPILL = re.compile(r"(?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads")
_IN_FUNCTION = re.compile(r"in (?:the )?function '(?P<name>[^']+)'")
_INFO = re.compile(r"^(?:ptxas info\b.*|\s+\d+ bytes stack frame,.*)$")


def problems(ptxas: str) -> list[tuple[str, str]]:
    """What is wrong in ptxas's output (`-v`), as (mangled kernel name or "", what), each once and in order."""
    found: list[tuple[str, str]] = []
    function = ""
    for line in ptxas.splitlines():
        if performance := _PERFORMANCE.search(line):
            named = _IN_FUNCTION.search(line)
            found.append((named["name"] if named else "", performance[0].strip()))
        elif entry := _FUNCTION.search(line):
            function = entry["name"]
        elif (spill := _SPILL.search(line)) and int(spill["stores"]) + int(spill["loads"]) > 0:
            named = _IN_FUNCTION.search(line)
            what = f"spills registers: {spill['stores']} bytes stored, {spill['loads']} bytes loaded"
            found.append((named["name"] if named else function, what))
    return list(dict.fromkeys(found))


def report(source: str, found: list[tuple[str, str]]) -> str:
    """The message for `found`: one line each, with the kernel's demangled name."""
    names = _demangle([name for name, _ in found])
    lines = [f"{source}: {name or 'unknown kernel'}: {what}" for name, (_, what) in zip(names, found)]
    return "\n".join(["cudal2: ptxas could not compile these kernels as written:", *lines])


def without_info(output: str) -> str:
    """`output` less ptxas's figures, which are too many to read on every build."""
    return "\n".join(line for line in output.splitlines() if not _INFO.match(line))


def main(arguments: list[str]) -> int:
    """Run the command after ``--``; its exit status, or 1 (and no object) where ptxas's output shows a problem."""
    source, target, dashes, *command = arguments
    if dashes != "--" or not command:
        print("usage: nvcc_checked.py SOURCE OBJECT -- nvcc ...", file=sys.stderr)
        return 2
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if remaining := without_info(run.stdout).strip():
        print(remaining, file=sys.stderr)
    if run.returncode:
        return run.returncode
    if found := problems(run.stdout):
        print(report(source, found), file=sys.stderr)
        Path(target).unlink(missing_ok=True)
        return 1
    Path(target + ".ptxas").write_text(run.stdout, encoding="utf-8")
    return 0


def _demangle(names: list[str]) -> list[str]:
    """C++ names as written in the source, where the tool for it is installed."""
    tool = shutil.which("c++filt")
    if not tool or not names:
        return names
    run = subprocess.run([tool], input="\n".join(names), capture_output=True, text=True)
    lines = run.stdout.splitlines()
    return lines if run.returncode == 0 and len(lines) == len(names) else names


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
