"""The `cudal2` command: info, verify, explain, demo. Errors are one line on stderr."""

from __future__ import annotations

import argparse
import sys

from cudal2 import demo, explain, info, verify

_COMMANDS = {
    "info": (info, "what this build can do on this machine"),
    "verify": (verify, "check that kernels compute rightly"),
    "explain": (explain, "which kernel a shape runs, why, and how long it takes"),
    "demo": (demo, "the linear layers of a Llama-3-8B block, checked and timed against torch.matmul"),
}

USAGE_ERROR = 2
INTERRUPTED = 130


def main(argv: list[str] | None = None) -> int:
    """Run the command line (default: sys.argv's). Returns the exit code: 0, or 1 on failed checks, 2 on an error."""
    parser = argparse.ArgumentParser(prog="cudal2", description="Searched half-precision GEMM kernels for PyTorch.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="{" + ",".join(_COMMANDS) + "}")
    for name, (module, text) in _COMMANDS.items():
        module.add_arguments(commands.add_parser(name, help=text, description=module.__doc__))
    try:
        options = parser.parse_args(argv)
    except SystemExit as exit_:  # argparse has printed why
        return exit_.code if isinstance(exit_.code, int) else USAGE_ERROR
    try:
        return _COMMANDS[options.command][0].run(options)
    except KeyboardInterrupt:
        return INTERRUPTED
    except (ValueError, RuntimeError, OSError) as error:
        print(f"cudal2 {options.command}: {error}", file=sys.stderr)
        return USAGE_ERROR
