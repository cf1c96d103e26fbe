// sm90: C = A @ B (+ bias) by TMA and WGMMA, fp16 or bf16 in and out, fp32 accumulation. Compute capability 9.0.
//
// Tile and pipeline. A CTA computes BM x BN of C, stepping BK through K. One producer warp fills `Stages` shared-memory
// buffers by TMA (128-byte swizzle); `Consumers` warpgroups multiply from them (m64nBNk16). Cooperative: the
// warpgroups share the tile's rows. Pingpong: each has its own BM x BN tile and they take tiles in turn, so that one's
// epilogue runs under the other's mainloop. Where the accumulators are large the producer is a whole warpgroup, which
// gives its registers to the consumers; elsewhere it is a single warp.
//
// Cluster. ClusterM x ClusterN CTAs share loads: each loads its slice of A and of B and multicasts it to the CTAs that
// use it. Split CTAs share a tile by K: each sends its fp32 partial sums to the owners of its columns through
// distributed shared memory, and each owner adds them in the order of K, so the same inputs give the same bits.
//
// Grid. One CTA per tile, or fewer CTAs that stride over the tiles (persistent; not with Split).
//
// Constraints. A and C row-major, B row-major (nn) or transposed (tn); bases 16-byte aligned, pitches multiples of 8
// elements, N a multiple of 8. M, N and K need not divide the tile: TMA fills with zeros outside, stores are
// predicated.
//
// Timed with cudal2.search.sweep in graph mode; figures are in generated_kernels/plans/h200.csv.
#pragma once

#include "kernels/epilogue.cuh"
#include "kernels/params.h"
#include "kernels/ptx.cuh"
#include "kernels/schedule.cuh"
#include "runtime/gemm.h"
#include "sm90/wgmma.inc"

namespace cudal2 {

template <class T_, Layout kLayout_, int BM_, int BN_, int BK_, int Stages_, int ClusterM_, int ClusterN_, int Split_,
          bool Pingpong_, int Consumers_>
struct Sm90Config {
  using T = T_;
  static constexpr DType kDType = std::is_same_v<T, f16> ? DType::f16 : DType::bf16;
  static constexpr Layout kLayout = kLayout_;
  static constexpr int BM = BM_, BN = BN_, BK = BK_, kStages = Stages_;
  static constexpr int kClusterM = ClusterM_, kClusterN = ClusterN_, kSplit = Split_;
  static constexpr bool kPingpong = Pingpong_;
  static constexpr int kConsumers = Consumers_;
  static constexpr int kVector = 8, kMultipleOfK = 1, kMaxTilesN = 1 << 30;
  static constexpr bool kStreamK = false;
  static constexpr int kMinArch = 90, kMaxArch = 90;

  static constexpr int kShare = kClusterM * kClusterN;  // CTAs that share loads
  static constexpr int kCluster = kShare * kSplit;
  static constexpr int kRows = kPingpong ? BM : BM / kConsumers;  // of one warpgroup's accumulator
  static constexpr int kRowBlocks = kRows / 64;

  // An SM sub-partition holds 16384 registers, so a third warp on it leaves 168 a thread and a fourth 128. Accumulators
  // that do not fit that take registers from a producer warpgroup.
  static constexpr int kAccumulators = kRows * BN / 128;
  static constexpr bool kReallocate =
      (kConsumers == 2 && kAccumulators > 112) || (kConsumers == 3 && kAccumulators > 72);
  static constexpr int kProducerRegisters = kConsumers == 2 ? 56 : 32;
  static constexpr int kConsumerRegisters = kConsumers == 2 ? 224 : 160;
  static constexpr int kThreads = 128 * kConsumers + (kReallocate ? 128 : 32);

