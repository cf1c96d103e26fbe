// multistage: C = A @ B (+ bias) by cp.async and mma.sync, written with CuTe. Compute capability 8.0 and later; fp16 or
// bf16, accumulated in fp32, or (f16acc16, never unless asked for) in fp16. Any M, N and K.
//
// Tile and pipeline. A CTA computes BM x BN of C with WarpsM x WarpsN x WarpsK warps, stepping BK through K. `Stages`
// shared-memory buffers are filled by cp.async; ldmatrix moves fragments to registers `Prefetch` steps of k16 ahead of
// the mma.sync that use them. The WarpsK warps of a position split each BK, and their sums are added in shared memory.
// `Copies` says when, within a block, the next one's copies are issued.
//
// Split-K and stream-K, in kernels with StreamK: the tiles' k blocks form one line of work that `ctas` CTAs cut into
// equal parts. Who computes a part of a tile writes it to the workspace; who arrives last at the tile adds the parts up
// in the order of K. Split-K is the case of ctas = tiles * split. One launch, no waiting, and the same bits every time.
//
// Constraints. A and C row-major, B row-major (nn) or transposed (tn). With Vector = 8: bases 16-byte aligned, pitches
// multiples of 8 elements, N a multiple of 8. With Vector = 1: any; each operand moves in the widest pieces (16, 8, 4
// or 2 bytes) that its address and pitch allow. Edges are zero-filled on the way in and predicated on the way out, so
// that tiles need not divide the problem.
//
// Timed with cudal2.search.sweep in graph mode; figures are in generated_kernels/plans/h200.csv, and what each knob is
// worth in benchmarks/results/h200/README.md.
#pragma once

#include <cute/tensor.hpp>

#include "kernels/element.cuh"
#include "kernels/params.h"
#include "kernels/ptx.cuh"
#include "kernels/schedule.cuh"
#include "runtime/gemm.h"

namespace cudal2 {

// When the copies of the next block are issued: before the first products of a round, A's before and B's after them, or
// spread over all steps, after their products.
enum class Copies { early, stagger, spread };

template <DType kDType_, Layout kLayout_, int BM_, int BN_, int BK_, int Stages_, int WarpsM_, int WarpsN_, int WarpsK_,
          int Prefetch_, Copies kCopies_, bool StreamK_, int Vector_>
struct MultistageConfig {
  static constexpr DType kDType = kDType_;
  using T = std::conditional_t<kDType == DType::bf16, bf16, f16>;
  using Element = std::conditional_t<kDType == DType::bf16, cute::bfloat16_t, cute::half_t>;
  using Accumulator = std::conditional_t<kDType == DType::f16acc16, cute::half_t, float>;
  static constexpr Layout kLayout = kLayout_;
  static constexpr bool kTn = kLayout == Layout::tn;
  static constexpr int BM = BM_, BN = BN_, BK = BK_, kStages = Stages_;
  static constexpr int kClusterM = 1, kClusterN = 1, kSplit = 1;
  static constexpr int kWarpsM = WarpsM_, kWarpsN = WarpsN_, kWarpsK = WarpsK_;
  static constexpr int kThreads = 32 * kWarpsM * kWarpsN * kWarpsK;
  static constexpr int kPrefetch = Prefetch_;
  static constexpr Copies kCopies = kCopies_;
  static constexpr bool kStreamK = StreamK_, kWorkspace = StreamK_;
  static constexpr int kVector = Vector_, kMultipleOfK = 1, kMaxTilesN = 1 << 30;
  static constexpr int kMinArch = 80, kMaxArch = 999;

