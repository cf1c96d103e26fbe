// Exits with 0 if tile orders visit each tile once, group by group, Divisor divides as the processor does, and the
// units of work of a grid's clusters make every tile once, and CTAs that share a tile add up each slice of it once.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <utility>
#include <vector>

#include "kernels/schedule.cuh"
#include "kernels/sm90_meet.cuh"
#include "kernels/sm90_work.cuh"

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

// What Work reads of Sm90Params.
struct Params {
  Divisor k_blocks, tiles, step, split;
  int stream_tiles = 0, stream_blocks = 0;
};

template <int Split, bool Workspace, bool StreamK>
struct Config {
  static constexpr int kSplit = Split;
  static constexpr bool kWorkspace = Workspace, kStreamK = StreamK;
};

struct Part {
  int cluster, rank, unit, begin, end;
};

// The units of all clusters, by tile; checks what each cluster's say of themselves.
template <class Config>
static std::vector<std::vector<Part>> units(const Params& params, int clusters) {
  std::vector<std::vector<Part>> found(params.tiles.value);
  for (int cluster = 0; cluster < clusters; ++cluster) {
    for (int rank = 0; rank < Config::kSplit; ++rank) {
      cudal2::Work<Config, Params> work(params, cluster, rank);
      int left = work.all_blocks(params);
      for (int unit = 0; !work.done(params); work.next(params), ++unit) {
        found[work.tile].push_back({cluster, rank, unit, work.k_begin, work.k_end});
        left -= work.blocks();
        require(work.last(params) == (left == 0), "last unit", cluster, unit);
      }
      require(left == 0, "blocks of cluster", cluster, left);
    }
  }
  return found;
}

static void splits(int tiles, int blocks, int parts) {
  Params params{Divisor(blocks), Divisor(tiles), Divisor(tiles), Divisor(parts)};
  for (const std::vector<Part>& of_tile : units<Config<1, true, false>>(params, tiles * parts)) {
    require(static_cast<int>(of_tile.size()) == parts, "parts", of_tile.size(), parts);
    int end = 0;
    for (const Part& part : of_tile) {
      require(part.begin == end && part.end > end, "part", part.begin, part.end);
      end = part.end;
    }
    require(end == blocks, "end", end, blocks);
  }
}

static void streams(int tiles, int blocks, int clusters) {
  const int run = cudal2::streamed_tiles(tiles, clusters, blocks);
  const Params params{Divisor(blocks), Divisor(tiles), Divisor(clusters), Divisor(), run, run * blocks};
  require(run == (tiles > clusters && tiles % clusters ? clusters + tiles % clusters : 0), "run of", tiles, run);
  std::vector<int> shares(clusters);
  for (const std::vector<Part>& of_tile : units<Config<1, false, true>>(params, clusters)) {
    for (const Part& part : of_tile) shares[part.cluster] += part.end - part.begin;
    const Part& tail = of_tile.back();  // clusters come in order
    require(tail.end == blocks, "tail", tail.end, blocks);
    if (of_tile.size() == 1) {
      require(tail.begin == 0, "tile begins", tail.begin, 0);
      continue;
    }
    const Part& head = of_tile.front();
    require(of_tile.size() == 2, "clusters of a tile", of_tile.size(), 2);
    require(head.begin == 0 && head.end == tail.begin && head.end > 0, "head", head.end, tail.begin);
    require(head.cluster + 1 == tail.cluster, "neighbours", head.cluster, tail.cluster);
    require(head.unit == 0, "a head comes first", head.cluster, head.unit);
  }
  const auto [least, most] = std::minmax_element(shares.begin(), shares.end());
  require(run == 0 || *most - *least <= 1, "equal shares", *least, *most);
}

struct Word {
  uint32_t* value;

  void add_release(uint32_t more) const { *value += more; }
  uint32_t add(uint32_t more) const {
    *value += more;
    return *value - more;
  }
  uint32_t load_acquire() const { return *value; }
  void clear() const { *value = 0; }
  static void pause() {}
  static void fence() {}
};