  // A panel is one swizzle's width of the contiguous dimension: 64 elements (128 bytes), less for a narrow B under nn.
  // A, and B as tn, have BK / 64 panels of BM or BN rows along K; B as nn has panels of BK rows along N.
  static constexpr bool kTn = kLayout == Layout::tn;
  static constexpr int kPanelsK = BK / 64;
  static constexpr int kPanelColumnsB = kTn ? 64 : nn_panel_columns(BN);
  static constexpr int kPanelsN = (BN + kPanelColumnsB - 1) / kPanelColumnsB;
  static constexpr int kPanelA = BM * 128;
  static constexpr int kPanelB = (kTn ? BN : BK) * kPanelColumnsB * 2;
  static constexpr int kPanelsB = kTn ? kPanelsK : kPanelsN;
  static constexpr int kStageA = kPanelsK * kPanelA;
  static constexpr int kStageB = kPanelsB * kPanelB;
  static constexpr int kBoxRowsA = BM / kClusterN;  // rows of one TMA box: a slice of a panel
  static constexpr int kBoxRowsB = (kTn ? BN : BK) / kClusterM;

  // Split-K: each CTA of the split owns kOwned column blocks (of 8) of the tile.
  static constexpr int kOwned = (BN / 8 + kSplit - 1) / kSplit;
  static constexpr int kReduction = kSplit == 1 ? 0 : kSplit * kOwned * 8 * BM * 4;

  // Shared memory: pipeline, partial sums (beside it if there is room, or else over it), staging, barriers.
  static constexpr int kPipeline = kStages * (kStageA + kStageB);
  static constexpr int kAround = 1024 + kConsumers * 4 * kStagingBytes + 16 * kStages + 16;
  static constexpr int kBeside = kPipeline + kReduction + kAround;
  static constexpr int kOver = (kPipeline > kReduction ? kPipeline : kReduction) + kAround;
  static constexpr int kTwoCtas = 113 * 1024;  // with at most this much, two CTAs fit one SM
  static constexpr bool kReuse = kReduction > 0 && (kBeside > 227 * 1024 || (kBeside > kTwoCtas && kOver <= kTwoCtas));
  static constexpr int kReductionOffset = kReuse ? 0 : kPipeline;
  static constexpr int kStagingOffset = kReuse && kPipeline > kReduction ? kPipeline : kReductionOffset + kReduction;
  static constexpr int kBarrierOffset = kStagingOffset + kConsumers * 4 * kStagingBytes;
  static constexpr int kSmem = kStagingOffset + kAround;

  static_assert(BK % 64 == 0 && kRows % 64 == 0 && BN % 8 == 0 && BN <= 256);
  static_assert(!kPingpong || (kConsumers == 2 && kSplit == 1));
  static_assert(kBoxRowsA % 8 == 0 && kBoxRowsB % 8 == 0);
};

// Position in the ring of stage buffers.
template <int Stages>
struct Ring {
  int stage = 0;
  uint32_t phase = 0;

  __device__ __forceinline__ void advance() {
    if (++stage == Stages) {
      stage = 0;
      phase ^= 1;
    }
  }
  __device__ __forceinline__ void skip(int count) {
    const int position = stage + count;
    phase ^= (position / Stages) & 1;
    stage = position % Stages;
  }
};

// Who this CTA is in its cluster: ranks count M first, then N, then the split.
template <class Config>
struct ClusterPlace {
  int m, n, split;

  __device__ __forceinline__ ClusterPlace() {
    const int rank = Config::kCluster == 1 ? 0 : static_cast<int>(ptx::cluster_rank());
    m = rank % Config::kClusterM;
    n = rank / Config::kClusterM % Config::kClusterN;
    split = rank / Config::kShare;
  }
  __device__ __forceinline__ static int rank_of(int m, int n, int split) {
    return m + Config::kClusterM * (n + Config::kClusterN * split);
  }
};

template <class Config>
struct Sm90Smem {
  uint32_t base;  // 1024-byte aligned, the same offset in every CTA of a cluster

