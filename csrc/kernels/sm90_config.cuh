// What the parts of the sm90 kernel share: its compile-time knobs, and where a CTA and its buffers are.
#pragma once

#include "kernels/epilogue.cuh"
#include "kernels/params.h"
#include "kernels/ptx.cuh"
#include "runtime/gemm.h"

namespace cudal2 {

template <class T_, Layout kLayout_, int BM_, int BN_, int BK_, int Stages_, int ClusterM_, int ClusterN_, int Split_,
          bool Pingpong_, int Consumers_, bool TmaStore_, bool Workspace_, bool StreamK_>
struct Sm90Config {
  using T = T_;
  static constexpr DType kDType = std::is_same_v<T, f16> ? DType::f16 : DType::bf16;
  static constexpr Layout kLayout = kLayout_;
  static constexpr int BM = BM_, BN = BN_, BK = BK_, kStages = Stages_;
  static constexpr int kClusterM = ClusterM_, kClusterN = ClusterN_, kSplit = Split_;
  static constexpr bool kPingpong = Pingpong_;
  static constexpr int kConsumers = Consumers_;
  static constexpr int kVector = 8, kMultipleOfK = 1, kMaxTilesN = 1 << 30;
  static constexpr bool kWorkspace = Workspace_, kStreamK = StreamK_;
  static constexpr int kMinArch = 90, kMaxArch = 90;

  static constexpr int kShare = kClusterM * kClusterN;  // CTAs that share loads
  static constexpr int kCluster = kShare * kSplit;
  static constexpr int kRows = kPingpong ? BM : BM / kConsumers;  // of one warpgroup's accumulator
  static constexpr int kRowBlocks = kRows / 64;

  // An SM sub-partition holds 16384 registers, so a third warp on it leaves 168 a thread and a fourth 128. Accumulators
  // that do not fit that take registers from a producer warpgroup: all but 56, or where fewer do, 72 (with stream-K its
  // code needs more than 56).
  static constexpr int kAccumulators = kRows * BN / 128;
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
  static_assert(!kStreamK || (!kWorkspace && kSplit == 1));
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

// Named barriers. Pingpong's turns are 1 and 2; a warpgroup's own is kGroupBarrier + its number.
constexpr int kTurnBarrier = 1, kStartBarrier = 3, kConsumersBarrier = 4, kGroupBarrier = 5;

}  // namespace cudal2
