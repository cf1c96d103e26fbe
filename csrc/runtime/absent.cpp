// The runtime of a fallback-only build, for a machine without nvcc: no kernels and no plans, so every product goes to
// torch. Compiled alone, by the host compiler, in place of the other files of this folder.
#include "runtime/gemm.h"

#ifndef CUDAL2_BUILD_INFO
#define CUDAL2_BUILD_INFO "fallback-only: built without nvcc"
#endif

namespace cudal2 {

const std::vector<const KernelInfo*>& kernels() {
  static const std::vector<const KernelInfo*> none;
  return none;
}

const KernelInfo* find_kernel(const std::string&) { return nullptr; }

const char* build_info() { return CUDAL2_BUILD_INFO; }

bool compiled_for(int) { return false; }

void set_plan_directory(const std::string&) {}

const Plan* find_plan(int, DType, Layout, int64_t, int64_t, int64_t) { return nullptr; }

DeviceStatus device_status(int) { return {}; }

const char* unsupported(const KernelInfo&, const GemmArgs&, int) { return build_info(); }

const char* unsupported_knobs(const KernelInfo&, const LaunchKnobs&, const GemmArgs&) { return build_info(); }

const char* launch(const KernelInfo&, const LaunchKnobs&, const GemmArgs&, int, void*) { return build_info(); }

int current_device() { return 0; }

DeviceScope::DeviceScope(int) : previous_(0) {}

DeviceScope::~DeviceScope() = default;

}  // namespace cudal2