  __device__ __forceinline__ uint32_t a(int stage) const { return base + stage * Config::kStageA; }
  __device__ __forceinline__ uint32_t b(int stage) const {
    return base + Config::kStages * Config::kStageA + stage * Config::kStageB;
  }
  __device__ __forceinline__ uint32_t staging(int warp) const {
    return base + Config::kStagingOffset + warp * kStagingBytes;
  }
  __device__ __forceinline__ uint32_t full(int stage) const { return base + Config::kBarrierOffset + 8 * stage; }
  __device__ __forceinline__ uint32_t empty(int stage) const { return full(Config::kStages + stage); }
  __device__ __forceinline__ uint32_t reduced() const { return full(2 * Config::kStages); }
};

// Fills one stage: this CTA's slices of A and B, to every CTA that uses them.
template <class Config>
__device__ __forceinline__ void load_stage(const Sm90Params& params, const Sm90Smem<Config>& smem,
                                           const ClusterPlace<Config>& place, int stage, TileIndex tile, int k_block) {
  const uint32_t barrier = smem.full(stage);
  ptx::mbarrier_arrive_expect_tx(barrier, Config::kStageA + Config::kStageB);

  const int row_a = tile.m * Config::BM + place.n * Config::kBoxRowsA;
  uint16_t mask_a = 0;
#pragma unroll
  for (int n = 0; n < Config::kClusterN; ++n) mask_a |= 1 << place.rank_of(place.m, n, place.split);
#pragma unroll
  for (int panel = 0; panel < Config::kPanelsK; ++panel) {
    const uint32_t target = smem.a(stage) + panel * Config::kPanelA + place.n * Config::kBoxRowsA * 128;
    const int k = k_block * Config::BK + panel * 64;
    if constexpr (Config::kClusterN == 1) {
      ptx::tma_load(target, &params.tma_a, barrier, k, row_a);
    } else {
      ptx::tma_load_multicast(target, &params.tma_a, barrier, k, row_a, mask_a);
    }
  }

  uint16_t mask_b = 0;
#pragma unroll
  for (int m = 0; m < Config::kClusterM; ++m) mask_b |= 1 << place.rank_of(m, place.n, place.split);
#pragma unroll
  for (int panel = 0; panel < Config::kPanelsB; ++panel) {
    const uint32_t target =
        smem.b(stage) + panel * Config::kPanelB + place.m * Config::kBoxRowsB * Config::kPanelColumnsB * 2;
    const int slice = place.m * Config::kBoxRowsB;
    const int x =
        Config::kTn ? k_block * Config::BK + panel * 64 : tile.n * Config::BN + panel * Config::kPanelColumnsB;
    const int y = Config::kTn ? tile.n * Config::BN + slice : k_block * Config::BK + slice;
    if constexpr (Config::kClusterM == 1) {
      ptx::tma_load(target, &params.tma_b, barrier, x, y);
    } else {
      ptx::tma_load_multicast(target, &params.tma_b, barrier, x, y, mask_b);
    }
  }
}

// Tells every CTA that loads into this stage's buffers that this warp has read them.
template <class Config>
__device__ __forceinline__ void release_stage(const Sm90Smem<Config>& smem, const ClusterPlace<Config>& place,
                                              int stage) {
  const int lane = threadIdx.x % 32;
  if constexpr (Config::kShare == 1) {
    if (lane == 0) ptx::mbarrier_arrive(smem.empty(stage));
  } else if (lane < Config::kClusterM + Config::kClusterN - 1) {
    // Lanes below kClusterN: the CTAs of this row; the rest: the other CTAs of this column.
    const int other = lane - Config::kClusterN;
    const int m = lane < Config::kClusterN ? place.m : other + (other >= place.m);
    const int n = lane < Config::kClusterN ? lane : place.n;
    ptx::mbarrier_arrive_cluster(smem.empty(stage), place.rank_of(m, n, place.split));
  }
}

// wgmma shared-memory descriptor of an operand in panels of 64, 32 or 16 elements, swizzled over that width. `panel` is
// the distance between panels and counts only where the operand is contiguous along M or N.
template <int PanelColumns>
__device__ __forceinline__ uint64_t wgmma_descriptor(uint32_t address, int panel) {
  constexpr uint64_t kSwizzle = PanelColumns == 64 ? 1 : PanelColumns == 32 ? 2 : 3;
  constexpr uint64_t kEightRows = 8 * PanelColumns * 2;
  return (kSwizzle << 62) | (kEightRows >> 4 << 32) | (static_cast<uint64_t>(panel >> 4) << 16) |
         static_cast<uint64_t>((address & 0x3FFFF) >> 4);
}

// Issues one stage's multiplications; with `First`, the accumulator starts from them.
template <class Config, bool First>
__device__ __forceinline__ void multiply_stage(float (&accumulator)[Config::kRowBlocks][Config::BN / 2],
                                               const Sm90Smem<Config>& smem, int stage, int first_row) {
  using Mma = Wgmma<typename Config::T, Config::BN, Config::kTn ? 0 : 1>;
  const uint64_t a = wgmma_descriptor<64>(smem.a(stage) + first_row * 128, 16);
  const uint64_t b = wgmma_descriptor<Config::kPanelColumnsB>(smem.b(stage), Config::kTn ? 16 : Config::kPanelB);
  ptx::wgmma_fence();
#pragma unroll
  for (int step = 0; step < Config::BK / 16; ++step) {
    // 16 elements along K: 32 bytes inside a panel's row, or 16 rows of a panel where B is contiguous along N.
    const int step_a = (step / 4 * Config::kPanelA + step % 4 * 32) >> 4;
    const int step_b =
        (Config::kTn ? step / 4 * Config::kPanelB + step % 4 * 32 : step * 16 * Config::kPanelColumnsB * 2) >> 4;
#pragma unroll
    for (int i = 0; i < Config::kRowBlocks; ++i) {
      const uint64_t a_block = a + step_a + i * (64 * 128 >> 4);
      if (First && step == 0) {
        Mma::start(accumulator[i], a_block, b + step_b);
      } else {
        Mma::accumulate(accumulator[i], a_block, b + step_b);
      }
    }
  }
  ptx::wgmma_commit();
}

// accumulator = A @ B over `k_blocks` >= 1 stages. A stage is released one step late: only then has wgmma read it.
// `after_last_load` is called once every stage has arrived.
template <class Config, class Callback>
__device__ __forceinline__ void mainloop(float (&accumulator)[Config::kRowBlocks][Config::BN / 2],
                                         const Sm90Smem<Config>& smem, const ClusterPlace<Config>& place,
                                         Ring<Config::kStages>& ring, int k_blocks, int first_row,
                                         Callback after_last_load) {
  ptx::mbarrier_wait(smem.full(ring.stage), ring.phase);
  multiply_stage<Config, true>(accumulator, smem, ring.stage, first_row);
  int previous = ring.stage;
  ring.advance();
  for (int block = 1; block < k_blocks; ++block) {
    ptx::mbarrier_wait(smem.full(ring.stage), ring.phase);
    multiply_stage<Config, false>(accumulator, smem, ring.stage, first_row);
    ptx::wgmma_wait<1>();
    release_stage<Config>(smem, place, previous);
    previous = ring.stage;
    ring.advance();
  }
  after_last_load();
  ptx::wgmma_wait<0>();
  release_stage<Config>(smem, place, previous);
}

// Pingpong: a warpgroup may look at the stages of its tile only when the other has seen all of its own, or it would
// take an older phase of a barrier for its own. Named barrier 1 lets warpgroup 0 go, 2 lets warpgroup 1.
struct PingpongTurn {
  int group;

