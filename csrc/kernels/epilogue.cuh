// From wgmma accumulators to global memory: bias in fp32, one rounding, then through a 16 x 64 staging buffer per warp
// so that rows leave as whole 128-byte lines.
#pragma once

#include "kernels/element.cuh"
#include "kernels/ptx.cuh"

namespace cudal2 {

constexpr int kStagingRows = 16;
constexpr int kStagingColumns = 64;
constexpr int kStagingBytes = kStagingRows * kStagingColumns * 2;  // per warp

struct OutputTile {
  void* c;
  const void* bias;
  int64_t ldc;
  int rows, columns;  // exclusive limits: nothing at or past them is written
};

// Stores a warp's 16 x Columns part of an m64nNk16 accumulator at (row, column) of C. `staging` is this warp's alone;
// column, the limits and ldc are multiples of 8 and C is 16-byte aligned, so each 8-column vector is in or out whole.
template <class T, int Columns>
__device__ __forceinline__ void store_accumulator(const float (&accumulator)[Columns / 2], const OutputTile& out,
                                                  uint32_t staging, int row, int column) {
  const int lane = threadIdx.x % 32;
  // stmatrix: lanes 0-15 address the 16 rows of column block j, lanes 16-31 those of block j + 1. XOR with the row
  // spreads the eight 16-byte vectors of a row over all banks.
  const int matrix_row = lane % 16;
  const T* bias = static_cast<const T*>(out.bias);
#pragma unroll
  for (int first = 0; first < Columns; first += kStagingColumns) {
    constexpr int kFull = kStagingColumns / 8;
    const int blocks = Columns - first < kStagingColumns ? (Columns - first) / 8 : kFull;
    __syncwarp();
#pragma unroll
    for (int j = 0; j < kFull; j += 2) {
      if (j >= blocks) continue;
      uint32_t packed[4];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (j + half >= blocks) continue;
        const float* d = accumulator + (first / 8 + j + half) * 4;
        float low = 0, high = 0;
        if (bias != nullptr) {
          const int bias_column = column + first + (j + half) * 8 + lane % 4 * 2;
          low = load_bias(bias, bias_column, out.columns);
          high = load_bias(bias, bias_column + 1, out.columns);
        }
        packed[half * 2] = pack<T>(d[0] + low, d[1] + high);
        packed[half * 2 + 1] = pack<T>(d[2] + low, d[3] + high);
      }
      const int block = j + lane / 16;
      const uint32_t address = staging + matrix_row * 128 + ((block ^ (matrix_row % 8)) * 16);
      if (j + 1 < blocks) {
        ptx::store_matrix_x4(address, packed[0], packed[1], packed[2], packed[3]);
      } else {
        ptx::store_matrix_x2(address, packed[0], packed[1]);
      }
    }
    __syncwarp();
    const int vectors = kStagingRows * blocks;
#pragma unroll
    for (int i = 0; i < kStagingRows * kFull; i += 32) {
      const int vector = i + lane;
      if (i >= vectors || vector >= vectors) continue;
      const int r = vector / blocks;
      const int block = vector % blocks;
      const uint4 value = ptx::load_shared(staging + r * 128 + ((block ^ (r % 8)) * 16));
      const int target_column = column + first + block * 8;
      if (row + r < out.rows && target_column < out.columns) {
        T* target = static_cast<T*>(out.c) + static_cast<int64_t>(row + r) * out.ldc + target_column;
        *reinterpret_cast<uint4*>(target) = value;
      }
    }
  }
}

}  // namespace cudal2
