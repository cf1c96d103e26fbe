"""The `cudal2` command: info, verify, explain, demo, bench, report. Errors are one line on stderr."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

import cudal2
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
PIPE_CLOSED = 141
"""As a shell reports an end by SIGINT or SIGPIPE."""


def main(argv: list[str] | None = None) -> int:
    """Run the command line (default: sys.argv's). Returns the exit code: 0, or 1 on failed checks, 2 on an error."""
    parser = argparse.ArgumentParser(prog="cudal2", description="Searched half-precision GEMM kernels for PyTorch.")
    parser.add_argument("--version", action="version", version=f"cudal2 {cudal2.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="{" + ",".join(_COMMANDS) + "}")
    arguments = sys.argv[1:] if argv is None else argv
    for name, (module, text) in _COMMANDS.items():
        formatter = argparse.RawDescriptionHelpFormatter
        command = commands.add_parser(name, help=text, description=module.__doc__, formatter_class=formatter)
        if name in arguments[:1]:  # the others' options would be loaded for nothing
            module.add_arguments(command)
    try:
        options, unknown = parser.parse_known_args(arguments)
        module = _COMMANDS[options.command][0]
        if unknown and getattr(module, "available", True):  # what cannot run here cannot tell its options either
            parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    except SystemExit as exit_:  # argparse has printed why
        return exit_.code if isinstance(exit_.code, int) else USAGE_ERROR
    try:
        code = int(module.run(options))
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader has seen enough, as `head` has
        _discard_stdout()
        return PIPE_CLOSED
    except (ValueError, RuntimeError, OSError, ArithmeticError) as error:
        print(f"cudal2 {options.command}: {_text(error)}", file=sys.stderr)
        return USAGE_ERROR


def _text(error: Exception) -> str:
    """What went wrong; for a file, its name and the reason, without the number that Python puts first."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def _discard_stdout() -> None:
    """Send what Python still flushes at exit to nowhere: the pipe would fail again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
