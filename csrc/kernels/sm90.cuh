// sm90: C = A @ B (+ bias) by TMA and WGMMA, fp16 or bf16 in and out, fp32 accumulation. Compute capability 9.0.
//
// Tile and pipeline. A CTA computes BM x BN of C, stepping BK through K. One producer warp fills `Stages` shared-memory
// buffers by TMA (128-byte swizzle); `Consumers` warpgroups multiply from them (m64nNk16). Cooperative: the warpgroups
// share the tile's rows. Pingpong: each has its own BM x BN tile and they take tiles in turn, so that one's epilogue
// runs under the other's mainloop. Where the accumulators are large the producer is a whole warpgroup, which gives its
// registers to the consumers; elsewhere it is a single warp.
//
// Swap. C^T = B^T @ A^T: wgmma's rows, multiples of 64, lie along N, and its columns along M, where a tile then has any
// multiple of 8 rows: for problems that are narrow along M, or make more tiles than fill the SMs. The same buffers are
// read, and accumulators are transposed on their way out (epilogue.cuh).
//
// Cluster. ClusterM x ClusterN CTAs share loads: each loads its slice of A and of B and multicasts it to the CTAs that
// use it. Split CTAs share a tile by K: each sends its fp32 partial sums to the owners of its columns through
// distributed shared memory, and each owner adds them in the order of K, so the same inputs give the same bits.
// Swapped, an owner's columns are rows of C. Workspace: up to 16 clusters, chosen at launch, share a tile by K through
// global memory, likewise in order.
//
// Grid. One CTA per tile, or fewer CTAs that stride over the tiles (persistent; where no K is split). StreamK:
// fewer CTAs, each with as many blocks to multiply as any other, whatever the number of tiles (sm90_work.cuh).
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

#include "kernels/schedule.cuh"
#include "kernels/sm90_config.cuh"
#include "kernels/sm90_share.cuh"
#include "kernels/sm90_work.cuh"
#include "sm90/wgmma.inc"

namespace cudal2 {

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

// An operand of wgmma in a stage buffer, in panels of `Panel` bytes: contiguous along K in 64 elements, or across it
// (nn's B) in `Columns`. Distances are in bytes.
template <bool Across, int Columns, int Panel>
struct Operand {
  static constexpr bool kAcross = Across;

