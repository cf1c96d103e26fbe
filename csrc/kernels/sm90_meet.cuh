// How CTAs that share the K of a tile through the workspace meet.
#pragma once

#include <cstdint>

#include "kernels/schedule.cuh"

namespace cudal2 {

// A tile whose K is shared by `parts` CTAs. Each leaves its partial sums in the workspace, says so, waits for the
// others and adds up its slice of the tile. Waiting is bounded, for the others may be behind this one in the queue for
// an SM: then its slice is left to whoever departs last, when all have come. Who adds up what, never in which order,
// depends on time.
//
// The tile's word counts arrivals in bits 0-7 and departures in bits 8-15; bit 16 + p says that part p's slice is left
// to the last, which sets the word back to 0. One thread of the CTA sees to it, between barriers behind the CTA's
// writes and ahead of its reads: its release and acquire then hold for all of them. An arrival asks for no answer, and
// the answer to a departure is not needed before the own slice is done: each would take as long as a load.
//
// `Word` is SharedWord of sm90_share.cuh: a parameter, so that the host can test this without CUDA's headers.
template <class Word>
struct SharedTile {
  // About 30 µs: several times what CTAs that run together are apart. Giving up costs the last one's extra sums.
  static constexpr int kPolls = 32;

  Word word;
  int part, parts;

  CUDAL2_HOST_DEVICE inline void arrive() const { word.add_release(1); }

  // Waits for the others; whether they came in time.
  CUDAL2_HOST_DEVICE inline bool all_arrived() const {
#pragma unroll 1
    for (int poll = 0; poll < kPolls; ++poll) {
      if (static_cast<int>(word.load_acquire() & 0xFF) == parts) return true;
      word.pause();
    }
    return false;
  }

  // Departs, leaving the own slice to the last unless `in_time`. Returns the word as it was.
  CUDAL2_HOST_DEVICE inline uint32_t depart(bool in_time) const {
    return word.add((1u << 8) + (in_time ? 0 : 1u << (16 + part)));
  }

  // The slices, a bit each, that are left to this CTA: none unless it was the last to depart.
  CUDAL2_HOST_DEVICE inline uint32_t left(uint32_t before, bool in_time) const {
    if (static_cast<int>(before >> 8 & 0xFF) + 1 != parts) return 0;
    word.clear();
    const uint32_t slices = before >> 16 | (in_time ? 0 : 1u << part);
    if (slices != 0) word.fence();  // those who left them have departed, and so arrived before
    return slices;
  }
};

}  // namespace cudal2
