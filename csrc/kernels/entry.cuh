// From a kernel's config to its registry entry, for every family.
// A kernel's host stub has internal linkage (CUDA 13), so its address must be taken in the file that instantiates it.
#pragma once

#include "kernels/element.cuh"
#include "runtime/launch.h"
#include "runtime/registry.h"

namespace cudal2 {

template <class Config>
KernelInfo entry_of(const char* name, const char* family, const void* function, decltype(KernelInfo::launch) launch) {
  KernelInfo info;
  info.name = name;
  info.family = family;
  info.dtype = Config::kDType;
  info.layout = Config::kLayout;
  info.bm = Config::BM;
  info.bn = Config::BN;
  info.bk = Config::BK;
  info.stages = Config::kStages;
  info.cluster_m = Config::kClusterM;
  info.cluster_n = Config::kClusterN;
  info.split = Config::kSplit;
  info.threads = Config::kThreads;
  info.smem_bytes = Config::kSmem;
  info.min_arch = Config::kMinArch;
  info.max_arch = Config::kMaxArch;
  info.vector = Config::kVector;
  info.k_multiple = Config::kMultipleOfK;
  info.max_tiles_n = Config::kMaxTilesN;
  info.stream_k = Config::kStreamK;
  info.workspace = Config::kWorkspace;
  info.function = function;
  info.launch = launch;
  return info;
}

}  // namespace cudal2
