// How a generated file adds its kernels to the registry: a static Registrar beside its table.
#pragma once

#include <cstddef>

#include "runtime/gemm.h"

namespace cudal2 {

class Registrar {
 public:
  Registrar(const KernelInfo* entries, size_t count);
};

}  // namespace cudal2
