// wmma: C = A @ B (+ bias) by cp.async and wmma fragments, fp16 or bf16 in and out, fp32 accumulation. Every
// architecture with tensor cores (bf16 from 8.0 on). For small problems: no tensor map, no cluster, a short prologue.
//
// Tile and pipeline. A CTA computes BM x BN of C with WarpsM x WarpsN x WarpsK warps, stepping BK through K with
// `Stages` buffers; with Stages * BK >= K all of K is in flight at once. The WarpsK warps of a position split each BK
// between them and their sums are added in a fixed order in shared memory. Rows are padded by 16 bytes against bank
// conflicts.
//
// Constraints. A and C row-major, B row-major (nn) or transposed (tn); bases 16-byte aligned, pitches multiples of 8
// elements, N a multiple of 8. M, N and K need not divide the tile: loads zero-fill, stores are predicated.
//
// Timed with cudal2.search.sweep in graph mode; figures are in generated_kernels/plans/h200.csv.
#pragma once

#include <mma.h>

#include "kernels/element.cuh"
#include "kernels/params.h"
#include "kernels/ptx.cuh"
#include "kernels/schedule.cuh"
#include "runtime/gemm.h"

namespace cudal2 {

template <class T_, Layout kLayout_, int BM_, int BN_, int BK_, int Stages_, int WarpsM_, int WarpsN_, int WarpsK_>
struct WmmaConfig {
  using T = T_;
  static constexpr DType kDType = std::is_same_v<T, f16> ? DType::f16 : DType::bf16;
  static constexpr Layout kLayout = kLayout_;
  static constexpr int BM = BM_, BN = BN_, BK = BK_, kStages = Stages_;
  static constexpr int kClusterM = 1, kClusterN = 1, kSplit = 1;
  static constexpr int kWarpsM = WarpsM_, kWarpsN = WarpsN_, kWarpsK = WarpsK_;
  static constexpr int kThreads = 32 * kWarpsM * kWarpsN * kWarpsK;
  static constexpr bool kTn = kLayout == Layout::tn;
  static constexpr int kRowsM = BM / kWarpsM / 16, kRowsN = BN / kWarpsN / 16;  // fragments per warp
  static constexpr int kSteps = BK / kWarpsK / 16;

  static constexpr int kPitchA = BK + 8;
  static constexpr int kPitchB = (kTn ? BK : BN) + 8;
  static constexpr int kPitchC = BN + 4;
  static constexpr int kStageA = BM * kPitchA;  // elements
  static constexpr int kStageB = (kTn ? BN : BK) * kPitchB;
  static constexpr int kPipeline = kStages * (kStageA + kStageB) * 2;
  static constexpr int kEpilogue = kWarpsK * BM * kPitchC * 4;
  static constexpr int kSmem = kPipeline > kEpilogue ? kPipeline : kEpilogue;

  static_assert(kStages >= 2);  // with one, a block would be overwritten while it is read

