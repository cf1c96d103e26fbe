// What a CTA of the sm90 kernel computes, unit by unit: a tile of C and the blocks of K that it adds up for it.
//
// All CTAs of a cluster have the same units. Without stream-K they are whole tiles (or one part of a tile, where K is
// split), a grid apart. With it, where the tiles do not make whole waves, the first of them, between one and two waves,
// are one run of (tile, block) pairs of which each cluster has an equal share: at least a tile, so that no tile has
// more than two clusters. A share is worked off backwards. Thus the head of a tile, which ends a share, is the first
// thing its cluster does, and is there long before the next cluster, which began with a head of its own, comes to the
// tail and needs it (StreamedTile in sm90_share.cuh). Whole tiles follow. (Osama et al., Stream-K: Work-centric
// Parallel Decomposition for Dense Matrix-Matrix Multiplication on the GPU, 2023.)
#pragma once

#include "kernels/schedule.cuh"

namespace cudal2 {

// `Params` is Sm90Params: a parameter, so that the host can test this without CUDA's headers.
template <class Config, class Params>
class Work {
 public:
  int tile;            // in the order of tiles
  int k_begin, k_end;  // blocks of K

  // Of the grid's `cluster`-th cluster; `rank` is the CTA's in its cluster's split of K.
  CUDAL2_HOST_DEVICE inline Work(const Params& params, int cluster, int rank) : tile(cluster), part_(rank) {
    if constexpr (Config::kStreamK) {
      share_begin_ = params.step.quotient(cluster * params.stream_blocks);
      share_end_ = params.step.quotient((cluster + 1) * params.stream_blocks);
      whole_ = params.stream_tiles + cluster;
      next(params);
    } else {
      const int blocks = params.k_blocks.value;
      if constexpr (Config::kWorkspace) {
        part_ = params.tiles.quotient(cluster);
        tile = cluster - part_ * params.tiles.value;
        k_begin = params.split.quotient(blocks * part_);
        k_end = params.split.quotient(blocks * (part_ + 1));
      } else {
        k_begin = blocks * part_ / Config::kSplit;
        k_end = blocks * (part_ + 1) / Config::kSplit;
      }
    }
  }

  // Which part of each tile's K this is.
  CUDAL2_HOST_DEVICE inline int part() const { return part_; }
  CUDAL2_HOST_DEVICE inline int blocks() const { return k_end - k_begin; }
  CUDAL2_HOST_DEVICE inline bool done(const Params& params) const { return tile >= params.tiles.value; }
  CUDAL2_HOST_DEVICE inline bool last(const Params& params) const {
    if constexpr (Config::kStreamK) return share_begin_ == share_end_ && whole_ >= params.tiles.value;
    return tile + params.step.value >= params.tiles.value;
  }

  // Blocks of this unit and all that follow.
  CUDAL2_HOST_DEVICE inline int all_blocks(const Params& params) const {
    if constexpr (Config::kStreamK) {
      const int rest = params.tiles.value - whole_;
      const int tiles = rest > 0 ? params.step.quotient(rest - 1) + 1 : 0;
      return blocks() + share_end_ - share_begin_ + tiles * params.k_blocks.value;
    }
    return (params.step.quotient(params.tiles.value - 1 - tile) + 1) * blocks();
  }

  CUDAL2_HOST_DEVICE inline void next(const Params& params) {
    if constexpr (Config::kStreamK) {
      const int blocks = params.k_blocks.value;
      if (share_begin_ < share_end_) {
        tile = params.k_blocks.quotient(share_end_ - 1);
        const int begin = tile * blocks;
        k_begin = share_begin_ > begin ? share_begin_ - begin : 0;
        k_end = share_end_ - begin;
        share_end_ = begin + k_begin;
      } else {
        tile = whole_;
        whole_ += params.step.value;
        k_begin = 0;
        k_end = blocks;
      }
    } else {
      tile += params.step.value;
    }
  }

 private:
  int part_;
  int share_begin_ = 0, share_end_ = 0;  // what is still to come, after this unit, of the share of the run
  int whole_ = 0;                        // the whole tile that comes after the share
};

// Of `tiles`, how many stream-K takes as one run for so many clusters. None where they make whole waves, or less than
// one, or where Work's products would not fit an int.
inline int streamed_tiles(int64_t tiles, int64_t clusters, int64_t k_blocks) {
  const int64_t run = tiles <= clusters || tiles % clusters == 0 ? 0 : clusters + tiles % clusters;
  return run * k_blocks * (clusters + 1) < (int64_t{1} << 31) ? static_cast<int>(run) : 0;
}

}  // namespace cudal2