  static constexpr int kPitchC = BN + 8;        // of C in shared memory, elements
  static constexpr int kPitchPartial = BN + 4;  // of a partial tile of WarpsK, fp32
  static constexpr int kStageA = BM * BK, kStageB = BN * BK;
  static constexpr int kPipeline = kStages * (kStageA + kStageB) * 2;
  static constexpr int kStaging = kWarpsK > 1 ? kWarpsK * BM * kPitchPartial * 4 : BM * kPitchC * 2;
  static constexpr int kSmem = kPipeline > kStaging ? kPipeline : kStaging;
  static_assert(kStages >= 2 && kPrefetch < BK / 16 / kWarpsK && !(kStreamK && kWarpsK > 1));
};

// One operand's tile: Rows x Columns, Columns along the contiguous dimension, in panels of up to 64 columns of
// shared memory. The 16-byte vectors of a panel are permuted (swizzle) so that ldmatrix meets no bank conflict.
template <class Config, int Rows, int Columns>
struct OperandTile {
  using T = typename Config::T;
  static constexpr int kPanel = Columns % 64 == 0 ? 64 : Columns % 32 == 0 ? 32 : 16;
  static constexpr int kVectors = kPanel / 8;
  static constexpr int kAllRows = Rows * (Columns / kPanel);  // of all panels, one panel after the other
  static constexpr int kRowsPerPass = Config::kThreads / kVectors;
  static constexpr int kPasses = (kAllRows + kRowsPerPass - 1) / kRowsPerPass;
  // The passes of a thread must agree in what decides the permutation, row % 8.
  static_assert(Config::kThreads % kVectors == 0 && kRowsPerPass % 8 == 0);
  static_assert(kPanel == Columns || kRowsPerPass % Rows == 0 || Rows % kRowsPerPass == 0);

  // Eight rows of a panel as (rows, columns), and the same as (columns, rows).
  using Permutation = cute::Swizzle<kPanel == 64 ? 3 : kPanel == 32 ? 2 : 1, 3, 3>;
  using Width = cute::Int<kPanel>;
  using Atom = decltype(cute::composition(Permutation{},
                                          cute::Layout<cute::Shape<cute::_8, Width>, cute::Stride<Width, cute::_1>>{}));
  using AtomT = decltype(cute::composition(
      Permutation{}, cute::Layout<cute::Shape<Width, cute::_8>, cute::Stride<cute::_1, Width>>{}));

  // This thread's first row, of those of all panels, and column within its panel; and what pass `pass` adds to its row
  // and column in memory.
  __device__ __forceinline__ static int first() { return threadIdx.x / kVectors; }
  __device__ __forceinline__ static int first_row() { return kRowsPerPass % Rows == 0 ? first() % Rows : first(); }
  __device__ __forceinline__ static int first_column() {
    return threadIdx.x % kVectors * 8 + (kRowsPerPass % Rows == 0 ? first() / Rows * kPanel : 0);
  }
  static constexpr bool kOnePanel = kPanel == Columns;
  static constexpr int row_step(int pass) {
    return kOnePanel ? pass * kRowsPerPass : kRowsPerPass % Rows == 0 ? 0 : pass * kRowsPerPass % Rows;
  }
  static constexpr int column_step(int pass) { return kOnePanel ? 0 : pass * kRowsPerPass / Rows * kPanel; }
  static constexpr bool kUneven = kAllRows % kRowsPerPass != 0;  // the last pass is not every thread's

  __device__ __forceinline__ static T* slot(T* target) {
    return target + Atom{}(first() % 8, threadIdx.x % kVectors * 8) + first() / 8 * 8 * kPanel;
  }

  // Passes [begin, end) of copying a tile that along K is inside the matrix: those whose row (column) is less than
  // `limit`; what lies past it stays what it was, and ends in rows (columns) of C that are not stored. `source`: this
  // thread's first element of the tile. No branch, so that copies and products can be interleaved.
  template <bool kLimitsRows>
  __device__ __forceinline__ static void load(T* target, const T* source, int64_t pitch, int limit, int begin,
                                              int end) {
    T* const to = slot(target);
    const int left = limit - (kLimitsRows ? first_row() : first_column());
#pragma unroll
    for (int pass = begin; pass < end && pass < kPasses; ++pass) {
      bool copied = left > (kLimitsRows ? row_step(pass) : column_step(pass));
      if (kUneven) copied = copied && first() + pass * kRowsPerPass < kAllRows;
      ptx::cp_async_16_if(copied, to + pass * kRowsPerPass * kPanel,
                          source + row_step(pass) * pitch + column_step(pass));
    }
  }