// CTAs that share a tile, each somewhere between its arrival and its end; the next step is any one's.
struct Meeting {
  struct Cta {
    int step = 0;
    bool in_time = false;
    uint32_t before = 0, slices = 0;
  };
  uint32_t word = 0;
  std::vector<Cta> ctas;

  void advance(int part) {
    const cudal2::SharedTile<Word> shared{{&word}, part, static_cast<int>(ctas.size())};
    Cta& cta = ctas[part];
    switch (cta.step++) {
      case 0:
        shared.arrive();
        break;
      case 1:
        cta.in_time = shared.all_arrived();
        break;
      case 2:
        cta.before = shared.depart(cta.in_time);
        break;
      default:
        cta.slices = (cta.in_time ? 1u << part : 0) | shared.left(cta.before, cta.in_time);
    }
  }
};

// Goes through every order of steps; returns how many there are, and counts those in which a slice was left.
static int meetings(const Meeting& meeting, int* left) {
  int orders = 0;
  for (int part = 0; part < static_cast<int>(meeting.ctas.size()); ++part) {
    if (meeting.ctas[part].step == 4) continue;
    Meeting next = meeting;
    next.advance(part);
    orders += meetings(next, left);
  }
  if (orders > 0) return orders;
  uint32_t added = 0;
  bool gave_up = false;
  for (const Meeting::Cta& cta : meeting.ctas) {
    require((added & cta.slices) == 0, "a slice added up twice", added, cta.slices);
    added |= cta.slices;
    gave_up |= !cta.in_time;
  }
  require(added == (1u << meeting.ctas.size()) - 1, "slices added up", added, meeting.ctas.size());
  require(meeting.word == 0, "the word afterwards", meeting.word, 0);
  *left += gave_up;
  return 1;
}

static void meets(int parts, int wanted) {
  Meeting meeting;
  meeting.ctas.resize(parts);
  int left = 0;
  const int orders = meetings(meeting, &left);
  require(orders == wanted && left > 0 && left < orders, "orders of steps, some with a slice left", orders, left);
}

// Sixteen, each of which has given up and gone before the next one comes.
static void meets_in_turn() {
  Meeting meeting;
  meeting.ctas.resize(16);
  for (int part = 0; part < 16; ++part) {
    for (int step = 0; step < 4; ++step) meeting.advance(part);
  }
  require(meeting.ctas[15].slices == 0xFFFF && meeting.word == 0, "all left to the last", meeting.ctas[15].slices, 0);
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
  for (int tiles : {1, 3, 16}) {
    for (int blocks : {16, 17, 100}) {
      for (int parts : {1, 2, 3, 16}) splits(tiles, blocks, parts);
    }
    const Params cluster{Divisor(9), Divisor(tiles), Divisor(tiles)};
    for (const auto& of_tile : units<Config<4, false, false>>(cluster, tiles)) {
      require(of_tile.size() == 4 && of_tile.back().end == 9, "split in a cluster", of_tile.size(), of_tile.back().end);
      for (int rank = 1; rank < 4; ++rank) {
        require(of_tile[rank].begin == of_tile[rank - 1].end, "rank", rank, of_tile[rank].begin);
      }
    }
    const Params persistent{Divisor(9), Divisor(7 * tiles), Divisor(tiles)};
    for (const auto& of_tile : units<Config<1, false, false>>(persistent, tiles)) {
      require(of_tile.size() == 1, "a persistent grid's tile", of_tile.size(), 1);
    }
  }
  for (int clusters : {1, 2, 5, 66, 132}) {
    for (int tiles : {1, 2, 5, 7, 66, 131, 132, 133, 176, 263, 264, 265, 1376}) {
      if (tiles < clusters) continue;  // a grid has no more clusters than tiles
      for (int blocks : {1, 2, 7, 64, 257}) streams(tiles, blocks, clusters);
    }
  }
  meets(2, 70);
  meets(3, 34650);
  meets_in_turn();
  require(cudal2::streamed_tiles(133, 132, 1 << 20) == 0, "a run too long for an int", 133, 132);
  return 0;
}
