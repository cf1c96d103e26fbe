// How CTAs of the sm90 kernel share the K of a tile: within a cluster (reduce_and_store), through the workspace
// (share_and_store; SharedTile in sm90_meet.cuh), or with the CTA before and after (StreamedTile).
#pragma once

#include "kernels/sm90_config.cuh"
#include "kernels/sm90_meet.cuh"

namespace cudal2 {

// Sends partial sums to their owners in the cluster, adds up what this CTA owns in the order of K, stores it.
template <class Config>
__device__ __forceinline__ void reduce_and_store(const Accumulator<Config>& accumulator, const Sm90Params& params,
                                                 const Sm90Smem<Config>& smem, const ClusterPlace<Config>& place,
                                                 TileIndex tile, int first_row, typename Config::Store& out) {
  constexpr int kThreads = 128 * Config::kConsumers;
  const int thread = threadIdx.x;
  auto slot = [&](int source, int i, int owned) {
    return smem.base + Config::kReductionOffset +
           ((((source * Config::kRowBlocks + i) * Config::kOwned) + owned) * kThreads + thread) * 16;
  };
  if constexpr (Config::kReuse) ptx::cluster_sync_relaxed();  // every CTA has read its last stage
#pragma unroll
  for (int block = 0; block < Config::kTileColumns / 8; ++block) {
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
  const int column = first_column_of<Config>(tile) + place.split * kColumns;
  const int columns = min(kColumns, Config::kTileColumns - place.split * kColumns);  // of the last owner fewer, or none
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
    const int row = first_row_of<Config>(tile) + first_row + i * 64 + thread / 32 % 4 * 16;
    if (params.bias != nullptr) {
      add_bias<T, Config::kSwap>(sum, static_cast<const T*>(params.bias), row, column, params.n);
    }
    out.store(sum, row, column, columns);
  }
}

// A tile's word of the workspace, as one thread of a CTA sees it.
struct SharedWord {
  uint32_t* word;

  __device__ __forceinline__ void add_release(uint32_t value) const { ptx::reduce_add_release(word, value); }
  __device__ __forceinline__ uint32_t add(uint32_t value) const { return ptx::atomic_add_relaxed(word, value); }
  __device__ __forceinline__ uint32_t load_acquire() const { return ptx::load_acquire(word); }
  __device__ __forceinline__ void clear() const { *static_cast<volatile uint32_t*>(word) = 0; }
  __device__ __forceinline__ static void pause() { __nanosleep(20); }
  __device__ __forceinline__ static void fence() { __threadfence(); }
};

// Stores a warp's 16 x 8 block of sums, four a thread as in an accumulator, at (row, column) of C; with `Swap` its
// transpose, at (column, row).
template <class T, bool Swap>
__device__ __forceinline__ void store_block(const float4& sums, const Sm90Params& params, int row, int column) {
  const int eighth = threadIdx.x % 32 / 4, pair = threadIdx.x % 4 * 2;
  const T* bias = static_cast<const T*>(params.bias);
  const auto store = [&](int m, int n, uint32_t values) {
    if (m < params.m && n < params.n) {
      *reinterpret_cast<uint32_t*>(static_cast<T*>(params.c) + m * params.ldc + n) = values;
    }
  };
  if constexpr (Swap) {
    const float top = load_bias(bias, row + eighth, params.n), bottom = load_bias(bias, row + 8 + eighth, params.n);
    const uint32_t low = ptx::transposed_matrix(pack<T>(sums.x + top, sums.y + top));
    const uint32_t high = ptx::transposed_matrix(pack<T>(sums.z + bottom, sums.w + bottom));
    store(column + eighth, row + pair, low);
    store(column + eighth, row + 8 + pair, high);
  } else {
    const int n = column + pair;
    const float low = load_bias(bias, n, params.n), high = load_bias(bias, n + 1, params.n);
    store(row + eighth, n, pack<T>(sums.x + low, sums.y + high));
    store(row + 8 + eighth, n, pack<T>(sums.z + low, sums.w + high));
  }
}

// Adds up units of partial sums in the order of their sources, of which there are `parts`, at most `Sources`. What
// counts is the way to L2: sixteen are asked for before any is used.
template <int Sources, class Slot, class Store>
__device__ __forceinline__ void add_slice(int parts, int begin, int end, Slot slot, Store store) {
  constexpr int kAtOnce = 16 / Sources;
  for (int first = begin; first < end; first += kAtOnce) {
    float4 part_of[kAtOnce][Sources];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
      for (int from = 0; from < Sources; ++from) {
        part_of[i][from] = from < parts && first + i < end ? __ldcg(slot(from, first + i)) : make_float4(0, 0, 0, 0);
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      float4 total = part_of[i][0];
#pragma unroll
      for (int from = 1; from < Sources; ++from) {
        const float4& sums = part_of[i][from];
        total.x += sums.x, total.y += sums.y, total.z += sums.z, total.w += sums.w;
      }
      if (first + i < end) store(first + i, total);
    }
  }
}

// Split-K through the workspace: leaves this CTA's partial sums there, adds up and stores its slice of the tile, and
// what SharedTile leaves to it.
template <class Config>
__device__ __forceinline__ void share_and_store(const Accumulator<Config>& accumulator, const Sm90Params& params,
                                                const Sm90Smem<Config>& smem, TileIndex tile, int part, int first_row) {
  constexpr int kThreads = 128 * Config::kConsumers;
  constexpr int kBlocks = Config::kTileColumns / 8;
  constexpr int kUnits = Config::kRowBlocks * kBlocks;  // of four sums a thread; a slice is a run of them
  const int thread = threadIdx.x, parts = params.split.value;
  const int tiles_n = params.order.tiles_n * Config::kClusterN;
  const int number = tile.m * tiles_n + tile.n;
  float4* const partials =
      reinterpret_cast<float4*>(params.partials) + static_cast<int64_t>(number) * parts * kUnits * kThreads + thread;
  const auto slot = [&](int source, int unit) { return partials + (source * kUnits + unit) * kThreads; };
  const auto store = [&](int unit, const float4& sums) {
    const int row = first_row_of<Config>(tile) + first_row + unit / kBlocks * 64 + thread / 32 % 4 * 16;
    const int column = first_column_of<Config>(tile) + unit % kBlocks * 8;
    store_block<typename Config::T, Config::kSwap>(sums, params, row, column);
  };
#pragma unroll
  for (int unit = 0; unit < kUnits; ++unit) {
    const float* d = accumulator[unit / kBlocks] + unit % kBlocks * 4;
    __stcg(slot(part, unit), make_float4(d[0], d[1], d[2], d[3]));
  }
  ptx::named_barrier_sync(kConsumersBarrier, kThreads);

  const SharedTile<SharedWord> shared{{params.words + number}, part, parts};
  bool in_time = false;
  uint32_t before = 0;
  if (thread == 0) {
    shared.arrive();
    in_time = shared.all_arrived();
    before = shared.depart(in_time);
    ptx::store_shared_u32(smem.duty(), in_time ? 1u << part : 0);
  }
#pragma unroll 1
  for (int round = 0; round < 2; ++round) {  // the own slice, then what is left to this CTA
    ptx::named_barrier_sync(kConsumersBarrier, kThreads);
    const uint32_t duty = ptx::load_shared_u32(smem.duty());
    for (int slice = 0; duty >> slice != 0; ++slice) {
      if ((duty >> slice & 1) == 0) continue;
      const int begin = params.split.quotient(kUnits * slice), end = params.split.quotient(kUnits * (slice + 1));
      if (parts <= 4) {
        add_slice<4>(parts, begin, end, slot, store);
      } else if (parts <= 8) {
        add_slice<8>(parts, begin, end, slot, store);
      } else {
        add_slice<kMostParts>(parts, begin, end, slot, store);
      }
    }
    if (round == 1) break;
    ptx::named_barrier_sync(kConsumersBarrier, kThreads);  // all have read what the next line overwrites
    if (thread == 0) ptx::store_shared_u32(smem.duty(), shared.left(before, in_time));
  }
}

// A tile whose K two neighbouring clusters share under stream-K: the one before leaves its sums over the first blocks
// in the workspace, this one adds its own over the rest to them. Each warpgroup sees to its own rows. Only the CTA
// after waits, for what the CTA before did first, waiting for nobody. So none waits for ever as long as CTAs start in
// the order of their numbers: no manual says so, but all devices do it, and others' stream-K and scans rely on it too.
template <class Config>
class StreamedTile {
 public:
  __device__ __forceinline__ StreamedTile(const Sm90Params& params, int group) : params_(params), group_(group) {}

