// What a generated file of the multistage family instantiates.
#pragma once

#include "kernels/entry.cuh"
#include "kernels/multistage.cuh"

namespace cudal2 {

template <class Config>
KernelInfo multistage_entry(const char* name) {
  return entry_of<Config>(name, "multistage", reinterpret_cast<const void*>(&multistage_gemm<Config>),
                          &launch_multistage);
}

}  // namespace cudal2