  // Copies a tile of which only rows x columns are inside the matrix: the rest is zero-filled.
  __device__ __forceinline__ static void load(T* target, const T* source, int64_t pitch, int rows, int columns,
                                              int width) {
    T* const to = slot(target);
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      if (kUneven && first() + pass * kRowsPerPass >= kAllRows) break;
      const int row = first_row() + row_step(pass), column = first_column() + column_step(pass);
      const int left = row < rows ? min(max(columns - column, 0), 8) : 0;
      const T* from = source + row_step(pass) * pitch + column_step(pass);  // not read from where left is 0
      if constexpr (Config::kVector == 8) {
        ptx::cp_async_16(to + pass * kRowsPerPass * kPanel, from, left * 2);
      } else {
        ptx::copy_narrow(to + pass * kRowsPerPass * kPanel, from, left, width);
      }
    }
  }
};

// A's and B's shared-memory layouts as (M or N, K, stage), and the tensor-core product of the CTA.
template <class Config>
struct MultistageTypes {
  using TileA = OperandTile<Config, Config::BM, Config::BK>;
  using TileB = OperandTile<Config, Config::kTn ? Config::BN : Config::BK, Config::kTn ? Config::BK : Config::BN>;

  template <class Tile, int Extent, bool kMajorK>
  static constexpr auto shared_layout() {
    using namespace cute;
    const auto shape = make_shape(Int<Extent>{}, Int<Config::BK>{}, Int<Config::kStages>{});
    if constexpr (kMajorK) {
      return tile_to_shape(typename Tile::Atom{}, shape, Step<_1, _2, _3>{});
    } else {
      return tile_to_shape(typename Tile::AtomT{}, shape, Step<_2, _1, _3>{});
    }
  }

  using Atom =
      std::conditional_t<Config::kDType == DType::f16, cute::SM80_16x8x16_F32F16F16F32_TN,
                         std::conditional_t<Config::kDType == DType::bf16, cute::SM80_16x8x16_F32BF16BF16F32_TN,
                                            cute::SM80_16x8x16_F16F16F16F16_TN>>;
  using Mma = cute::TiledMMA<
      cute::MMA_Atom<Atom>,
      cute::Layout<cute::Shape<cute::Int<Config::kWarpsM>, cute::Int<Config::kWarpsN>, cute::Int<Config::kWarpsK>>>,
      cute::Tile<cute::Int<16 * Config::kWarpsM>, cute::Int<16 * Config::kWarpsN>, cute::Int<16 * Config::kWarpsK>>>;
  using LoadA = cute::Copy_Atom<cute::SM75_U32x4_LDSM_N, typename Config::Element>;
  using LoadB = cute::Copy_Atom<std::conditional_t<Config::kTn, cute::SM75_U32x4_LDSM_N, cute::SM75_U16x8_LDSM_T>,
                                typename Config::Element>;
};

// The k blocks [begin, end) of a tile.
struct TileWork {
  TileIndex tile;
  int begin, end;
};

