// From an Sm90Config to its registry entry: what a generated file of this family instantiates.
// A kernel's host stub has internal linkage (CUDA 13), so its address must be taken in the file that instantiates it.
#pragma once

#include "kernels/sm90.cuh"
#include "runtime/launch.h"
#include "runtime/registry.h"

namespace cudal2 {

template <class Config>
KernelInfo sm90_entry(const char* name) {
  KernelInfo info;
  info.name = name;
  info.family = "sm90";
  info.dtype = std::is_same_v<typename Config::T, f16> ? DType::f16 : DType::bf16;
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
  info.min_arch = 90;
  info.max_arch = 90;
  info.function = reinterpret_cast<const void*>(&sm90_gemm<Config>);
  info.launch = &launch_sm90;
  return info;
}

}  // namespace cudal2
