"""Other projects' kernels that the benchmarks can run beside ours. Each is built on its own, never by the package."""