// accumulator += A @ B over the blocks of `work`. Every thread of the CTA takes part; shared memory must be free.
template <class Config, class Accumulator>
__device__ __forceinline__ void multiply(Accumulator& accumulator, typename Config::T* smem,
                                         const MultistageParams& params, const TileWork& work) {
  using namespace cute;
  using T = typename Config::T;
  using Types = MultistageTypes<Config>;
  using Element = typename Config::Element;
  constexpr int kSteps = Config::BK / 16 / Config::kWarpsK, kPrefetch = Config::kPrefetch;

  T* const smem_b = smem + Config::kStages * Config::kStageA;
  const int row = work.tile.m * Config::BM, column = work.tile.n * Config::BN;
  using TileA = typename Types::TileA;
  using TileB = typename Types::TileB;
  const int along_m = params.m - row, along_n = params.n - column;
  const T* const a = static_cast<const T*>(params.a) + (row + TileA::first_row()) * params.lda + TileA::first_column();
  const T* const b = static_cast<const T*>(params.b) + ((Config::kTn ? column : 0) + TileB::first_row()) * params.ldb +
                     TileB::first_column() + (Config::kTn ? 0 : column);
  const int64_t block_a = Config::BK, block_b = Config::kTn ? Config::BK : Config::BK * params.ldb;
  // Blocks before `full` are inside the matrices along K.
  const int full = Config::kVector == 8 ? min(params.k / Config::BK, work.end) : 0;

  // The block that is copied next, and to where.
  int fill = work.begin, write = 0;
  const T* fill_a = a + fill * block_a;
  const T* fill_b = b + fill * block_b;
  constexpr int kPasses = TileA::kPasses + TileB::kPasses;
  // Copies of a full block: of the passes of A, followed by B's, those from `begin` to `end`.
  const auto load = [&](auto begin, auto end) {
    if constexpr (begin < TileA::kPasses) {
      TileA::template load<true>(smem + write * Config::kStageA, fill_a, params.lda, along_m, begin, end);
    }
    if constexpr (end > TileA::kPasses) {
      TileB::template load<Config::kTn>(smem_b + write * Config::kStageB, fill_b, params.ldb, along_n,
                                        max(begin - TileA::kPasses, 0), end - TileA::kPasses);
    }
  };
  // Copies of any block, and of none past the end.
  const auto load_any = [&] {
    if (fill < full) {
      load(Int<0>{}, Int<kPasses>{});
    } else if (fill < work.end) {
      const int along_k = params.k - fill * Config::BK;
      TileA::load(smem + write * Config::kStageA, fill_a, params.lda, along_m, along_k, params.width_a);
      TileB::load(smem_b + write * Config::kStageB, fill_b, params.ldb, Config::kTn ? along_n : along_k,
                  Config::kTn ? along_k : along_n, params.width_b);
    }
  };
  const auto next_fill = [&] {
    ptx::cp_async_commit();
    ++fill;
    fill_a += block_a;
    fill_b += block_b;
    write = write + 1 == Config::kStages ? 0 : write + 1;
  };

#pragma unroll
  for (int stage = 0; stage < Config::kStages - 1; ++stage) {
    load_any();
    next_fill();
  }

  auto shared_a = make_tensor(make_smem_ptr(reinterpret_cast<Element*>(smem)),
                              Types::template shared_layout<typename Types::TileA, Config::BM, true>());
  auto shared_b = make_tensor(make_smem_ptr(reinterpret_cast<Element*>(smem_b)),
                              Types::template shared_layout<typename Types::TileB, Config::BN, Config::kTn>());
  typename Types::Mma mma;
  const auto thread_mma = mma.get_slice(threadIdx.x);
  auto fragment_a = thread_mma.partition_fragment_A(shared_a(_, _, 0));
  auto fragment_b = thread_mma.partition_fragment_B(shared_b(_, _, 0));
  const auto copy_a = make_tiled_copy_A(typename Types::LoadA{}, mma).get_slice(threadIdx.x);
  const auto copy_b = make_tiled_copy_B(typename Types::LoadB{}, mma).get_slice(threadIdx.x);
  const auto from_a = copy_a.partition_S(shared_a);
  const auto from_b = copy_b.partition_S(shared_b);
  auto to_a = copy_a.retile_D(fragment_a);
  auto to_b = copy_b.retile_D(fragment_b);
  static_assert(size<2>(fragment_a) == kSteps);

  int read = 0;
  const auto load_fragments = [&](auto step) {
    copy(typename Types::LoadA{}, from_a(_, _, step, read), to_a(_, _, step));
    copy(typename Types::LoadB{}, from_b(_, _, step, read), to_b(_, _, step));
  };
  ptx::cp_async_wait<Config::kStages - 2>();
  __syncthreads();
  for_each(make_int_sequence<kPrefetch>{}, load_fragments);

  // A block is a round of kSteps steps that begins where its stage opens to readers, kPrefetch steps before its own
  // products. There all have finished reading the stage before it, which is filled again in the course of the round.
  // `steady`: with a full block. `turn`: the step within the round.
  const auto load_share = [&](auto steady, auto turn, auto before) {
    if constexpr (!steady) {
      if constexpr (turn == 0 && before) load_any();
    } else if constexpr (Config::kCopies == Copies::spread) {
      if constexpr (!before) load(Int<turn * kPasses / kSteps>{}, Int<(turn + 1) * kPasses / kSteps>{});
    } else if constexpr (turn == 0) {
      constexpr int kFirst = Config::kCopies == Copies::stagger ? TileA::kPasses : kPasses;
      load(Int<before ? 0 : kFirst>{}, Int<before ? kFirst : kPasses>{});
    }
  };
  const auto next_round = [&] {
    next_fill();
    ptx::cp_async_wait<Config::kStages - 2>();
    __syncthreads();
    read = read + 1 == Config::kStages ? 0 : read + 1;
  };
  const auto multiply_block = [&](auto steady) {
    for_each(make_int_sequence<kSteps>{}, [&](auto step) {
      const Int<(step + kPrefetch) % kSteps> ahead;
      if constexpr (kPrefetch > 0 && ahead == 0) next_round();
      load_fragments(ahead);
      load_share(steady, ahead, true_type{});
      gemm(mma, fragment_a(_, _, step), fragment_b(_, _, step), accumulator);
      load_share(steady, ahead, false_type{});
    });
    if constexpr (kPrefetch == 0) next_round();
  };
  // With shares, the first kPrefetch of a round fall into the iteration before the others'.
  constexpr int kEarly = Config::kCopies == Copies::spread ? kPrefetch * kPasses / kSteps : 0;
  if constexpr (kPrefetch > 0) {
    if (kEarly > 0 && fill < full) {
      load(Int<0>{}, Int<kEarly>{});
    } else {
      load_any();
    }
  }
  int block = work.begin;
  if constexpr (Config::kVector == 8) {
#pragma unroll 1
    for (; fill + (kPrefetch > 0 ? 1 : 0) < full; ++block) multiply_block(true_type{});
  }
  if constexpr (kEarly > 0) {
    if (fill < full) load(Int<kEarly>{}, Int<kPasses>{});
  }
#pragma unroll 1
  for (; block < work.end; ++block) multiply_block(false_type{});
  ptx::cp_async_wait<0>();
  __syncthreads();
}

