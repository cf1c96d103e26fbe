// What the host passes to the kernels, the same for every instance of a family.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/schedule.cuh"

namespace cudal2 {

// Columns of one shared-memory panel of B under nn: a swizzle's width (128, 64 or 32 bytes) that a narrow tile does not
// overfill much. KernelSpec has the same rule.
constexpr int nn_panel_columns(int bn) { return bn % 64 == 0 || bn > 96 ? 64 : bn % 32 == 0 ? 32 : 16; }

// The box of C that a warp of sm90 stores at once: 16 rows of accumulators, and as many of their columns, at most 64,
// as divide the tile and what each CTA of a cluster's split owns of it. Along N of C they are a swizzle's width; where
// the operands are swapped they lie along M.
struct StoreBox {
  int rows, columns;
};
constexpr StoreBox store_box(int bm, int bn, int split, bool swap) {
  const int extent = swap ? bm : bn;
  const int owned = (extent / 8 + split - 1) / split * 8;
  int best = 8;
  for (int width = 16; width <= 64; width += swap ? 8 : width) {
    if (extent % width == 0 && owned % width == 0) best = width;
  }
  return swap ? StoreBox{best, 16} : StoreBox{16, best};
}

constexpr int kMostParts = 16;  // CTAs that can share a tile of sm90 through the workspace

struct Sm90Params {
  CUtensorMap tma_a, tma_b, tma_c;  // tma_c: only where C leaves by TMA
  void* c;
  const void* bias;
  int64_t ldc;
  int m, n;
  Divisor k_blocks;  // ceil(K / BK)
  Divisor split;     // clusters that share each tile's K through the workspace (Workspace); 1: none
  Divisor tiles;     // tiles_m * tiles_n of `order`
  Divisor step;  // from one tile of a cluster to its next: the grid's clusters, or `tiles` where clusters share tiles
  TileOrder order;
  // Under stream-K, the first tiles of the order and all their blocks of K, which the grid's clusters share evenly
  // (Work in sm90_work.cuh); else 0.
  int stream_tiles, stream_blocks;
  float* partials;  // of shared tiles: BM * BN for each CTA
  // One for each tile (SharedTile in sm90_share.cuh), or under stream-K for each consumer warpgroup of each CTA
  // (StreamedTile); 0 between launches.
  uint32_t* words;
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

struct MultistageParams {
  const void* a;
  const void* b;
  void* c;
  const void* bias;
  int64_t lda, ldb, ldc;
  int m, n, k;
  int width_a, width_b, width_c;  // elements (8, 4, 2 or 1) that a row of the operand can be moved in at once
  TileOrder order;
  float* partials;  // of shared tiles: two slots of BM * BN per CTA (StreamK)
  int* counters;    // of those who have arrived at each tile, 0 between launches
};

struct DirectParams {
  const void* a;
  const void* b;
  void* c;
  const void* bias;
  int64_t lda, ldb, ldc;
  int m, n, k;
};

}  // namespace cudal2
