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
// Workspace: up to 16 clusters, chosen at launch, share a tile by K through global memory, likewise in order.
//
// Grid. One CTA per tile, or fewer CTAs that stride over the tiles (persistent; where no K is split).
//
// Start and end. What a small problem waits for is kept short: the producer's first loads leave as soon as it has set
// its barriers up (in a cluster each CTA first loads for itself), and no CTA waits for others at its end. C leaves by
// the consumers' own stores, the sooner way out, or by TMA, which lets them begin the next tile.
//
// Constraints. A and C row-major, B row-major (nn) or transposed (tn); bases 16-byte aligned, pitches multiples of 8
// elements, N a multiple of 8. M, N and K need not divide the tile: TMA fills with zeros outside and clips what it
// stores.
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
          bool Pingpong_, int Consumers_, bool TmaStore_, bool Workspace_>
struct Sm90Config {
  using T = T_;
  static constexpr DType kDType = std::is_same_v<T, f16> ? DType::f16 : DType::bf16;
  static constexpr Layout kLayout = kLayout_;
  static constexpr int BM = BM_, BN = BN_, BK = BK_, kStages = Stages_;
  static constexpr int kClusterM = ClusterM_, kClusterN = ClusterN_, kSplit = Split_;
  static constexpr bool kPingpong = Pingpong_;
  static constexpr int kConsumers = Consumers_;
  static constexpr int kVector = 8, kMultipleOfK = 1, kMaxTilesN = 1 << 30;
  static constexpr bool kStreamK = false, kWorkspace = Workspace_;
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

  // Shared memory: pipeline, partial sums (beside it if there is room, or else over it), staging, barriers. For TMA
  // twice the staging, where it costs nothing else.
  static constexpr int kLimit = 227 * 1024;
  static constexpr int kTwoCtas = 113 * 1024;  // with at most this much, two CTAs fit one SM
  static constexpr int kPipeline = kStages * (kStageA + kStageB);
  static constexpr int around(int staging) { return 1024 + kConsumers * 4 * staging + 16 * kStages + 16; }
  static constexpr int beside(int staging) { return kPipeline + kReduction + around(staging); }
  static constexpr int over(int staging) { return (kPipeline > kReduction ? kPipeline : kReduction) + around(staging); }
  static constexpr bool reuse(int staging) {
    return kReduction > 0 && (beside(staging) > kLimit || (beside(staging) > kTwoCtas && over(staging) <= kTwoCtas));
  }
  static constexpr int total(int staging) { return reuse(staging) ? over(staging) : beside(staging); }
  static constexpr int limit(int staging) { return total(staging) <= kTwoCtas ? kTwoCtas : kLimit; }
  static constexpr int kStaging = TmaStore_ && total(4096) <= limit(2048) ? 4096 : 2048;  // per warp
  static constexpr bool kReuse = reuse(kStaging);
  static constexpr int kReductionOffset = kReuse ? 0 : kPipeline;
  static constexpr int kStagingOffset = kReuse && kPipeline > kReduction ? kPipeline : kReductionOffset + kReduction;
  static constexpr int kBarrierOffset = kStagingOffset + kConsumers * 4 * kStaging;
  static constexpr int kSmem = total(kStaging);

  static constexpr bool kTmaStore = TmaStore_;
  static constexpr int kStoreColumns = store_columns(BN, kSplit);
  using Store =
      std::conditional_t<kTmaStore, TmaStore<T, kStoreColumns, kStaging>, DirectStore<T, kStoreColumns, kStaging>>;