// Stores 8 neighbouring values of C, those that are inside it; 16 bytes at once where that is possible.
template <class Config>
__device__ __forceinline__ void store_vector(const uint32_t (&packed)[4], const MultistageParams& params, int row,
                                             int column) {
  uint16_t* const c = static_cast<uint16_t*>(params.c) + row * params.ldc + column;
  if (Config::kVector == 8 || (params.width_c == 8 && column + 8 <= params.n)) {
    *reinterpret_cast<uint4*>(c) = make_uint4(packed[0], packed[1], packed[2], packed[3]);
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (column + i < params.n) c[i] = static_cast<uint16_t>(packed[i / 2] >> (i % 2 * 16));
    }
  }
}

// Stores the CTA's tile. Shared memory must be free.
template <class Config, class Accumulator>
__device__ __forceinline__ void store_tile(Accumulator& accumulator, uint8_t* smem, const MultistageParams& params,
                                           TileIndex tile) {
  using namespace cute;
  using T = typename Config::T;
  typename MultistageTypes<Config>::Mma mma;
  const auto thread_mma = mma.get_slice(threadIdx.x);
  const auto places = thread_mma.partition_C(make_identity_tensor(Shape<Int<Config::BM>, Int<Config::BN>>{}));
  const int first_row = tile.m * Config::BM, first_column = tile.n * Config::BN;
  constexpr int kVectors = Config::BN / 8;
  const int warp_k = threadIdx.x / (32 * Config::kWarpsM * Config::kWarpsN);
  if (params.bias != nullptr && warp_k == 0) {
    const T* const bias = static_cast<const T*>(params.bias);
#pragma unroll
    for (int i = 0; i < size(accumulator); ++i) {
      const float value = load_bias(bias, first_column + get<1>(places(i)), params.n);
      accumulator(i) = typename Config::Accumulator(float(accumulator(i)) + value);
    }
  }

  if constexpr (Config::kWarpsK > 1) {
    float* const partial = reinterpret_cast<float*>(smem);
    float* const own = partial + warp_k * Config::BM * Config::kPitchPartial;
#pragma unroll
    for (int i = 0; i < size(accumulator); i += 2) {
      const int r = get<0>(places(i)), c = get<1>(places(i));
      *reinterpret_cast<float2*>(own + r * Config::kPitchPartial + c) =
          make_float2(float(accumulator(i)), float(accumulator(i + 1)));
    }
    __syncthreads();
    for (int vector = threadIdx.x; vector < Config::BM * kVectors; vector += Config::kThreads) {
      const int r = vector / kVectors, c = vector % kVectors * 8;
      if (first_row + r >= params.m || first_column + c >= params.n) continue;
      float sum[8] = {};
#pragma unroll
      for (int part = 0; part < Config::kWarpsK; ++part) {
        const float* from = partial + (part * Config::BM + r) * Config::kPitchPartial + c;
#pragma unroll
        for (int i = 0; i < 8; ++i) sum[i] += from[i];
      }
      uint32_t packed[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) packed[i] = pack<T>(sum[2 * i], sum[2 * i + 1]);
      store_vector<Config>(packed, params, first_row + r, first_column + c);
    }
  } else {
    T* const staging = reinterpret_cast<T*>(smem);
#pragma unroll
    for (int i = 0; i < size(accumulator); i += 2) {
      T* const slot = staging + get<0>(places(i)) * Config::kPitchC + get<1>(places(i));
      *reinterpret_cast<uint32_t*>(slot) = pack<T>(float(accumulator(i)), float(accumulator(i + 1)));
    }
    __syncthreads();
    for (int vector = threadIdx.x; vector < Config::BM * kVectors; vector += Config::kThreads) {
      const int r = vector / kVectors, c = vector % kVectors * 8;
      if (first_row + r >= params.m || first_column + c >= params.n) continue;
      uint32_t packed[4];
      *reinterpret_cast<uint4*>(packed) = *reinterpret_cast<const uint4*>(staging + r * Config::kPitchC + c);
      store_vector<Config>(packed, params, first_row + r, first_column + c);
    }
  }
}

