// What the host passes to the kernels, the same for every instance of a family.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/schedule.cuh"

namespace cudal2 {

struct Sm90Params {
  CUtensorMap tma_a, tma_b;
  void* c;
  const void* bias;
  int64_t ldc;
  int m, n;
  int k_blocks;  // ceil(K / BK)
  int tiles;     // tiles_m * tiles_n of `order`
  TileOrder order;
};

struct WmmaParams {
  const void* a;
  const void* b;
  void* c;
  const void* bias;
  int64_t lda, ldb, ldc;
  int m, n, k;
  TileOrder order;
};

}  // namespace cudal2
