// The registry: every kernel compiled into this build, by name. Filled by static initialisers, read-only afterwards.
#include "runtime/registry.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <unordered_map>

#ifndef CUDAL2_BUILD_INFO
#define CUDAL2_BUILD_INFO "nvcc"
#endif

namespace cudal2 {
namespace {

// A function-local static, so that it exists whichever static initialiser comes first.
std::vector<const KernelInfo*>& entries() {
  static std::vector<const KernelInfo*> all;
  return all;
}

}  // namespace

Registrar::Registrar(const KernelInfo* first, size_t count) {
  for (size_t i = 0; i < count; ++i) entries().push_back(first + i);
}

const std::vector<const KernelInfo*>& kernels() {
  static const std::vector<const KernelInfo*> sorted = [] {
    std::vector<const KernelInfo*> all = entries();
    std::sort(all.begin(), all.end(),
              [](const KernelInfo* x, const KernelInfo* y) { return std::strcmp(x->name, y->name) < 0; });
    return all;
  }();
  return sorted;
}

const KernelInfo* find_kernel(const std::string& name) {
  static const std::unordered_map<std::string, const KernelInfo*> by_name = [] {
    std::unordered_map<std::string, const KernelInfo*> map;
    for (const KernelInfo* kernel : kernels()) map.emplace(kernel->name, kernel);
    return map;
  }();
  const auto found = by_name.find(name);
  return found == by_name.end() ? nullptr : found->second;
}

// Machine code of sm_80 runs on 8.0 to 8.9, of sm_90a on 9.0 alone; PTX of compute_90 on 9.0 and all later ones.
bool compiled_for(int arch) {
  const std::string info = build_info();
  for (const char* kind : {"sm_", "compute_"}) {
    for (size_t at = info.find(kind); at != std::string::npos; at = info.find(kind, at + 1)) {
      char* end = nullptr;
      const int number = static_cast<int>(std::strtol(info.c_str() + at + std::strlen(kind), &end, 10));
      const bool exact = *end == 'a' || *end == 'f';
      const bool ptx = kind[0] == 'c';
      if (number == arch || (!exact && number < arch && (ptx || number / 10 == arch / 10))) return true;
    }
  }
  return false;
}

const char* build_info() { return CUDAL2_BUILD_INFO; }

}  // namespace cudal2
