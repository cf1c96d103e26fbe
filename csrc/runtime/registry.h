// How a generated file adds its kernels to the registry: a static Registrar beside its table.
#pragma once

#include <cstddef>

#include "runtime/gemm.h"

namespace cudal2 {

class Registrar {
 public:
  Registrar(const KernelInfo* entries, size_t count);
};

// Whether this build has machine code, or PTX, that a device of compute capability `arch` (90 = 9.0) can run.
bool compiled_for(int arch);

}  // namespace cudal2
