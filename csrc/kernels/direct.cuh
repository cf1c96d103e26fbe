// direct: C = A @ B (+ bias) without a pipeline: each warp loads mma.sync fragments from global memory straight into
// registers. For the smallest problems, where a shared-memory round trip and its barriers cost more than the product:
// the whole of K is in flight at once, in a kernel of a few hundred instructions.
//
// Tile and mapping. A CTA computes BM x BN of C with WarpsM x WarpsN x WarpsK warps; the WarpsK warps of a position
// take turns over chunks of 32 along K, `Chunks` of them in flight, and their sums are added in a fixed order through
// shared memory. A product does not change when K is permuted alike in A and B, nor when columns of B and C are
// permuted alike. So lane (g, t) = (lane / 4, lane % 4) takes k = 8t .. 8t+7 of a chunk, 16 bytes of a row, as the
// operands of two m16n8k16; and column g * J + j of the warp's 8 J columns in its j-th n8 tile, which gives it 2 J
// neighbouring columns of C. Under nn the 8 rows of B are loaded J columns wide and transposed with byte permutations.
//
// Constraints. A and C row-major, B row-major (nn) or transposed (tn); bases 16-byte aligned, pitches multiples of 8
// elements, N a multiple of 8, K a multiple of 32, at most 65535 tiles along N. M and N need not divide the tile: loads
// beyond them repeat the last row or column, whose products are not stored.
//
// Timed with cudal2.search.sweep in graph mode; figures are in generated_kernels/plans/h200.csv.
#pragma once

#include "kernels/element.cuh"
#include "kernels/params.h"
#include "kernels/ptx.cuh"
#include "runtime/gemm.h"

namespace cudal2 {

template <class T_, Layout kLayout_, int BM_, int BN_, int Chunks_, int WarpsM_, int WarpsN_, int WarpsK_>
struct DirectConfig {
  using T = T_;
  static constexpr DType kDType = std::is_same_v<T, f16> ? DType::f16 : DType::bf16;
  static constexpr Layout kLayout = kLayout_;
  static constexpr bool kTn = kLayout == Layout::tn;
  static constexpr int kChunk = 32;  // along K
  static constexpr int BM = BM_, BN = BN_, BK = kChunk * Chunks_ * WarpsK_, kStages = 1;
  static constexpr int kClusterM = 1, kClusterN = 1, kSplit = 1;
  static constexpr int kChunks = Chunks_, kWarpsM = WarpsM_, kWarpsN = WarpsN_, kWarpsK = WarpsK_;
  static constexpr int kThreads = 32 * kWarpsM * kWarpsN * kWarpsK;
  static constexpr int I = BM / kWarpsM / 16, J = BN / kWarpsN / 8;        // mma tiles of a warp
  static constexpr int kPartial = kWarpsM * kWarpsN * 2 * I * 32 * 2 * J;  // fp32 of all warps of one k
  static constexpr int kSmem = kWarpsK > 1 ? kWarpsK * kPartial * 4 : 0;
  static constexpr int kVector = 8, kMultipleOfK = kChunk, kMaxTilesN = 65535;
  static constexpr bool kStreamK = false, kWorkspace = false;
  static constexpr int kMinArch = 80, kMaxArch = 999;
};

// Loads 8 rows (along K) of J neighbouring columns and transposes them: column j's 8 values in fragment[j].
template <int J>
__device__ __forceinline__ void load_columns(uint4 (&fragment)[J], const void* source, int64_t pitch) {
  using Row = std::conditional_t<J == 1, uint16_t,
                                 std::conditional_t<J == 2, uint32_t, std::conditional_t<J == 4, uint2, uint4>>>;
  constexpr int kWords = J == 1 ? 1 : J / 2;
  uint32_t rows[8][kWords];
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const Row row = *reinterpret_cast<const Row*>(static_cast<const uint16_t*>(source) + k * pitch);
    if constexpr (J == 1) {
      rows[k][0] = row;
    } else {
      __builtin_memcpy(rows[k], &row, sizeof(Row));
    }
  }
#pragma unroll
  for (int j = 0; j < J; ++j) {
    const uint32_t halves = j % 2 == 0 ? 0x5410 : 0x7632;  // the low halves of two words, or the high ones
    uint32_t pairs[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) pairs[i] = __byte_perm(rows[2 * i][j / 2], rows[2 * i + 1][j / 2], halves);
    fragment[j] = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
  }
}