  // Before 8.0 there are no bf16 fragments: such an instance is compiled empty there, and its KernelInfo says 8.0.
  static constexpr int kVector = 8, kMultipleOfK = 1, kMaxTilesN = 1 << 30;
  static constexpr bool kStreamK = false, kWorkspace = false;
  static constexpr int kMinArch = std::is_same_v<T, bf16> ? 80 : 75, kMaxArch = 999;
};

// Copies Rows x Columns of a row-major matrix to shared memory, from (row, column) on, zero outside rows x columns.
template <class T, int Rows, int Columns, int Pitch, int Threads>
__device__ __forceinline__ void load_tile(T* target, const T* source, int64_t pitch, int row, int column, int rows,
                                          int columns) {
  constexpr int kVectors = Columns / 8;
#pragma unroll
  for (int i = 0; i < Rows * kVectors; i += Threads) {
    const int vector = i + static_cast<int>(threadIdx.x);
    if (Rows * kVectors % Threads != 0 && vector >= Rows * kVectors) break;
    const int r = vector / kVectors, c = vector % kVectors * 8;
    const int left = row + r < rows ? min(max(columns - column - c, 0), 8) : 0;
    const T* from = left > 0 ? source + static_cast<int64_t>(row + r) * pitch + column + c : source;
    ptx::cp_async_16(target + r * Pitch + c, from, left * 2);
  }
}

template <class Config>
__device__ __forceinline__ void load_k_block(typename Config::T* smem, const WmmaParams& params, TileIndex tile,
                                             int stage, int k_block) {
  using T = typename Config::T;
  T* a = smem + stage * (Config::kStageA + Config::kStageB);
  T* b = a + Config::kStageA;
  const int k = k_block * Config::BK;
  load_tile<T, Config::BM, Config::BK, Config::kPitchA, Config::kThreads>(
      a, static_cast<const T*>(params.a), params.lda, tile.m * Config::BM, k, params.m, params.k);
  if constexpr (Config::kTn) {
    load_tile<T, Config::BN, Config::BK, Config::kPitchB, Config::kThreads>(
        b, static_cast<const T*>(params.b), params.ldb, tile.n * Config::BN, k, params.n, params.k);
  } else {
    load_tile<T, Config::BK, Config::BN, Config::kPitchB, Config::kThreads>(
        b, static_cast<const T*>(params.b), params.ldb, k, tile.n * Config::BN, params.k, params.n);
  }
}

// Adds the WarpsK partial tiles in order, then bias, one rounding, and 16-byte stores.
template <class Config>
__device__ __forceinline__ void store_tile(const float* partial, const WmmaParams& params, TileIndex tile) {
  using T = typename Config::T;
  constexpr int kVectors = Config::BN / 8;
  const T* bias = static_cast<const T*>(params.bias);
  for (int vector = threadIdx.x; vector < Config::BM * kVectors; vector += Config::kThreads) {
    const int r = vector / kVectors, c = vector % kVectors * 8;
    const int row = tile.m * Config::BM + r, column = tile.n * Config::BN + c;
    if (row >= params.m || column >= params.n) continue;
    float sum[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) sum[i] = partial[r * Config::kPitchC + c + i];
#pragma unroll
    for (int part = 1; part < Config::kWarpsK; ++part) {
#pragma unroll
      for (int i = 0; i < 8; ++i) sum[i] += partial[(part * Config::BM + r) * Config::kPitchC + c + i];
    }
    if (bias != nullptr) {
#pragma unroll
      for (int i = 0; i < 8; ++i) sum[i] += load_bias(bias, column + i, params.n);
    }
    const uint4 packed =
        make_uint4(pack<T>(sum[0], sum[1]), pack<T>(sum[2], sum[3]), pack<T>(sum[4], sum[5]), pack<T>(sum[6], sum[7]));
    *reinterpret_cast<uint4*>(static_cast<T*>(params.c) + static_cast<int64_t>(row) * params.ldc + column) = packed;
  }
}

template <class Config>
__global__ void __launch_bounds__(Config::kThreads) wmma_gemm(const __grid_constant__ WmmaParams params) {
#if __CUDA_ARCH__ >= 800
  constexpr bool kSupported = true;
#else
  constexpr bool kSupported = Config::kMinArch == 75;
#endif
  if constexpr (kSupported) {
    namespace wmma = nvcuda::wmma;
    using T = typename Config::T;
    using LayoutB = std::conditional_t<Config::kTn, wmma::col_major, wmma::row_major>;
    extern __shared__ __align__(128) uint8_t dynamic_smem[];
    T* smem = reinterpret_cast<T*>(dynamic_smem);

    const int warp = threadIdx.x / 32;
    const int warp_m = warp % Config::kWarpsM;
    const int warp_n = warp / Config::kWarpsM % Config::kWarpsN;
    const int warp_k = warp / (Config::kWarpsM * Config::kWarpsN);
    const TileIndex tile = tile_at(params.order, blockIdx.x);
    const int k_blocks = (params.k + Config::BK - 1) / Config::BK;

    ptx::launch_dependents();
    ptx::grid_dependency_wait();
#pragma unroll
    for (int stage = 0; stage < Config::kStages - 1; ++stage) {
      if (stage < k_blocks) load_k_block<Config>(smem, params, tile, stage, stage);
      ptx::cp_async_commit();
    }

    wmma::fragment<wmma::accumulator, 16, 16, 16, float> accumulator[Config::kRowsM][Config::kRowsN];
#pragma unroll
    for (int i = 0; i < Config::kRowsM; ++i) {
#pragma unroll
      for (int j = 0; j < Config::kRowsN; ++j) wmma::fill_fragment(accumulator[i][j], 0.0f);
    }

    for (int block = 0; block < k_blocks; ++block) {
      ptx::cp_async_wait<Config::kStages - 2>();
      __syncthreads();
      const int next = block + Config::kStages - 1;
      if (next < k_blocks) load_k_block<Config>(smem, params, tile, next % Config::kStages, next);
      ptx::cp_async_commit();

      const T* a = smem + block % Config::kStages * (Config::kStageA + Config::kStageB);
      const T* b = a + Config::kStageA;
#pragma unroll
      for (int step = 0; step < Config::kSteps; ++step) {
        const int k = (warp_k * Config::kSteps + step) * 16;
        wmma::fragment<wmma::matrix_a, 16, 16, 16, T, wmma::row_major> fragment_a[Config::kRowsM];
        wmma::fragment<wmma::matrix_b, 16, 16, 16, T, LayoutB> fragment_b[Config::kRowsN];
#pragma unroll
        for (int i = 0; i < Config::kRowsM; ++i) {
          const int m = (warp_m * Config::kRowsM + i) * 16;
          wmma::load_matrix_sync(fragment_a[i], a + m * Config::kPitchA + k, Config::kPitchA);
        }
#pragma unroll
        for (int j = 0; j < Config::kRowsN; ++j) {
          const int n = (warp_n * Config::kRowsN + j) * 16;
          const T* from = Config::kTn ? b + n * Config::kPitchB + k : b + k * Config::kPitchB + n;
          wmma::load_matrix_sync(fragment_b[j], from, Config::kPitchB);
        }
#pragma unroll
        for (int i = 0; i < Config::kRowsM; ++i) {
#pragma unroll
          for (int j = 0; j < Config::kRowsN; ++j) {
            wmma::mma_sync(accumulator[i][j], fragment_a[i], fragment_b[j], accumulator[i][j]);
          }
        }
      }
    }

    ptx::cp_async_wait<0>();
    __syncthreads();  // the partial tiles reuse the pipeline's buffers
    float* partial = reinterpret_cast<float*>(dynamic_smem);
#pragma unroll
    for (int i = 0; i < Config::kRowsM; ++i) {
#pragma unroll
      for (int j = 0; j < Config::kRowsN; ++j) {
        const int m = (warp_m * Config::kRowsM + i) * 16, n = (warp_n * Config::kRowsN + j) * 16;
        wmma::store_matrix_sync(partial + (warp_k * Config::BM + m) * Config::kPitchC + n, accumulator[i][j],
                                Config::kPitchC, wmma::mem_row_major);
      }
    }
    __syncthreads();
    store_tile<Config>(partial, params, tile);
  }
}

}  // namespace cudal2
