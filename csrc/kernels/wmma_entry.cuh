// What a generated file of the wmma family instantiates.
#pragma once

#include "kernels/entry.cuh"
#include "kernels/wmma.cuh"

namespace cudal2 {

template <class Config>
KernelInfo wmma_entry(const char* name) {
  return entry_of<Config>(name, "wmma", reinterpret_cast<const void*>(&wmma_gemm<Config>), &launch_wmma);
}

}  // namespace cudal2
