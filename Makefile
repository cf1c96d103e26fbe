# Everything from nothing, on a fresh clone, with or without a GPU:
#
#   make demo     set up .venv, build, run the demo
#   make test     set up .venv, build, run the tests
#   make build    set up .venv, compile what has changed (make kernels: the same)
#   make lint     ruff, mypy, clang-format      make format     rewrite to what lint wants
#   make wheel    dist/*.whl                    make clean      remove what was built (make distclean: .venv too)
#
# Settings: PYTHON, TORCH (make test TORCH=torch==2.14.1), and the environment variables that setup.py reads.

PYTHON ?= python3
TORCH ?= torch==2.13.0

# The CUDA compiler, for a machine that has none: in a folder of its own, where it cannot meet the CUDA packages of torch.
CUDA_WHEELS := nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 \
               nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85

VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check
PIP_INSTALL := $(PIP) install --progress-bar off
CUDA := $(abspath $(VENV))/cuda/nvidia/cu13
WITH_CUDA := if [ -x $(CUDA)/bin/nvcc ]; then export CUDA_HOME="$${CUDA_HOME:-$(CUDA)}"; fi;
CXX_FILES = $(shell find csrc -name '*.cpp' -o -name '*.h' -o -name '*.cuh')

# Stamps, named after what they were made for: another TORCH is another stamp.
TOOLS := $(VENV)/tools-$(TORCH)
INSTALLED := $(VENV)/installed-$(TORCH)

.DEFAULT_GOAL := build
.PHONY: demo test build kernels wheel lint format clean distclean

demo: build
	$(VENV)/bin/cudal2 demo

test: build
	$(PY) -m pytest tests -q

# The install is editable: Python files are live, and this compiles the native ones that have changed.
build: $(INSTALLED)
	@$(WITH_CUDA) $(PY) -m build_tools

kernels: build

wheel: $(INSTALLED)
	@$(WITH_CUDA) $(PIP) wheel --no-build-isolation --no-deps -w dist .

lint: $(TOOLS)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/clang-format --dry-run -Werror $(CXX_FILES)

format: $(TOOLS)
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .
	$(VENV)/bin/clang-format -i $(CXX_FILES)

clean:
	rm -rf build dist *.egg-info cudal2/lib cudal2/plans cudal2/_*.so $(VENV)/installed-*

distclean: clean
	rm -rf $(VENV)

$(PY):
	$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 10) else "cudal2 needs Python 3.10 or later: set PYTHON")'
	$(PYTHON) -m venv $(VENV)

$(TOOLS): pyproject.toml Makefile | $(PY)
	$(PY) -m build_tools.requirements dev > $(VENV)/requirements.txt
	$(PIP_INSTALL) '$(TORCH)' -r $(VENV)/requirements.txt
	rm -f $(VENV)/tools-* $(VENV)/installed-*
	touch $@

$(INSTALLED): $(TOOLS) setup.py
	$(PY) -m build_tools nvcc || $(PIP_INSTALL) --no-deps --upgrade --target $(VENV)/cuda $(CUDA_WHEELS)
	@$(WITH_CUDA) $(PY) -m build_tools
	@$(WITH_CUDA) $(PIP_INSTALL) --no-build-isolation -e .
	touch $@