  __device__ __forceinline__ void wait() const { ptx::named_barrier_sync(1 + group, 256); }
  __device__ __forceinline__ void pass() const { ptx::named_barrier_arrive(2 - group, 256); }
};

template <class Config>
__device__ __forceinline__ OutputTile output_of(const Sm90Params& params, TileIndex tile) {
  return {params.c, params.bias, params.ldc, params.m, min(params.n, (tile.n + 1) * Config::BN)};
}

// Sends partial sums to their owners in the cluster, adds up what this CTA owns in the order of K, stores it.
template <class Config>
__device__ __forceinline__ void reduce_and_store(const float (&accumulator)[Config::kRowBlocks][Config::BN / 2],
                                                 const Sm90Params& params, const Sm90Smem<Config>& smem,
                                                 const ClusterPlace<Config>& place, TileIndex tile, int first_row) {
  constexpr int kThreads = 128 * Config::kConsumers;
  const int thread = threadIdx.x;
  auto slot = [&](int source, int i, int owned) {
    return smem.base + Config::kReductionOffset +
           ((((source * Config::kRowBlocks + i) * Config::kOwned) + owned) * kThreads + thread) * 16;
  };
  if constexpr (Config::kReuse) ptx::cluster_sync_relaxed();  // every CTA has read its last stage
#pragma unroll
  for (int block = 0; block < Config::BN / 8; ++block) {
    const int owner = place.rank_of(place.m, place.n, block / Config::kOwned);
    const uint32_t barrier = ptx::map_to_cta(smem.reduced(), owner);
#pragma unroll
    for (int i = 0; i < Config::kRowBlocks; ++i) {
      const float* d = accumulator[i] + block * 4;
      const uint32_t address = ptx::map_to_cta(slot(place.split, i, block % Config::kOwned), owner);
      ptx::store_async(address, barrier, d[0], d[1], d[2], d[3]);
    }
  }
  ptx::mbarrier_wait(smem.reduced(), 0);

  const int warp = thread / 32;
  const OutputTile out = output_of<Config>(params, tile);
#pragma unroll
  for (int i = 0; i < Config::kRowBlocks; ++i) {
    float sum[Config::kOwned * 4];
#pragma unroll
    for (int owned = 0; owned < Config::kOwned; ++owned) {
      float4 total = ptx::load_shared_f32(slot(0, i, owned));
#pragma unroll
      for (int source = 1; source < Config::kSplit; ++source) {
        const float4 part = ptx::load_shared_f32(slot(source, i, owned));
        total.x += part.x, total.y += part.y, total.z += part.z, total.w += part.w;
      }
      sum[owned * 4] = total.x, sum[owned * 4 + 1] = total.y, sum[owned * 4 + 2] = total.z,
                  sum[owned * 4 + 3] = total.w;
    }
    store_accumulator<typename Config::T, Config::kOwned * 8>(sum, out, smem.staging(warp),
                                                              tile.m * Config::BM + first_row + i * 64 + warp % 4 * 16,
                                                              tile.n * Config::BN + place.split * Config::kOwned * 8);
  }
}

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1) sm90_gemm(const __grid_constant__ Sm90Params params) {
  extern __shared__ uint8_t dynamic_smem[];
  const Sm90Smem<Config> smem{(ptx::smem_u32(dynamic_smem) + 1023) & ~1023u};
  const ClusterPlace<Config> place;
  const int warp = __shfl_sync(0xFFFFFFFF, threadIdx.x / 32, 0);  // uniform, and known to be
  constexpr int kProducerWarp = 4 * Config::kConsumers;

  if (threadIdx.x == 32 * kProducerWarp) {
    ptx::prefetch_tensor_map(&params.tma_a);
    ptx::prefetch_tensor_map(&params.tma_b);
    constexpr int kReaders = Config::kPingpong ? 1 : Config::kConsumers;  // warpgroups that read one stage
    for (int stage = 0; stage < Config::kStages; ++stage) {
      ptx::mbarrier_init(smem.full(stage), 1);
      ptx::mbarrier_init(smem.empty(stage), 4 * kReaders * (Config::kClusterM + Config::kClusterN - 1));
    }
    if constexpr (Config::kSplit > 1) ptx::mbarrier_init(smem.reduced(), 1);
    ptx::mbarrier_init_fence();
    if constexpr (Config::kSplit > 1) {
      // The last owner may own fewer column blocks than the others, or none.
      const int owned = min(Config::kOwned, max(0, Config::BN / 8 - place.split * Config::kOwned));
      ptx::mbarrier_arrive_expect_tx(smem.reduced(), Config::kSplit * owned * 8 * Config::BM * 4);
    }
  }
  if constexpr (Config::kCluster > 1) {
    ptx::cluster_sync_relaxed();
  } else {
    __syncthreads();
  }
  ptx::launch_dependents();
  // Everything below reads what earlier kernels wrote or writes what they may still read.
  ptx::grid_dependency_wait();

  const int first_tile = blockIdx.x / Config::kCluster;
  const int tile_stride = gridDim.x / Config::kCluster;
  const int k_begin = params.k_blocks * place.split / Config::kSplit;
  const int k_end = params.k_blocks * (place.split + 1) / Config::kSplit;
  const auto tile_of = [&](int index) {
    const TileIndex tile = tile_at(params.order, index);
    return TileIndex{tile.m * Config::kClusterM + place.m, tile.n * Config::kClusterN + place.n};
  };

  if (warp >= kProducerWarp) {
    if constexpr (Config::kReallocate) ptx::release_registers<Config::kProducerRegisters>();
    if (threadIdx.x == 32 * kProducerWarp) {
      Ring<Config::kStages> ring;
      for (int index = first_tile; index < params.tiles; index += tile_stride) {
        const TileIndex tile = tile_of(index);
        for (int k_block = k_begin; k_block < k_end; ++k_block) {
          ptx::mbarrier_wait(smem.empty(ring.stage), ring.phase ^ 1);
          load_stage<Config>(params, smem, place, ring.stage, tile, k_block);
          ring.advance();
        }
      }
      if constexpr (Config::kShare > 1) {
        // Until every arrival from other CTAs has landed on this one's barriers, this CTA has to stay.
        for (int stage = 0; stage < Config::kStages; ++stage) {
          ptx::mbarrier_wait(smem.empty(ring.stage), ring.phase ^ 1);
          ring.advance();
        }
      }
    }
    __syncwarp();
    if constexpr (Config::kReuse) ptx::cluster_sync_relaxed();  // the one in reduce_and_store
  } else {
    if constexpr (Config::kReallocate) ptx::acquire_registers<Config::kConsumerRegisters>();
    const int group = warp / 4;
    const int first_row = Config::kPingpong ? 0 : group * Config::kRows;
    const int k_blocks = k_end - k_begin;
    const int turn = Config::kPingpong ? 2 : 1;  // a pingpong warpgroup takes every second tile
    Ring<Config::kStages> ring;
    const PingpongTurn pingpong{group};
    if (Config::kPingpong && group == 1) {
      pingpong.pass();
      ring.skip(k_blocks);
    }
    for (int index = first_tile + (Config::kPingpong ? group * tile_stride : 0); index < params.tiles;
         index += turn * tile_stride) {
      const TileIndex tile = tile_of(index);
      float accumulator[Config::kRowBlocks][Config::BN / 2];
      if (Config::kPingpong) pingpong.wait();
      mainloop<Config>(accumulator, smem, place, ring, k_blocks, first_row, [&] {
        if (Config::kPingpong && index + tile_stride < params.tiles) pingpong.pass();
      });
      if constexpr (Config::kSplit > 1) {
        reduce_and_store<Config>(accumulator, params, smem, place, tile, first_row);
      } else {
        const OutputTile out = output_of<Config>(params, tile);
#pragma unroll
        for (int i = 0; i < Config::kRowBlocks; ++i) {
          store_accumulator<typename Config::T, Config::BN>(accumulator[i], out, smem.staging(warp),
                                                            tile.m * Config::BM + first_row + i * 64 + warp % 4 * 16,
                                                            tile.n * Config::BN);
        }
      }
      if (Config::kPingpong) ring.skip(k_blocks);
    }
  }
  if constexpr (Config::kShare > 1) {
    // No CTA may leave while others still signal its barriers.
    __syncwarp();
    ptx::cluster_sync_relaxed();
  }
}

}  // namespace cudal2
