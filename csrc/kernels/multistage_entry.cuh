// What a generated file of the multistage family instantiates.
#pragma once

#include "kernels/entry.cuh"
#include "kernels/multistage.cuh"

namespace cudal2 {

template <class Config>
KernelInfo multistage_entry(const char* name) {
  KernelInfo info =
      entry_of<Config>(name, "multistage", reinterpret_cast<const void*>(&multistage_gemm<Config>), &launch_multistage);
  info.partials = 2;  // with stream-K a CTA may begin in one tile and end in another
  return info;
}

}  // namespace cudal2