// A row of 2 J neighbouring values of C, added over the warps of K in order.
template <class Config>
__device__ __forceinline__ void store_row(const float (&sum)[2 * Config::J], const DirectParams& params, int row,
                                          int column) {
  using T = typename Config::T;
  if (row >= params.m) return;
  T* c = static_cast<T*>(params.c) + static_cast<int64_t>(row) * params.ldc + column;
  uint32_t packed[Config::J];
#pragma unroll
  for (int j = 0; j < Config::J; ++j) {
    float low = sum[2 * j], high = sum[2 * j + 1];
    if (params.bias != nullptr) {
      low += load_bias(static_cast<const T*>(params.bias), column + 2 * j, params.n);
      high += load_bias(static_cast<const T*>(params.bias), column + 2 * j + 1, params.n);
    }
    packed[j] = pack<T>(low, high);
  }
  if constexpr (Config::J >= 4) {
#pragma unroll
    for (int j = 0; j < Config::J; j += 4) {
      if (column + 2 * j < params.n) {
        *reinterpret_cast<uint4*>(c + 2 * j) = make_uint4(packed[j], packed[j + 1], packed[j + 2], packed[j + 3]);
      }
    }
  } else if (column < params.n) {
    if constexpr (Config::J == 2) *reinterpret_cast<uint2*>(c) = make_uint2(packed[0], packed[1]);
    if constexpr (Config::J == 1) *reinterpret_cast<uint32_t*>(c) = packed[0];
  }
}