  static_assert(BK % 64 == 0 && kRows % 64 == 0 && BN % 8 == 0 && BN <= 256);
  static_assert(!kPingpong || (kConsumers == 2 && kSplit == 1));
  static_assert(!kWorkspace || (!kPingpong && kSplit == 1));
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
    return base + Config::kStagingOffset + warp * Config::kStaging;
  }
  __device__ __forceinline__ uint32_t full(int stage) const { return base + Config::kBarrierOffset + 8 * stage; }
  __device__ __forceinline__ uint32_t empty(int stage) const { return full(Config::kStages + stage); }
  __device__ __forceinline__ uint32_t reduced() const { return full(2 * Config::kStages); }
  __device__ __forceinline__ uint32_t duty() const { return reduced() + 8; }
};

// Loads a panel in `Slices` boxes, or of a shared one the own slice, for the CTAs in `mask`. load(slice, issue) calls
// issue(target, x, y) with the slice's place in shared memory and in the matrix.
template <bool Shared, int Slices, class Load>
__device__ __forceinline__ void load_slices(int own, uint16_t mask, const CUtensorMap* map, uint32_t barrier,
                                            Load load) {
  if constexpr (Shared && Slices > 1) {
    load(own, [&](uint32_t target, int x, int y) { ptx::tma_load_multicast(target, map, barrier, x, y, mask); });
  } else {
#pragma unroll
    for (int slice = 0; slice < Slices; ++slice) {
      load(slice, [&](uint32_t target, int x, int y) { ptx::tma_load(target, map, barrier, x, y); });
    }
  }
}

