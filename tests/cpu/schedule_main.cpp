// Exits with 0 if tile orders visit each tile once, group by group, and Divisor divides as the processor does.
#include <cstdio>
#include <cstdlib>
#include <set>
#include <utility>

#include "kernels/schedule.cuh"

using cudal2::Divisor;
using cudal2::TileIndex;
using cudal2::TileOrder;

static void require(bool condition, const char* what, long long a, long long b) {
  if (condition) return;
  std::printf("%s: %lld, %lld\n", what, a, b);
  std::exit(1);
}

static void divides(int divisor, int dividend) {
  require(Divisor(divisor).quotient(dividend) == dividend / divisor, "quotient of", dividend, divisor);
}

static void covers(int tiles_m, int tiles_n, int group, int raster) {
  const TileOrder order(tiles_m, tiles_n, group, raster);
  std::set<std::pair<int, int>> seen;
  int last_group = 0;
  for (int index = 0; index < tiles_m * tiles_n; ++index) {
    const TileIndex tile = tile_at(order, index);
    require(tile.m >= 0 && tile.m < tiles_m && tile.n >= 0 && tile.n < tiles_n, "tile outside", tile.m, tile.n);
    require(seen.insert({tile.m, tile.n}).second, "tile twice", tile.m, tile.n);
    const int now = (raster == 0 ? tile.m : tile.n) / order.group.value;
    require(now >= last_group, "group after a later one", now, last_group);
    last_group = now;
  }
}

int main() {
  constexpr int kLargest = 2147483647;
  for (int divisor = 1; divisor <= 4096; ++divisor) {
    for (int dividend : {0, 1, divisor - 1, divisor, divisor + 1, 1000003, kLargest / divisor * divisor - 1,
                         kLargest / divisor * divisor, kLargest - 1, kLargest}) {
      divides(divisor, dividend);
    }
  }
  for (int divisor : {65535, 65536, 65537, 1000003, 1 << 30, (1 << 30) + 1, kLargest - 1, kLargest}) {
    for (int dividend : {0, 1, divisor - 1, divisor, kLargest - 1, kLargest}) divides(divisor, dividend);
  }
  std::srand(1);
  for (int i = 0; i < 100000; ++i) {
    divides(1 + static_cast<int>((static_cast<unsigned>(std::rand()) << 1) % kLargest >> std::rand() % 31),
            static_cast<int>(static_cast<unsigned>(std::rand()) % kLargest));
  }
  for (int tiles_m : {1, 2, 3, 7, 16, 33}) {
    for (int tiles_n : {1, 2, 5, 16, 17}) {
      for (int group : {-1, 0, 1, 2, 3, 8, 16, 100}) {
        for (int raster : {0, 1}) covers(tiles_m, tiles_n, group, raster);
      }
    }
  }
  return 0;
}
