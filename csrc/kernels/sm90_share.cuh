// How CTAs of the sm90 kernel share the K of a tile: within a cluster (reduce_and_store), through the workspace
// (SharedTile, share_and_store), or with the CTA before and after (StreamedTile).
#pragma once

#include "kernels/sm90_config.cuh"

namespace cudal2 {

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

// A tile whose K two neighbouring clusters share under stream-K: the one before leaves its sums over the first blocks
// in the workspace, this one adds its own over the rest to them. Each warpgroup sees to its own rows. Only the CTA
// after waits, for what the CTA before did first, waiting for nobody. So none waits for ever as long as CTAs start in
// the order of their numbers: no manual says so, but all devices do it, and others' stream-K and scans rely on it too.
template <class Config>
class StreamedTile {
 public:
  __device__ __forceinline__ StreamedTile(const Sm90Params& params, int group) : params_(params), group_(group) {}

  // Leaves this CTA's sums for the one after it.
  __device__ __forceinline__ void leave(const float (&accumulator)[Config::kRowBlocks][Config::BN / 2]) const {
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
  __device__ __forceinline__ void take(float (&accumulator)[Config::kRowBlocks][Config::BN / 2]) const {
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
  static constexpr int kBlocks = Config::BN / 8;
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