template <class Config>
__global__ void __launch_bounds__(Config::kThreads) direct_gemm(const __grid_constant__ DirectParams params) {
  using T = typename Config::T;
  constexpr int I = Config::I, J = Config::J, kChunks = Config::kChunks;
  extern __shared__ __align__(128) uint8_t dynamic_smem[];

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int g = lane / 4, t = lane % 4;
  const int warp_m = warp % Config::kWarpsM;
  const int warp_n = warp / Config::kWarpsM % Config::kWarpsN;
  const int warp_k = warp / (Config::kWarpsM * Config::kWarpsN);
  const int row = blockIdx.x * Config::BM + warp_m * (16 * I) + g;
  const int column = blockIdx.y * Config::BN + warp_n * (8 * J) + g * J;  // the first of this lane's J columns of B
  const int chunks = params.k / Config::kChunk;

  const T* a[2 * I];
#pragma unroll
  for (int i = 0; i < 2 * I; ++i) {
    a[i] = static_cast<const T*>(params.a) + static_cast<int64_t>(min(row + 8 * i, params.m - 1)) * params.lda + 8 * t;
  }
  const T* b[Config::kTn ? J : 1];
  if constexpr (Config::kTn) {
#pragma unroll
    for (int j = 0; j < J; ++j) {
      b[j] = static_cast<const T*>(params.b) + static_cast<int64_t>(min(column + j, params.n - 1)) * params.ldb + 8 * t;
    }
  } else {
    b[0] = static_cast<const T*>(params.b) + static_cast<int64_t>(8 * t) * params.ldb + min(column, params.n - J);
  }

  float accumulator[I][J][4] = {};
  ptx::grid_dependency_wait();
#pragma unroll 1
  for (int first = warp_k; first < chunks; first += kChunks * Config::kWarpsK) {
    uint4 fragment_a[kChunks][2 * I], fragment_b[kChunks][J];
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const int chunk = first + c * Config::kWarpsK;
      if (c > 0 && chunk >= chunks) continue;
#pragma unroll
      for (int i = 0; i < 2 * I; ++i) fragment_a[c][i] = *reinterpret_cast<const uint4*>(a[i] + chunk * Config::kChunk);
      if constexpr (Config::kTn) {
#pragma unroll
        for (int j = 0; j < J; ++j) {
          fragment_b[c][j] = *reinterpret_cast<const uint4*>(b[j] + chunk * Config::kChunk);
        }
      } else {
        load_columns<J>(fragment_b[c], b[0] + static_cast<int64_t>(chunk) * Config::kChunk * params.ldb, params.ldb);
      }
    }
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      if (c > 0 && first + c * Config::kWarpsK >= chunks) continue;
#pragma unroll
      for (int i = 0; i < I; ++i) {
#pragma unroll
        for (int j = 0; j < J; ++j) {
          const uint4 &low = fragment_a[c][2 * i], &high = fragment_a[c][2 * i + 1], &other = fragment_b[c][j];
          ptx::mma_m16n8k16<T>(accumulator[i][j], low.x, high.x, low.y, high.y, other.x, other.y);
          ptx::mma_m16n8k16<T>(accumulator[i][j], low.z, high.z, low.w, high.w, other.z, other.w);
        }
      }
    }
  }

  ptx::launch_dependents();  // not sooner: the next kernel's CTAs would wait where this kernel's have yet to run
  // This lane's 2 J neighbouring columns of row `unit` (of 2 I) of C.
  const int c_column = blockIdx.y * Config::BN + warp_n * (8 * J) + t * 2 * J;
  const auto row_of = [&](int unit, float (&values)[2 * J]) {
#pragma unroll
    for (int j = 0; j < J; ++j) {
      values[j] = accumulator[unit / 2][j][unit % 2 * 2];
      values[J + j] = accumulator[unit / 2][j][unit % 2 * 2 + 1];
    }
  };
  if constexpr (Config::kWarpsK == 1) {
#pragma unroll
    for (int unit = 0; unit < 2 * I; ++unit) {
      float values[2 * J];
      row_of(unit, values);
      store_row<Config>(values, params, row + 8 * unit, c_column);
    }
  } else {
    // Warp w of K writes its row `unit` and adds up those units that are its own, w, w + WarpsK, ...
    float* const partial = reinterpret_cast<float*>(dynamic_smem);
    const int position = warp % (Config::kWarpsM * Config::kWarpsN);
    const auto slot = [&](int k, int unit) {
      return partial + k * Config::kPartial + ((position * 2 * I + unit) * 32) * 2 * J;
    };
    constexpr int kVector = J == 1 ? 2 : 4;
#pragma unroll
    for (int unit = 0; unit < 2 * I; ++unit) {
      float values[2 * J];
      row_of(unit, values);
      float* to = slot(warp_k, unit);
#pragma unroll
      for (int v = 0; v < 2 * J; v += kVector) {
        if constexpr (kVector == 4) {
          *reinterpret_cast<float4*>(to + (v / 4 * 32 + lane) * 4) =
              make_float4(values[v], values[v + 1], values[v + 2], values[v + 3]);
        } else {
          *reinterpret_cast<float2*>(to + lane * 2) = make_float2(values[0], values[1]);
        }
      }
    }
    __syncthreads();
    for (int unit = warp_k; unit < 2 * I; unit += Config::kWarpsK) {
      float sum[2 * J] = {};
#pragma unroll
      for (int k = 0; k < Config::kWarpsK; ++k) {
        const float* from = slot(k, unit);
#pragma unroll
        for (int v = 0; v < 2 * J; ++v) {
          sum[v] += kVector == 4 ? from[(v / 4 * 32 + lane) * 4 + v % 4] : from[lane * 2 + v];
        }
      }
      store_row<Config>(sum, params, row + 8 * unit, c_column);
    }
  }
}

}  // namespace cudal2
