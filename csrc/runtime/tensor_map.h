// TMA tensor maps, encoded through the driver and cached.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "runtime/gemm.h"

namespace cudal2 {

// A row-major matrix of `rows` x `columns` 16-bit elements, loaded or stored in boxes of `box_rows` x `box_columns`
// (64, 32, 16 or 8) and swizzled over that width (8: not at all); zeros outside.
struct MatrixView {
  const void* base;
  int64_t rows, columns, pitch;  // pitch in elements
  int box_rows, box_columns;
  DType dtype;

  bool operator==(const MatrixView& other) const {
    return base == other.base && rows == other.rows && columns == other.columns && pitch == other.pitch &&
           box_rows == other.box_rows && box_columns == other.box_columns && dtype == other.dtype;
  }
};

// Copies the view's tensor map into *map. A map depends on the address and the view alone, never on the memory's
// content or owner, so a cached one cannot go stale. The cache belongs to the thread: no lock. Returns a CUresult.
CUresult tensor_map(const MatrixView& view, CUtensorMap* map);

}  // namespace cudal2