  // To the 16 elements of K of a step: 32 bytes inside a panel's row, or 16 of its rows.
  static constexpr int step(int index) {
    return Across ? index * 16 * Columns * 2 : index / 4 * Panel + index % 4 * 32;
  }
  // To a row of the product, or a column: a multiple of 64.
  static constexpr int row(int index) { return Across ? index / 64 * Panel : index * 128; }
  __device__ __forceinline__ static uint64_t descriptor(uint32_t address) {
    return wgmma_descriptor<Columns>(address, Across ? Panel : 16);
  }
};

// Issues one stage's multiplications; with `First`, the accumulator starts from them.
template <class Config, bool First>
__device__ __forceinline__ void multiply_stage(Accumulator<Config>& accumulator, const Sm90Smem<Config>& smem,
                                               int stage, int first_row) {
  using A = Operand<false, 64, Config::kPanelA>;
  using B = Operand<!Config::kTn, Config::kPanelColumnsB, Config::kPanelB>;
  using Rows = std::conditional_t<Config::kSwap, B, A>;
  using Columns = std::conditional_t<Config::kSwap, A, B>;
  using Mma = Wgmma<typename Config::T, Config::kTileColumns, Rows::kAcross, Columns::kAcross>;
  const uint32_t a = smem.a(stage), b = smem.b(stage);
  const uint64_t rows = Rows::descriptor((Config::kSwap ? b : a) + Rows::row(first_row));
  const uint64_t columns = Columns::descriptor(Config::kSwap ? a : b);
  ptx::wgmma_fence();
#pragma unroll
  for (int step = 0; step < Config::BK / 16; ++step) {
#pragma unroll
    for (int i = 0; i < Config::kRowBlocks; ++i) {
      const uint64_t rows_at = rows + ((Rows::step(step) + Rows::row(i * 64)) >> 4);
      const uint64_t columns_at = columns + (Columns::step(step) >> 4);
      if (First && step == 0) {
        Mma::start(accumulator[i], rows_at, columns_at);
      } else {
        Mma::accumulate(accumulator[i], rows_at, columns_at);
      }
    }
  }
  ptx::wgmma_commit();
}

// accumulator = A @ B over `k_blocks` >= 1 stages. A stage is released one step late: only then has wgmma read it; of
// the blocks from `releases` on, none, for nothing more is loaded into their stages. `after_last_load` is called once
// every stage has arrived.
template <class Config, class Callback>
__device__ __forceinline__ void mainloop(Accumulator<Config>& accumulator, const Sm90Smem<Config>& smem,
                                         const ClusterPlace<Config>& place, Ring<Config::kStages>& ring, int k_blocks,
                                         int releases, int first_row, Callback after_last_load) {
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

// Pingpong: a warpgroup may look at the stages of its tile only when the other has seen all of its own, or it would
// take an older phase of a barrier for its own. One barrier lets each of them go.
struct PingpongTurn {
  int group;

  __device__ __forceinline__ void wait() const { ptx::named_barrier_sync(kTurnBarrier + group, 256); }
  __device__ __forceinline__ void pass() const { ptx::named_barrier_arrive(kTurnBarrier + 1 - group, 256); }
};

// Adds the bias and stores a warpgroup's rows of a tile.
template <class Config>
__device__ __forceinline__ void store_tile(Accumulator<Config>& accumulator, const Sm90Params& params, TileIndex tile,
                                           int first_row, typename Config::Store& out) {
  using T = typename Config::T;
  const int row = first_row_of<Config>(tile) + first_row + threadIdx.x / 32 % 4 * 16;
  const int column = first_column_of<Config>(tile);
  if (params.bias != nullptr) {
#pragma unroll
    for (int i = 0; i < Config::kRowBlocks; ++i) {
      add_bias<T, Config::kSwap>(accumulator[i], static_cast<const T*>(params.bias), row + i * 64, column, params.n);
    }
  }
#pragma unroll
  for (int i = 0; i < Config::kRowBlocks; ++i) out.store(accumulator[i], row + i * 64, column, Config::kTileColumns);
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
    const int owned = min(Config::kOwned, max(0, Config::kTileColumns / 8 - place.split * Config::kOwned));
    ptx::mbarrier_arrive_expect_tx(smem.reduced(), Config::kSplit * owned * 8 * Config::kTileRows * 4);
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

  Work<Config, Sm90Params> work(params, blockIdx.x / Config::kCluster, place.split);
  const auto tile_of = [&](const auto& unit) {
    const TileIndex tile = tile_at(params.order, unit.tile);
    return TileIndex{tile.m * Config::kClusterM + place.m, tile.n * Config::kClusterN + place.n};
  };

  if (__builtin_expect(warp >= kProducerWarp, 1)) {  // it has the shorter way through the code
    if constexpr (Config::kReallocate) ptx::release_registers<Config::kProducerRegisters>();
    if (warp == kProducerWarp) {
      const bool speaker = ptx::elect_one();
      Ring<Config::kStages> ring;
      int fresh = Config::kStages;  // stages that nothing was loaded into yet
      for (; !work.done(params); work.next(params)) {
        const TileIndex tile = tile_of(work);
#pragma unroll 1
        for (int k_block = work.k_begin; k_block < work.k_end; ++k_block) {
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
    const int group = warp / 4;
    const int first_row = Config::kPingpong ? 0 : group * Config::kRows;
    int releases = work.all_blocks(params) - Config::kStages;  // from the current unit's first block on
    Ring<Config::kStages> ring;
    typename Config::Store out{params, smem.staging(warp)};
    const PingpongTurn pingpong{group};
    if (Config::kPingpong && group == 1) pingpong.pass();
    for (int turn = 0; !work.done(params); work.next(params), turn ^= 1) {
      const int k_blocks = work.blocks();
      if (Config::kPingpong && turn != group) {
        ring.skip(k_blocks);
        releases -= k_blocks;
        continue;
      }
      Accumulator<Config> accumulator;
      if (Config::kPingpong) pingpong.wait();
      mainloop<Config>(accumulator, smem, place, ring, k_blocks, releases, first_row, [&] {
        if (Config::kPingpong && !work.last(params)) pingpong.pass();
      });
      releases -= k_blocks;
      const TileIndex tile = tile_of(work);
      if constexpr (Config::kSplit > 1) {
        reduce_and_store<Config>(accumulator, params, smem, place, tile, first_row, out);
        continue;
      }
      if constexpr (Config::kWorkspace) {
        if (params.split.value > 1) {
          share_and_store<Config>(accumulator, params, smem, tile, work.part(), first_row);
          continue;
        }
      }
      if constexpr (Config::kStreamK) {
        const StreamedTile<Config> streamed(params, group);
        if (work.k_end < params.k_blocks.value) {
          streamed.leave(accumulator);
          continue;
        }
        if (work.k_begin > 0) {  // stored apart: where the two ways met, accumulators would take twice the registers
          streamed.take(accumulator);
          store_tile<Config>(accumulator, params, tile, first_row, out);
          continue;
        }
      }
      store_tile<Config>(accumulator, params, tile, first_row, out);
    }
    out.finish();
  }
  // Nothing in flight outlives this CTA's shared memory: it has waited for all that others send to it, and every signal
  // that a stage is free is waited for by the load into that stage (mainloop sends no others).
}

}  // namespace cudal2