// Which CTA computes which k blocks: `ctas` equal parts of one line of tiles * blocks units.
struct WorkLine {
  int64_t units;  // tiles * blocks
  int ctas, blocks;

  __device__ __forceinline__ int64_t begin(int cta) const { return cta * units / ctas; }
  __device__ __forceinline__ int owner(int64_t unit) const { return static_cast<int>(((unit + 1) * ctas - 1) / units); }
  // Each CTA has at most two tiles that it shares: its first and its last.
  __device__ __forceinline__ int slot(int cta, int tile) const {
    return 2 * cta + (begin(cta) / blocks == tile ? 0 : 1);
  }
};

// Puts this CTA's part of `tile` into the workspace. True for the CTA that arrives last, with the sum of all parts, in
// the order of K, in its accumulator.
template <class Config, class Accumulator>
__device__ __forceinline__ bool join_parts(Accumulator& accumulator, const MultistageParams& params,
                                           const WorkLine& line, int tile) {
  constexpr int kValues = decltype(cute::size(accumulator))::value, kSlot = Config::BM * Config::BN;
  static_assert(kValues % 4 == 0 && kValues * Config::kThreads == kSlot);
  const auto slot = [&](int cta) {
    return reinterpret_cast<float4*>(params.partials + static_cast<int64_t>(line.slot(cta, tile)) * kSlot) +
           threadIdx.x;
  };
  float4* const own = slot(blockIdx.x);
#pragma unroll
  for (int i = 0; i < kValues; i += 4) {
    __stcg(own + i / 4 * Config::kThreads, make_float4(float(accumulator(i)), float(accumulator(i + 1)),
                                                       float(accumulator(i + 2)), float(accumulator(i + 3))));
  }
  const int64_t first_unit = static_cast<int64_t>(tile) * line.blocks;
  const int first = line.owner(first_unit), last = line.owner(first_unit + line.blocks - 1);
  __shared__ int arrived;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) arrived = atomicAdd(params.counters + tile, 1);
  __syncthreads();
  if (arrived != last - first) return false;
  __threadfence();
  if (threadIdx.x == 0) params.counters[tile] = 0;  // for the next launch
  float sum[kValues] = {};
  for (int cta = first; cta <= last; ++cta) {
    const float4* const from = slot(cta);
#pragma unroll
    for (int i = 0; i < kValues; i += 4) {
      const float4 part = __ldcg(from + i / 4 * Config::kThreads);
      sum[i] += part.x;
      sum[i + 1] += part.y;
      sum[i + 2] += part.z;
      sum[i + 3] += part.w;
    }
  }