// Fills one stage with this CTA's tiles of A and B. `Shared`: it loads its slices of them, to every CTA that uses them,
// and the others load theirs; else it loads all slices for itself.
template <class Config, bool Shared>
__device__ __forceinline__ void load_stage(const Sm90Params& params, const Sm90Smem<Config>& smem,
                                           const ClusterPlace<Config>& place, int stage, TileIndex tile, int k_block) {
  const uint32_t barrier = smem.full(stage);
  ptx::mbarrier_arrive_expect_tx(barrier, Config::kStageA + Config::kStageB);

  uint16_t mask_a = 0, mask_b = 0;
#pragma unroll
  for (int n = 0; n < Config::kClusterN; ++n) mask_a |= 1 << place.rank_of(place.m, n, place.split);
#pragma unroll
  for (int m = 0; m < Config::kClusterM; ++m) mask_b |= 1 << place.rank_of(m, place.n, place.split);

#pragma unroll
  for (int panel = 0; panel < Config::kPanelsK; ++panel) {
    const int k = k_block * Config::BK + panel * 64;
    const auto load = [&](int slice, auto issue) {
      issue(smem.a(stage) + panel * Config::kPanelA + slice * Config::kBoxRowsA * 128, k,
            tile.m * Config::BM + slice * Config::kBoxRowsA);
    };
    load_slices<Shared, Config::kClusterN>(place.n, mask_a, &params.tma_a, barrier, load);
  }
#pragma unroll
  for (int panel = 0; panel < Config::kPanelsB; ++panel) {
    const auto load = [&](int slice, auto issue) {
      const int row = slice * Config::kBoxRowsB;
      const uint32_t target = smem.b(stage) + panel * Config::kPanelB + row * Config::kPanelColumnsB * 2;
      if constexpr (Config::kTn) {
        issue(target, k_block * Config::BK + panel * 64, tile.n * Config::BN + row);
      } else {
        issue(target, tile.n * Config::BN + panel * Config::kPanelColumnsB, k_block * Config::BK + row);
      }
    };
    load_slices<Shared, Config::kClusterM>(place.m, mask_b, &params.tma_b, barrier, load);
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

// accumulator = A @ B over `k_blocks` >= 1 stages. A stage is released one step late: only then has wgmma read it; of
// the blocks from `releases` on, none, for nothing more is loaded into their stages. `after_last_load` is called once
// every stage has arrived.
template <class Config, class Callback>
__device__ __forceinline__ void mainloop(float (&accumulator)[Config::kRowBlocks][Config::BN / 2],
                                         const Sm90Smem<Config>& smem, const ClusterPlace<Config>& place,
                                         Ring<Config::kStages>& ring, int k_blocks, int releases, int first_row,
                                         Callback after_last_load) {
  ptx::mbarrier_wait(smem.full(ring.stage), ring.phase);
  multiply_stage<Config, true>(accumulator, smem, ring.stage, first_row);
  int previous = ring.stage;
  ring.advance();
#pragma unroll 1
  for (int block = 1; block < k_blocks; ++block) {
    ptx::mbarrier_wait(smem.full(ring.stage), ring.phase);
    multiply_stage<Config, false>(accumulator, smem, ring.stage, first_row);
    ptx::wgmma_wait<1>();
    if (block <= releases) release_stage<Config>(smem, place, previous);
    previous = ring.stage;
    ring.advance();
  }
  after_last_load();
  ptx::wgmma_wait<0>();
  if (k_blocks <= releases) release_stage<Config>(smem, place, previous);
}

// Named barriers, beside pingpong's 1 and 2.
constexpr int kStartBarrier = 3, kConsumersBarrier = 4;

// Pingpong: a warpgroup may look at the stages of its tile only when the other has seen all of its own, or it would
// take an older phase of a barrier for its own. Named barrier 1 lets warpgroup 0 go, 2 lets warpgroup 1.
struct PingpongTurn {
  int group;

  __device__ __forceinline__ void wait() const { ptx::named_barrier_sync(1 + group, 256); }
  __device__ __forceinline__ void pass() const { ptx::named_barrier_arrive(2 - group, 256); }
};

// Sends partial sums to their owners in the cluster, adds up what this CTA owns in the order of K, stores it.
template <class Config>
__device__ __forceinline__ void reduce_and_store(const float (&accumulator)[Config::kRowBlocks][Config::BN / 2],
                                                 const Sm90Params& params, const Sm90Smem<Config>& smem,
                                                 const ClusterPlace<Config>& place, TileIndex tile, int first_row,
                                                 typename Config::Store& out) {
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

  constexpr int kColumns = Config::kOwned * 8;
  const int column = tile.n * Config::BN + place.split * kColumns;
  const int columns = min(kColumns, Config::BN - place.split * kColumns);  // the last owner may have fewer, or none
#pragma unroll
  for (int i = 0; i < Config::kRowBlocks; ++i) {
    float sum[kColumns / 2];
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
    using T = typename Config::T;
    if (params.bias != nullptr) add_bias<T, kColumns>(sum, static_cast<const T*>(params.bias), column, params.n);
    out.template store<kColumns>(sum, tile.m * Config::BM + first_row + i * 64 + thread / 32 % 4 * 16, column, columns);
  }
}

// A tile whose K is shared by `parts` CTAs through the workspace. Each leaves its partial sums there, waits for the
// others and adds up its slice of the tile. Waiting is bounded, for the others may be behind this one in the queue for
// an SM: then its slice is left to the CTA that arrives last. Who adds up what, never in which order, depends on time.
//
// The tile's word counts arrivals in bits 0-7 and departures in bits 8-15; bit 16 + p says that part p's slice is left
// to the last. Every change is one atomic add, so whoever gives a slice up sees from the old value whether the last had
// arrived before and cannot know: then it adds its slice up after all. The last to depart sets the word back to 0.
struct SharedTile {
  // About 30 µs: several times what CTAs that run together are apart. Giving up costs the last one's extra sums.
  static constexpr int kPolls = 32;

  uint32_t* word;
  int part, parts;

  // Arrives; returns the slices, a bit each, that this CTA has to add up. One thread of the CTA calls it, after a
  // barrier behind the CTA's writes and before one ahead of its reads: its release and acquire then hold for all of
  // them.
  __device__ __forceinline__ uint32_t arrive() const {
    const uint32_t own = 1u << part;
    const uint32_t before = ptx::atomic_add_ordered(word, 1);
    if (arrivals(before) + 1 == parts) {
      depart();
      return own | before >> 16;
    }
#pragma unroll 1
    for (int poll = 0; poll < kPolls; ++poll) {
      if (arrivals(ptx::load_acquire(word)) == parts) {
        depart();
        return own;
      }
      __nanosleep(20);
    }
    return arrivals(depart(1u << (16 + part))) == parts ? own : 0;
  }

 private:
  __device__ __forceinline__ static int arrivals(uint32_t value) { return value & 0xFF; }
  __device__ __forceinline__ uint32_t depart(uint32_t also = 0) const {
    const uint32_t before = ptx::atomic_add_ordered(word, also + (1u << 8));
    if (static_cast<int>(before >> 8 & 0xFF) + 1 == parts) *static_cast<volatile uint32_t*>(word) = 0;
    return before;
  }
};

// Stores a warp's 16 x 8 block of sums, four a thread as in an accumulator, at (row, column) of C.
template <class T>
__device__ __forceinline__ void store_block(const float4& sums, const Sm90Params& params, int row, int column) {
  const int lane = threadIdx.x % 32;
  row += lane / 4;
  column += lane % 4 * 2;
  if (column >= params.n) return;
  const T* bias = static_cast<const T*>(params.bias);
  const float low = load_bias(bias, column, params.n), high = load_bias(bias, column + 1, params.n);
  T* const target = static_cast<T*>(params.c) + row * params.ldc + column;
  if (row < params.m) *reinterpret_cast<uint32_t*>(target) = pack<T>(sums.x + low, sums.y + high);
  if (row + 8 < params.m) {
    *reinterpret_cast<uint32_t*>(target + 8 * params.ldc) = pack<T>(sums.z + low, sums.w + high);
  }
}

// Split-K through the workspace: leaves this CTA's partial sums there, adds up and stores what SharedTile says.
template <class Config>
__device__ __forceinline__ void share_and_store(const float (&accumulator)[Config::kRowBlocks][Config::BN / 2],
                                                const Sm90Params& params, const Sm90Smem<Config>& smem, TileIndex tile,
                                                int part, int first_row) {
  constexpr int kThreads = 128 * Config::kConsumers;
  constexpr int kBlocks = Config::BN / 8;
  constexpr int kUnits = Config::kRowBlocks * kBlocks;  // of four sums a thread; a slice is a run of them
  constexpr int kBatch = 4;
  const int thread = threadIdx.x;
  const int tiles_n = params.order.tiles_n * Config::kClusterN;
  const int number = tile.m * tiles_n + tile.n;
  float4* const partials = reinterpret_cast<float4*>(params.partials) +
                           static_cast<int64_t>(number) * params.split * kUnits * kThreads + thread;
  const auto slot = [&](int source, int unit) { return partials + (source * kUnits + unit) * kThreads; };
#pragma unroll
  for (int unit = 0; unit < kUnits; ++unit) {
    const float* d = accumulator[unit / kBlocks] + unit % kBlocks * 4;
    __stcg(slot(part, unit), make_float4(d[0], d[1], d[2], d[3]));
  }
  ptx::named_barrier_sync(kConsumersBarrier, kThreads);
  if (thread == 0) {
    const SharedTile shared{params.words + number, part, params.split};
    ptx::store_shared_u32(smem.duty(), shared.arrive());
  }
  ptx::named_barrier_sync(kConsumersBarrier, kThreads);
  const uint32_t duty = ptx::load_shared_u32(smem.duty());

  for (int slice = 0; slice < params.split; ++slice) {
    if ((duty >> slice & 1) == 0) continue;
    const int end = kUnits * (slice + 1) / params.split;
    for (int first = kUnits * slice / params.split; first < end; first += kBatch) {
      float4 total[kBatch] = {};
      for (int source = 0; source < params.split; source += kBatch) {
        float4 part_of[kBatch][kBatch];  // all asked for before any is used: what counts is the way to L2
#pragma unroll
        for (int i = 0; i < kBatch * kBatch; ++i) {
          const int from = source + i / kBatch, unit = first + i % kBatch;
          part_of[i / kBatch][i % kBatch] =
              from < params.split && unit < end ? __ldcg(slot(from, unit)) : make_float4(0, 0, 0, 0);
        }
#pragma unroll
        for (int i = 0; i < kBatch * kBatch; ++i) {
          const float4 sums = part_of[i / kBatch][i % kBatch];
          float4& to = total[i % kBatch];
          to.x += sums.x, to.y += sums.y, to.z += sums.z, to.w += sums.w;
        }
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int unit = first + i;
        if (unit < end) {
          const int row = tile.m * Config::BM + first_row + unit / kBlocks * 64 + thread / 32 % 4 * 16;
          store_block<typename Config::T>(total[i], params, row, tile.n * Config::BN + unit % kBlocks * 8);
        }
      }
    }
  }
}

// Sets the pipeline's barriers up. One thread's job: with a fence from each, a warp takes 0.3 µs longer.
template <class Config>
__device__ __forceinline__ void init_barriers(const Sm90Smem<Config>& smem, const ClusterPlace<Config>& place) {
  constexpr int kReaders = Config::kPingpong ? 1 : Config::kConsumers;  // warpgroups that read one stage
#pragma unroll
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

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1) sm90_gemm(const __grid_constant__ Sm90Params params) {
  extern __shared__ uint8_t dynamic_smem[];
  const Sm90Smem<Config> smem{(ptx::smem_u32(dynamic_smem) + 1023) & ~1023u};
  const ClusterPlace<Config> place;
  const int warp = __shfl_sync(0xFFFFFFFF, threadIdx.x / 32, 0);  // uniform, and known to be
  constexpr int kProducerWarp = 4 * Config::kConsumers;

  if (warp == kProducerWarp) {
    if (ptx::elect_one()) {
      ptx::prefetch_tensor_map(&params.tma_a);
      ptx::prefetch_tensor_map(&params.tma_b);
      if constexpr (Config::kTmaStore) ptx::prefetch_tensor_map(&params.tma_c);
      init_barriers<Config>(smem, place);
    }
    __syncwarp();
  }
  // Barriers must be set up before anyone waits at them: those of other CTAs, too, where they are signalled. Only the
  // producer does not wait: its first loads are for this CTA alone.
  if constexpr (Config::kCluster > 1) ptx::cluster_arrive_relaxed();
  if (warp < kProducerWarp) {
    ptx::named_barrier_sync(kStartBarrier, 128 * Config::kConsumers + 32);
    if constexpr (Config::kCluster > 1) ptx::cluster_wait();
  } else if (warp == kProducerWarp) {
    ptx::named_barrier_arrive(kStartBarrier, 128 * Config::kConsumers + 32);
  }
  // Everything below reads what earlier kernels wrote or writes what they may still read.
  ptx::grid_dependency_wait();

  int first_tile = blockIdx.x / Config::kCluster;
  int part = place.split, parts = Config::kSplit;  // of each tile's K
  if constexpr (Config::kWorkspace) {
    part = params.tiles.quotient(first_tile);
    parts = params.split;
    first_tile -= part * params.tiles.value;
  }
  const int step = params.step.value;
  const int k_begin = params.k_blocks * part / parts;
  const int k_end = params.k_blocks * (part + 1) / parts;
  const auto tile_of = [&](int index) {
    const TileIndex tile = tile_at(params.order, index);
    return TileIndex{tile.m * Config::kClusterM + place.m, tile.n * Config::kClusterN + place.n};
  };

  if (__builtin_expect(warp >= kProducerWarp, 1)) {  // it has the shorter way through the code
    if constexpr (Config::kReallocate) ptx::release_registers<Config::kProducerRegisters>();
    if (warp == kProducerWarp) {
      const bool speaker = ptx::elect_one();
      Ring<Config::kStages> ring;
      int fresh = Config::kStages;  // stages that nothing was loaded into yet
      for (int index = first_tile; index < params.tiles.value; index += step) {
        const TileIndex tile = tile_of(index);
#pragma unroll 1
        for (int k_block = k_begin; k_block < k_end; ++k_block) {
          if (fresh > 0) {
            if (speaker) load_stage<Config, false>(params, smem, place, ring.stage, tile, k_block);
            if (--fresh == 0 && Config::kCluster > 1) {
              __syncwarp();
              ptx::cluster_wait();
            }
          } else {
            ptx::mbarrier_wait(smem.empty(ring.stage), ring.phase ^ 1);
            if (speaker) load_stage<Config, true>(params, smem, place, ring.stage, tile, k_block);
          }
          ring.advance();
        }
      }
      if (Config::kCluster > 1 && fresh > 0) {
        __syncwarp();
        ptx::cluster_wait();
      }
      // The next kernel's CTAs may come now: earlier, they would take SMs that this one's have yet to reach.
      ptx::launch_dependents();
    } else if (Config::kCluster > 1) {
      ptx::cluster_wait();
    }
    __syncwarp();
    if constexpr (Config::kReuse) ptx::cluster_sync_relaxed();  // the one in reduce_and_store
  } else {
    if constexpr (Config::kReallocate) ptx::acquire_registers<Config::kConsumerRegisters>();
    using T = typename Config::T;
    const int group = warp / 4;
    const int first_row = Config::kPingpong ? 0 : group * Config::kRows;
    const int k_blocks = k_end - k_begin;
    const int tiles = params.step.quotient(params.tiles.value - 1 - first_tile) + 1;  // of this CTA
    int releases = tiles * k_blocks - Config::kStages;  // from the current tile's first block on
    const int turn = Config::kPingpong ? 2 : 1;         // a pingpong warpgroup takes every second tile
    Ring<Config::kStages> ring;
    typename Config::Store out{params, smem.staging(warp)};
    const PingpongTurn pingpong{group};
    if (Config::kPingpong && group == 1) {
      pingpong.pass();
      ring.skip(k_blocks);
      releases -= k_blocks;
    }
    for (int index = first_tile + (Config::kPingpong ? group * step : 0); index < params.tiles.value;
         index += turn * step) {
      const TileIndex tile = tile_of(index);
      float accumulator[Config::kRowBlocks][Config::BN / 2];
      if (Config::kPingpong) pingpong.wait();
      mainloop<Config>(accumulator, smem, place, ring, k_blocks, releases, first_row, [&] {
        if (Config::kPingpong && index + step < params.tiles.value) pingpong.pass();
      });
      if constexpr (Config::kSplit > 1) {
        reduce_and_store<Config>(accumulator, params, smem, place, tile, first_row, out);
      } else if (Config::kWorkspace && parts > 1) {
        if constexpr (Config::kWorkspace) share_and_store<Config>(accumulator, params, smem, tile, part, first_row);
      } else {
        const int column = tile.n * Config::BN;
        if (params.bias != nullptr) {
#pragma unroll
          for (int i = 0; i < Config::kRowBlocks; ++i) {
            add_bias<T, Config::BN>(accumulator[i], static_cast<const T*>(params.bias), column, params.n);
          }
        }
#pragma unroll
        for (int i = 0; i < Config::kRowBlocks; ++i) {
          const int row = tile.m * Config::BM + first_row + i * 64 + warp % 4 * 16;
          out.template store<Config::BN>(accumulator[i], row, column, Config::BN);
        }
      }
      releases -= turn * k_blocks;
      if (Config::kPingpong) ring.skip(k_blocks);
    }
    out.finish();
  }
  // Nothing in flight outlives this CTA's shared memory: it has waited for all that others send to it, and every signal
  // that a stage is free is waited for by the load into that stage (mainloop sends no others).
}

}  // namespace cudal2
