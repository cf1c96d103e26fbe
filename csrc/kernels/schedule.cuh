// The order of output tiles. Consecutive CTAs run together, so consecutive tiles should share rows of A and columns of
// B in L2: `group` tiles run along one dimension before the order moves on along the other.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define CUDAL2_HOST_DEVICE __host__ __device__
#else
#define CUDAL2_HOST_DEVICE
#endif

namespace cudal2 {

// Division by a number that the host knows, of dividends below 2^31: an integer division costs a kernel's prologue
// about as much as a load. (Granlund and Montgomery, Division by Invariant Integers using Multiplication, 1994.)
struct Divisor {
  int value = 1;
  uint32_t factor = 1u << 31;  // ceil(2^shift / value)
  int shift = 31;

  Divisor() = default;
  explicit Divisor(int divisor) : value(divisor) {
    while (int64_t{1} << (shift - 31) < divisor) ++shift;
    factor = static_cast<uint32_t>(((uint64_t{1} << shift) + divisor - 1) / divisor);
  }
  CUDAL2_HOST_DEVICE int quotient(int dividend) const {
    return static_cast<int>(static_cast<uint64_t>(static_cast<uint32_t>(dividend)) * factor >> shift);
  }
};

struct TileOrder {
  int tiles_m, tiles_n;  // counted in clusters
  int raster;            // 0: groups lie along M; 1: along N
  Divisor group;         // tiles per group, at least 1
  Divisor last;          // tiles of the last group, which may be narrower
  Divisor per_group;     // tiles of a group over the whole other dimension

  TileOrder() = default;
  TileOrder(int along_m, int along_n, int group_size, int group_raster)
      : tiles_m(along_m), tiles_n(along_n), raster(group_raster) {
    const int major = raster == 0 ? tiles_m : tiles_n;
    const int minor = raster == 0 ? tiles_n : tiles_m;
    const int size = group_size < 1 ? 1 : group_size > major ? major : group_size;
    group = Divisor(size);
    last = Divisor(major % size == 0 ? size : major % size);
    per_group = Divisor(size * minor);
  }
};

struct TileIndex {
  int m, n;
};

CUDAL2_HOST_DEVICE inline TileIndex tile_at(const TileOrder& order, int index) {
  const int group_index = order.per_group.quotient(index);
  const int first = group_index * order.group.value;
  const int within = index - group_index * order.per_group.value;
  const int major = order.raster == 0 ? order.tiles_m : order.tiles_n;
  const bool full = first + order.group.value <= major;
  const int along_minor = full ? order.group.quotient(within) : order.last.quotient(within);
  const int along_major = first + within - along_minor * (full ? order.group.value : order.last.value);
  return order.raster == 0 ? TileIndex{along_major, along_minor} : TileIndex{along_minor, along_major};
}

}  // namespace cudal2
