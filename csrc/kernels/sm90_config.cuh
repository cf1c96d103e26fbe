// What the parts of the sm90 kernel share: its compile-time knobs, and where a CTA and its buffers are.
#pragma once

#include "kernels/epilogue.cuh"
#include "kernels/params.h"
#include "kernels/ptx.cuh"
#include "runtime/gemm.h"

namespace cudal2 {

template <class T_, Layout kLayout_, int BM_, int BN_, int BK_, int Stages_, int ClusterM_, int ClusterN_, int Split_,
          bool Pingpong_, int Consumers_, bool TmaStore_, bool Workspace_, bool StreamK_, bool Swap_>
struct Sm90Config {
  using T = T_;
  static constexpr DType kDType = std::is_same_v<T, f16> ? DType::f16 : DType::bf16;
  static constexpr Layout kLayout = kLayout_;
  static constexpr int BM = BM_, BN = BN_, BK = BK_, kStages = Stages_;
  static constexpr int kClusterM = ClusterM_, kClusterN = ClusterN_, kSplit = Split_;
  static constexpr bool kPingpong = Pingpong_;
  static constexpr int kConsumers = Consumers_;
  static constexpr int kVector = 8, kMultipleOfK = 1, kMaxTilesN = 1 << 30;
  static constexpr bool kWorkspace = Workspace_, kStreamK = StreamK_, kSwap = Swap_;
  static constexpr int kMinArch = 90, kMaxArch = 90;

  static constexpr int kShare = kClusterM * kClusterN;  // CTAs that share loads
  static constexpr int kCluster = kShare * kSplit;

  // The accumulators: their rows lie along M of C and their columns along N, or with the operands swapped the other way
  // round. wgmma takes rows by 64 and columns by 8, so that a swapped tile can have any multiple of 8 along M.
  static constexpr int kTileRows = kSwap ? BN : BM, kTileColumns = kSwap ? BM : BN;
  static constexpr int kRows = kPingpong ? kTileRows : kTileRows / kConsumers;  // of one warpgroup
  static constexpr int kRowBlocks = kRows / 64;

  // An SM sub-partition holds 16384 registers, so a third warp on it leaves 168 a thread and a fourth 128. Accumulators
  // that do not fit that take registers from a producer warpgroup: all but 56, or where fewer do, 72 (with stream-K its
  // code needs more than 56).
  static constexpr int kAccumulators = kRows * kTileColumns / 128;
  static constexpr bool kReallocate =
      (kConsumers == 2 && kAccumulators > 112) || (kConsumers == 3 && kAccumulators > 72);
  static constexpr int kConsumerRegisters = kConsumers == 3 ? 160 : kAccumulators > 176 ? 224 : 216;
  static constexpr int kProducerRegisters = kConsumers == 3 ? 32 : 504 - 2 * kConsumerRegisters;
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

  // Split-K: each CTA of the split owns kOwned column blocks (of 8) of the accumulators.
  static constexpr int kOwned = (kTileColumns / 8 + kSplit - 1) / kSplit;
  static constexpr int kReduction = kSplit == 1 ? 0 : kSplit * kOwned * 8 * kTileRows * 4;

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
  static constexpr StoreBox kStoreBox = store_box(BM, BN, kSplit, kSwap);
  using Staging = StagingBuffer<T, kStoreBox.rows, kStoreBox.columns, kSwap>;
  using Store = std::conditional_t<kTmaStore, TmaStore<T, Staging, kStaging>, DirectStore<T, Staging, kStaging>>;

  static_assert(BK % 64 == 0 && kRows % 64 == 0 && kTileColumns % 8 == 0 && kTileColumns <= 256);
  static_assert(!kPingpong || (kConsumers == 2 && kSplit == 1));
  static_assert(!kWorkspace || (!kPingpong && kSplit == 1));
  static_assert(!kStreamK || (!kWorkspace && kSplit == 1));
  static_assert(kBoxRowsA % 8 == 0 && kBoxRowsB % 8 == 0 && kBoxRowsA <= 256 && kBoxRowsB <= 256);
};

// One warpgroup's accumulators, in the order of wgmma: by blocks of 64 rows, of 8 columns.
template <class Config>
using Accumulator = float[Config::kRowBlocks][Config::kTileColumns / 2];

// Where a tile's accumulators begin: their first row along M of C and their first column along N, or vice versa.
template <class Config>
__device__ __forceinline__ int first_row_of(TileIndex tile) {
  return Config::kSwap ? tile.n * Config::BN : tile.m * Config::BM;
}
template <class Config>
__device__ __forceinline__ int first_column_of(TileIndex tile) {
  return Config::kSwap ? tile.m * Config::BM : tile.n * Config::BN;
}

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

// Named barriers. Pingpong's turns are 1 and 2; a warpgroup's own is kGroupBarrier + its number.
constexpr int kTurnBarrier = 1, kStartBarrier = 3, kConsumersBarrier = 4, kGroupBarrier = 5;

}  // namespace cudal2
