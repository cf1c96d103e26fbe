"""The native build of a working tree.

python -m build_tools                     compile what has changed, into cudal2/
python -m build_tools build --keep-going  the same; a failure does not keep the rest from being compiled
python -m build_tools nvcc                print the nvcc that would be used; exits 1 if there is none
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from build_tools import cuda, native
from build_tools.errors import BuildError


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m build_tools", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", nargs="?", choices=("build", "nvcc"), default="build")
    parser.add_argument("--keep-going", action="store_true")
    arguments = parser.parse_args()
    root = Path(__file__).resolve().parents[1]
    if arguments.action == "nvcc":
        nvcc = cuda.find_nvcc()
        print(nvcc or cuda.not_found_message(), file=sys.stdout if nvcc else sys.stderr)
        return 0 if nvcc else 1
    try:
        native.place(native.build(root, keep_going=arguments.keep_going), root / "cudal2", link_plans=True)
    except BuildError as error:
        print(f"cudal2: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
