// What a generated file of the sm90 family instantiates.
#pragma once

#include "kernels/entry.cuh"
#include "kernels/sm90.cuh"

namespace cudal2 {

template <class Config>
KernelInfo sm90_entry(const char* name) {
  KernelInfo info = entry_of<Config>(name, "sm90", reinterpret_cast<const void*>(&sm90_gemm<Config>), &launch_sm90);
  info.tma_store = Config::kTmaStore;
  info.swap = Config::kSwap;
  return info;
}

}  // namespace cudal2
