// What a generated file of the direct family instantiates.
#pragma once

#include "kernels/direct.cuh"
#include "kernels/entry.cuh"

namespace cudal2 {

template <class Config>
KernelInfo direct_entry(const char* name) {
  return entry_of<Config>(name, "direct", reinterpret_cast<const void*>(&direct_gemm<Config>), &launch_direct);
}

}  // namespace cudal2
