// From wgmma accumulators to global memory: bias in fp32, one rounding, then through staging buffers of each warp, so
// that rows leave in whole lines, or 32 bytes at a time where the operands are swapped.
#pragma once

#include "kernels/element.cuh"
#include "kernels/params.h"
#include "kernels/ptx.cuh"

namespace cudal2 {

// Adds the bias to a warp's 16 rows of m64nNk16 accumulators, whose first column is `column` of C, of `columns`
// columns; or with the operands swapped, whose first row is.
template <class T, bool Swap, int Count>
__device__ __forceinline__ void add_bias(float (&accumulator)[Count], const T* bias, int row, int column, int columns) {
  if constexpr (Swap) {
    const int first = row + threadIdx.x % 32 / 4;
    const float top = load_bias(bias, first, columns), bottom = load_bias(bias, first + 8, columns);
#pragma unroll
    for (int i = 0; i < Count; i += 4) {
      float* d = accumulator + i;
      d[0] += top, d[1] += top, d[2] += bottom, d[3] += bottom;
    }
  } else {
#pragma unroll
    for (int i = 0; i < Count; i += 4) {
      const int first = column + i * 2 + threadIdx.x % 4 * 2;
      const float low = load_bias(bias, first, columns), high = load_bias(bias, first + 1, columns);
      float* d = accumulator + i;
      d[0] += low, d[1] += high, d[2] += low, d[3] += high;
    }
  }
}

// Rows x Columns values of C on their way out through a warp's own shared memory, swizzled as TMA swizzles rows of that
// width: a 16-byte vector's number, XOR bits of the address from bit 7 on. They are 16 rows of accumulators, or with
// `Transposed` (operands swapped) 16 columns of C.
template <class T, int Rows, int Columns, bool Transposed>
struct StagingBuffer {
  static constexpr int kRows = Rows, kColumns = Columns;
  static constexpr bool kTransposed = Transposed;
  static constexpr int kWidth = Transposed ? Rows : Columns;  // in columns of accumulators
  static constexpr int kRowBytes = Columns * 2;
  static constexpr int kBytes = Rows * kRowBytes;
  static_assert((Transposed ? Columns : Rows) == 16 && kWidth % 8 == 0);

  __device__ __forceinline__ static uint32_t swizzled(uint32_t offset) {
    return offset ^ ((offset >> 7 & (Columns / 8 - 1)) << 4);
  }

  // Writes accumulators there, rounded. stmatrix: each group of eight lanes addresses the rows of one 8x8 block, the
  // first two groups those of column block j, upper and lower half, the others those of block j + 1.
  __device__ __forceinline__ static void write(const float* d, uint32_t buffer) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < kWidth / 8; j += 2) {
      const bool pair = j + 1 < kWidth / 8;
      const int block = pair ? j + lane / 16 : j;
      const uint32_t address = buffer + swizzled(Transposed ? (block * 8 + lane % 8) * kRowBytes + lane / 8 % 2 * 16
                                                            : lane % 16 * kRowBytes + block * 16);
      const uint32_t top = pack<T>(d[j * 4], d[j * 4 + 1]), bottom = pack<T>(d[j * 4 + 2], d[j * 4 + 3]);
      if (pair) {
        ptx::store_matrix_x4<Transposed>(address, top, bottom, pack<T>(d[j * 4 + 4], d[j * 4 + 5]),
                                         pack<T>(d[j * 4 + 6], d[j * 4 + 7]));
      } else {
        ptx::store_matrix_x2<Transposed>(address, top, bottom);
      }
    }
  }
};

// One warp's stores of C, by TMA: it goes on while its rows leave. `Bytes` of shared memory are a ring of `Buffer`s,
// each the box of `map`. What a CTA of many tiles wants.
template <class T, class Buffer, int Bytes>
struct TmaStore {
  static constexpr int kBuffers = Bytes / Buffer::kBytes;

  const Sm90Params& params;
  uint32_t staging;  // this warp's alone
  int next = 0;      // buffer

  // Stores the first `columns` columns of 16 rows of accumulators, at (row, column) of C, or transposed at (column,
  // row), as far as C goes. `columns`, and how many there are, are multiples of the buffer's width.
  template <int Count>
  __device__ __forceinline__ void store(const float (&accumulator)[Count], int row, int column, int columns) {
    const bool speaker = ptx::elect_one();
#pragma unroll
    for (int first = 0; first < 2 * Count; first += Buffer::kWidth) {
      if (first >= columns) break;
      const uint32_t buffer = staging + next * Buffer::kBytes;
      next = next + 1 == kBuffers ? 0 : next + 1;
      if (speaker) ptx::bulk_wait_read<kBuffers - 1>();
      __syncwarp();
      Buffer::write(accumulator + first / 2, buffer);
      ptx::proxy_fence();
      __syncwarp();
      if (speaker) {
        const int at = column + first;
        ptx::tma_store(&params.tma_c, buffer, Buffer::kTransposed ? row : at, Buffer::kTransposed ? at : row);
        ptx::bulk_commit();
      }
    }
  }

  // The buffers belong to TMA until this returns.
  __device__ __forceinline__ void finish() const {
    if (ptx::elect_one()) ptx::bulk_wait_read<0>();
  }
};

// The same by the warp's own stores, 16 bytes a lane: the last tile's rows are out sooner.
template <class T, class Buffer, int Bytes>
struct DirectStore {
  static constexpr int kBuffers = Bytes / Buffer::kBytes;
  static constexpr int kVectors = Buffer::kColumns / 8;  // in a row

  const Sm90Params& params;
  uint32_t staging;

  template <int Count>
  __device__ __forceinline__ void store(const float (&accumulator)[Count], int row, int column, int columns) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int first = 0; first < 2 * Count; first += Buffer::kWidth) {
      if (first >= columns) break;
      const uint32_t buffer = staging + first / Buffer::kWidth % kBuffers * Buffer::kBytes;
      if (first / Buffer::kWidth % kBuffers == 0) __syncwarp();  // all lanes have read what was there
      Buffer::write(accumulator + first / 2, buffer);
      __syncwarp();
      const int at = column + first;
      const int top = Buffer::kTransposed ? at : row, left = Buffer::kTransposed ? row : at;
#pragma unroll
      for (int i = 0; i < Buffer::kRows * kVectors; i += 32) {
        const int r = (i + lane) / kVectors, vector = (i + lane) % kVectors;
        const bool inside = Buffer::kRows * kVectors % 32 == 0 || r < Buffer::kRows;
        const uint32_t offset = (inside ? r : 0) * Buffer::kRowBytes + vector * 16;
        const uint4 value = ptx::load_shared(buffer + Buffer::swizzled(offset));
        if (inside && top + r < params.m && left + vector * 8 < params.n) {
          T* const to = static_cast<T*>(params.c) + (top + r) * params.ldc + left + vector * 8;
          *reinterpret_cast<uint4*>(to) = value;
        }
      }
    }
  }

  __device__ __forceinline__ void finish() const {}
};

}  // namespace cudal2
