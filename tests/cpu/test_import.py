"""Importing cudal2: no CUDA, no warning, safe to fork after, clear where something is missing."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import cudal2

PACKAGE = Path(cudal2.__file__).parent
PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


def python(code: str, *options: str, path: Path = PACKAGE.parent) -> subprocess.CompletedProcess[str]:
    """Run `code` in a new interpreter that finds cudal2 in `path`."""
    head = f"import sys; sys.path.insert(0, {str(path)!r})\n"
    return subprocess.run(
        [sys.executable, *options, "-c", head + code], capture_output=True, text=True, timeout=300, check=False
    )


def test_import_initialises_no_cuda_and_warns_of_nothing() -> None:
    run = python(
        "import torch, warnings\n"
        "from pathlib import Path\n"
        "driver_loaded = lambda: 'libcuda.so' in Path('/proc/self/maps').read_text()\n"
        "before = driver_loaded()\n"
        "warnings.simplefilter('error')\n"
        "import cudal2\n"
        "assert not torch.cuda.is_initialized()\n"
        "assert driver_loaded() == before\n"
    )
    assert run.returncode == 0, run.stderr
    assert (run.stdout, run.stderr) == ("", "")


def test_fork_after_import() -> None:
    """TransformerEngine#872: a forked worker may use what its parent imported."""
    run = python(
        "import torch, cudal2, os, multiprocessing\n"
        "def work(queue):\n"
        "    device = 'cuda' if torch.cuda.is_available() else 'cpu'\n"
        "    a = torch.eye(64, dtype=torch.float16, device=device)\n"
        "    queue.put(cudal2.matmul(a, a).sum().item())\n"
        "context = multiprocessing.get_context('fork')\n"
        "queue = context.Queue()\n"
        "worker = context.Process(target=work, args=(queue,))\n"
        "worker.start(); print(queue.get(timeout=200)); worker.join()\n"
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "64.0"


def test_import_starts_no_thread() -> None:
    run = python(
        "import os, torch\n"
        "before = len(os.listdir('/proc/self/task'))\n"
        "import cudal2\n"
        "print(len(os.listdir('/proc/self/task')) - before)\n"
    )
    assert run.stdout.strip() == "0", run.stderr


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A folder with a copy of the package without its native libraries."""
    shutil.copytree(PACKAGE, tmp_path / "cudal2", ignore=shutil.ignore_patterns("*.so", "plans", "__pycache__"))
    return tmp_path


def test_a_source_tree_that_was_not_built(copied: Path) -> None:
    run = python("import cudal2", path=copied)
    assert "ImportError: cudal2's native library" in run.stderr
    assert "pip install -e ." in run.stderr
    assert "another folder" in run.stderr


def test_a_library_that_does_not_load(copied: Path) -> None:
    library = copied / "cudal2" / "lib" / "libcudal2_ops.so"
    library.parent.mkdir(exist_ok=True)
    library.write_bytes(b"not a library")
    run = python("import cudal2", path=copied)
    assert re.search(r"ImportError: cudal2's native library .* does not load under torch", run.stderr)


def test_version_is_the_packages() -> None:
    if not PYPROJECT.is_file():
        pytest.skip("not a source tree")
    match = re.search(r'^version = "(.*)"', PYPROJECT.read_text(), re.MULTILINE)
    assert match is None or match[1] == cudal2.__version__
    assert re.fullmatch(r"\d+\.\d+\.\d+", cudal2.__version__)


def test_public_names() -> None:
    for name in cudal2.__all__:
        assert hasattr(cudal2, name)
    assert {"matmul", "linear", "patch"} <= set(cudal2.__all__)
