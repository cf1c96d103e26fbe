// One launcher per kernel family: from arguments and knobs to the family's parameters and a launch. That of
// sm90 is in launch.cpp, with what they share; the others are in launch_mma.cpp.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/schedule.cuh"
#include "runtime/gemm.h"

namespace cudal2 {

int launch_sm90(const KernelInfo& kernel, const LaunchKnobs& knobs, const GemmArgs& args, const LaunchContext& context);
int launch_wmma(const KernelInfo& kernel, const LaunchKnobs& knobs, const GemmArgs& args, const LaunchContext& context);
int launch_multistage(const KernelInfo& kernel, const LaunchKnobs& knobs, const GemmArgs& args,
                      const LaunchContext& context);
int launch_direct(const KernelInfo& kernel, const LaunchKnobs& knobs, const GemmArgs& args,
                  const LaunchContext& context);

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Tiles of C and the order in which CTAs, or clusters, take them.
TileOrder tile_order(const KernelInfo& kernel, const LaunchKnobs& knobs, const GemmArgs& args);

// Launches kernel.function with `params`, a pointer to its one parameter.
cudaError_t launch_grid(const KernelInfo& kernel, const LaunchKnobs& knobs, dim3 grid, void* params, void* stream);

// How many CTAs share tiles of the problem through the workspace, which then has KernelInfo::partials partial tiles for
// each of them; 0: none do, each tile is one CTA's. Split-K: knobs.split for each tile. Stream-K: knobs.ctas, but at
// most one per (tile, k block) pair; under sm90 the grid, where some tiles do not make whole waves of it.
int64_t sharing_ctas(const KernelInfo& kernel, const LaunchKnobs& knobs, const GemmArgs& args);

}  // namespace cudal2
