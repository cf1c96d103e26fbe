"""The native build: finds the compilers and torch's headers, writes a ninja file, runs it, places the libraries.

setup.py drives it for pip; `python -m build_tools` does the same in place, for a working tree. Neither imports torch or
needs a GPU. One idea per module:

    arch           TORCH_CUDA_ARCH_LIST -> the architectures to compile for
    cuda           where nvcc is, what it is, what it can compile for
    torch_headers  where torch's headers and libraries are
    host           g++, ninja, pybind11, the Python interpreters to build the tooling module for
    ninja_file     what is compiled how: the only place that knows compiler flags
    nvcc_checked   the nvcc call itself: fails on register spills and on ptxas performance warnings
    native         the whole build, and where its results go
    backend        what pip calls: setuptools' backend, which asks for torch only where there is none
    requirements   pyproject.toml's pinned tools, for the Makefile
"""
