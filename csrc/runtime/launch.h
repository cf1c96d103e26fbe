// One launcher per kernel family: from arguments and knobs to the family's parameters and cudaLaunchKernelEx.
#pragma once

#include "runtime/gemm.h"

namespace cudal2 {

int launch_sm90(const KernelInfo& kernel, const LaunchKnobs& knobs, const GemmArgs& args, void* stream);
int launch_wmma(const KernelInfo& kernel, const LaunchKnobs& knobs, const GemmArgs& args, void* stream);

}  // namespace cudal2
