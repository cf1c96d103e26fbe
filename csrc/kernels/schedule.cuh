// The order of output tiles. Consecutive CTAs run together, so consecutive tiles should share rows of A and columns of
// B in L2: `group` tiles run along one dimension before the order moves on along the other.
#pragma once

namespace cudal2 {

struct TileOrder {
  int tiles_m, tiles_n;  // counted in clusters
  int group;             // tiles per group, at least 1
  int raster;            // 0: groups lie along M; 1: along N
};

struct TileIndex {
  int m, n;
};

#ifdef __CUDACC__
__device__ __forceinline__ TileIndex tile_at(const TileOrder& order, int index) {
  const int major = order.raster == 0 ? order.tiles_m : order.tiles_n;
  const int minor = order.raster == 0 ? order.tiles_n : order.tiles_m;
  const int per_group = order.group * minor;
  const int group_index = index / per_group;
  const int first = group_index * order.group;
  const int width = min(order.group, major - first);
  const int within = index - group_index * per_group;
  const int along_minor = within / width;
  const int along_major = first + within - along_minor * width;
  return order.raster == 0 ? TileIndex{along_major, along_minor} : TileIndex{along_minor, along_major};
}
#endif

}  // namespace cudal2