  // Leaves this CTA's sums for the one after it.
  __device__ __forceinline__ void leave(const Accumulator<Config>& accumulator) const {
    float4* const slot = slot_of(blockIdx.x);
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
      const float* d = accumulator[unit / kBlocks] + unit % kBlocks * 4;
      __stcg(slot + unit * kThreads, make_float4(d[0], d[1], d[2], d[3]));
    }
    ptx::named_barrier_sync(kGroupBarrier + group_, 128);
    if (threadIdx.x % 128 == 0) ptx::atomic_add_ordered(word_of(blockIdx.x), 1);
  }

  // Adds the sums that the CTA before has left.
  __device__ __forceinline__ void take(Accumulator<Config>& accumulator) const {
    constexpr int kBatch = 4;  // asked for before any is used
    const int before = blockIdx.x - Config::kCluster;
    if (threadIdx.x % 128 == 0) {
      uint32_t* const word = word_of(before);
      while (ptx::load_acquire(word) == 0) __nanosleep(20);
      *static_cast<volatile uint32_t*>(word) = 0;
    }
    ptx::named_barrier_sync(kGroupBarrier + group_, 128);
    const float4* const slot = slot_of(before);
#pragma unroll
    for (int first = 0; first < kUnits; first += kBatch) {
      float4 sums[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch && first + i < kUnits; ++i) sums[i] = __ldcg(slot + (first + i) * kThreads);
#pragma unroll
      for (int i = 0; i < kBatch && first + i < kUnits; ++i) {
        float* d = accumulator[(first + i) / kBlocks] + (first + i) % kBlocks * 4;
        d[0] += sums[i].x, d[1] += sums[i].y, d[2] += sums[i].z, d[3] += sums[i].w;
      }
    }
  }

 private:
  static constexpr int kBlocks = Config::kTileColumns / 8;
  static constexpr int kUnits = Config::kRowBlocks * kBlocks;                  // of four sums a thread
  static constexpr int kSharers = Config::kPingpong ? 1 : Config::kConsumers;  // warpgroups that have rows of one tile
  static constexpr int kThreads = 128 * kSharers;

  __device__ __forceinline__ float4* slot_of(int cta) const {
    return reinterpret_cast<float4*>(params_.partials) + static_cast<int64_t>(cta) * kUnits * kThreads +
           threadIdx.x % kThreads;
  }
  __device__ __forceinline__ uint32_t* word_of(int cta) const {
    return params_.words + cta * kSharers + (Config::kPingpong ? 0 : group_);
  }

  const Sm90Params& params_;
  int group_;
};

}  // namespace cudal2
