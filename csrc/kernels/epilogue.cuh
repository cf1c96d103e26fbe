// From wgmma accumulators to global memory: bias in fp32, one rounding, then through staging buffers of each warp, so
// that rows leave in whole lines.
#pragma once

#include "kernels/element.cuh"
#include "kernels/params.h"
#include "kernels/ptx.cuh"

namespace cudal2 {

// Adds the bias to a warp's 16 x Columns part of an m64nNk16 accumulator, whose first column is `column` of C.
template <class T, int Columns>
__device__ __forceinline__ void add_bias(float (&accumulator)[Columns / 2], const T* bias, int column, int columns) {
#pragma unroll
  for (int block = 0; block < Columns / 8; ++block) {
    const int first = column + block * 8 + threadIdx.x % 4 * 2;
    const float low = load_bias(bias, first, columns), high = load_bias(bias, first + 1, columns);
    float* d = accumulator + block * 4;
    d[0] += low, d[1] += high, d[2] += low, d[3] += high;
  }
}

// 16 x Width values on their way out through a warp's own shared memory, swizzled as TMA swizzles rows of that width: a
// 16-byte vector's number, XOR bits of the address from bit 7 on.
template <class T, int Width>
struct StagingBuffer {
  static constexpr int kRows = 16;
  static constexpr int kRowBytes = Width * 2;
  static constexpr int kBytes = kRows * kRowBytes;

  __device__ __forceinline__ static uint32_t swizzled(uint32_t offset) {
    return offset ^ ((offset >> 7 & (Width / 8 - 1)) << 4);
  }

  // Writes accumulators there, rounded. stmatrix: lanes 0-15 address the 16 rows of column block j, lanes 16-31 those
  // of block j + 1.
  __device__ __forceinline__ static void write(const float* d, uint32_t buffer) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < Width / 8; j += 2) {
      const uint32_t address = buffer + swizzled(lane % 16 * kRowBytes + (Width == 8 ? 0 : (j + lane / 16) * 16));
      const uint32_t top = pack<T>(d[j * 4], d[j * 4 + 1]), bottom = pack<T>(d[j * 4 + 2], d[j * 4 + 3]);
      if constexpr (Width == 8) {
        ptx::store_matrix_x2(address, top, bottom);
      } else {
        ptx::store_matrix_x4(address, top, bottom, pack<T>(d[j * 4 + 4], d[j * 4 + 5]),
                             pack<T>(d[j * 4 + 6], d[j * 4 + 7]));
      }
    }
  }
};

// One warp's stores of C, by TMA: it goes on while its rows leave. `Bytes` of shared memory are a ring of buffers, each
// the box of `map`. What a CTA of many tiles wants.
template <class T, int Width, int Bytes>
struct TmaStore {
  using Buffer = StagingBuffer<T, Width>;
  static constexpr int kBuffers = Bytes / Buffer::kBytes;

  const Sm90Params& params;
  uint32_t staging;  // this warp's alone
  int next = 0;      // buffer

  // Stores the first `columns` of 16 x Columns accumulators at (row, column) of C, as far as C goes. `columns` and
  // `Columns` are multiples of Width.
  template <int Columns>
  __device__ __forceinline__ void store(const float (&accumulator)[Columns / 2], int row, int column, int columns) {
    const bool speaker = ptx::elect_one();
#pragma unroll
    for (int first = 0; first < Columns; first += Width) {
      if (first >= columns) break;
      const uint32_t buffer = staging + next * Buffer::kBytes;
      next = next + 1 == kBuffers ? 0 : next + 1;
      if (speaker) ptx::bulk_wait_read<kBuffers - 1>();
      __syncwarp();
      Buffer::write(accumulator + first / 2, buffer);
      ptx::proxy_fence();
      __syncwarp();
      if (speaker) {
        ptx::tma_store(&params.tma_c, buffer, column + first, row);
        ptx::bulk_commit();
      }
    }
  }

  // The buffers belong to TMA until this returns.
  __device__ __forceinline__ void finish() const {
    if (ptx::elect_one()) ptx::bulk_wait_read<0>();
  }
};

// The same by the warp's own stores, 16 bytes a lane in whole lines: the last tile's rows are out sooner.
template <class T, int Width, int Bytes>
struct DirectStore {
  using Buffer = StagingBuffer<T, Width>;
  static constexpr int kBuffers = Bytes / Buffer::kBytes;
  static constexpr int kVectors = Width / 8;  // in a row

  const Sm90Params& params;
  uint32_t staging;

  template <int Columns>
  __device__ __forceinline__ void store(const float (&accumulator)[Columns / 2], int row, int column, int columns) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int first = 0; first < Columns; first += Width) {
      if (first >= columns) break;
      const uint32_t buffer = staging + first / Width % kBuffers * Buffer::kBytes;
      if (first / Width % kBuffers == 0) __syncwarp();  // all lanes have read what was there
      Buffer::write(accumulator + first / 2, buffer);
      __syncwarp();
#pragma unroll
      for (int i = 0; i < 16 * kVectors; i += 32) {
        const int r = (i + lane) / kVectors, vector = (i + lane) % kVectors;
        const uint4 value = ptx::load_shared(buffer + Buffer::swizzled(r % 16 * Buffer::kRowBytes + vector * 16));
        const int target = column + first + vector * 8;
        if (r < 16 && row + r < params.m && target < params.n) {
          T* const to = static_cast<T*>(params.c) + (row + r) * params.ldc + target;
          *reinterpret_cast<uint4*>(to) = value;
        }
      }
    }
  }

  __device__ __forceinline__ void finish() const {}
};

}  // namespace cudal2