#pragma unroll
  for (int i = 0; i < kValues; ++i) accumulator(i) = typename Config::Accumulator(sum[i]);
  return true;
}

template <class Config>
__global__ void __launch_bounds__(Config::kThreads) multistage_gemm(const __grid_constant__ MultistageParams params) {
  using namespace cute;
  extern __shared__ __align__(128) uint8_t dynamic_smem[];
  auto* const smem = reinterpret_cast<typename Config::T*>(dynamic_smem);
  typename MultistageTypes<Config>::Mma mma;
  auto accumulator = partition_fragment_C(mma, Shape<Int<Config::BM>, Int<Config::BN>>{});
  const int blocks = (params.k + Config::BK - 1) / Config::BK;

  ptx::grid_dependency_wait();
  if constexpr (!Config::kStreamK) {
    const TileWork work{tile_at(params.order, blockIdx.x), 0, blocks};
    clear(accumulator);
    multiply<Config>(accumulator, smem, params, work);
    ptx::launch_dependents();
    store_tile<Config>(accumulator, dynamic_smem, params, work.tile);
  } else {
    const int tiles = params.order.tiles_m * params.order.tiles_n;
    const WorkLine line{static_cast<int64_t>(tiles) * blocks, static_cast<int>(gridDim.x), blocks};
    const int64_t end = line.begin(blockIdx.x + 1);
    for (int64_t unit = line.begin(blockIdx.x); unit < end;) {
      const int tile = static_cast<int>(unit / blocks), first = static_cast<int>(unit % blocks);
      const int count = static_cast<int>(min(end - unit, int64_t{blocks - first}));
      const TileWork work{tile_at(params.order, tile), first, first + count};
      clear(accumulator);
      multiply<Config>(accumulator, smem, params, work);
      const bool whole = count == blocks;
      if (whole || join_parts<Config>(accumulator, params, line, tile)) {
        store_tile<Config>(accumulator, dynamic_smem, params, work.tile);
      }
      __syncthreads();
      unit += count;
    }
  }
}

}  // namespace cudal2
