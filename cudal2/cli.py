"""The `cudal2` command: info, verify, explain, demo, bench, report. Errors are one line on stderr."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from cudal2 import demo, explain, info, verify
from cudal2.bench import bench, report

_COMMANDS: dict[str, tuple[Any, str]] = {
    "info": (info, "what this build can do on this machine"),
    "verify": (verify, "check that kernels compute rightly"),
    "explain": (explain, "which kernel a shape runs, why, and how long it takes"),
    "demo": (demo, "the linear layers of a Llama-3-8B block, checked and timed against torch.matmul"),
    "bench": (bench, "time cudal2 beside torch, cuBLAS and cuBLASLt, in any mode"),
    "report": (report, "one page and plots from the results of bench"),
}

USAGE_ERROR = 2
INTERRUPTED = 130


def main(argv: list[str] | None = None) -> int:
    """Run the command line (default: sys.argv's). Returns the exit code: 0, or 1 on failed checks, 2 on an error."""
    parser = argparse.ArgumentParser(prog="cudal2", description="Searched half-precision GEMM kernels for PyTorch.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="{" + ",".join(_COMMANDS) + "}")
    arguments = sys.argv[1:] if argv is None else argv
    for name, (module, text) in _COMMANDS.items():
        formatter = argparse.RawDescriptionHelpFormatter
        command = commands.add_parser(name, help=text, description=module.__doc__, formatter_class=formatter)
        if name in arguments[:1]:  # the others' options would be loaded for nothing
            module.add_arguments(command)
    try:
        options = parser.parse_args(arguments)
    except SystemExit as exit_:  # argparse has printed why
        return exit_.code if isinstance(exit_.code, int) else USAGE_ERROR
    try:
        return _COMMANDS[options.command][0].run(options)
    except KeyboardInterrupt:
        return INTERRUPTED
    except (ValueError, RuntimeError, OSError, ArithmeticError) as error:
        print(f"cudal2 {options.command}: {error}", file=sys.stderr)
        return USAGE_ERROR
