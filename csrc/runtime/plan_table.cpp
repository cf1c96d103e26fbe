// Plan tables: one CSV per GPU, read once per device, looked up without a lock afterwards.
//
// A device takes the table of its own model; else, of the tables for exactly its compute capability, or else for its
// major one, that whose GPU has the nearest number of multiprocessors (then its plans are valid but untuned); else
// none, and every shape goes to cuBLAS.
#include <dirent.h>
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <locale>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>
#include <stdexcept>
#include <tuple>
#include <unordered_map>

#include "runtime/device.h"
#include "runtime/gemm.h"

namespace cudal2 {
namespace {

struct Key {
  int64_t m = 0, n = 0, k = 0;
  int kind = -1;  // dtype * 2 + layout; -1: an empty slot

  bool operator==(const Key& other) const { return m == other.m && n == other.n && k == other.k && kind == other.kind; }
};

Key make_key(DType dtype, Layout layout, int64_t m, int64_t n, int64_t k) {
  return {m, n, k, static_cast<int>(dtype) * 2 + static_cast<int>(layout)};
}

struct KeyHash {
  size_t operator()(const Key& key) const {
    uint64_t hash = static_cast<uint64_t>(key.kind) + 1;
    for (const int64_t part : {key.m, key.n, key.k})
      hash = (hash ^ static_cast<uint64_t>(part)) * 0x9E3779B97F4A7C15ull;
    return hash ^ (hash >> 29);
  }
};

// Open addressing with linear probing, at most half full.
class Table {
 public:
  explicit Table(const std::vector<std::pair<Key, Plan>>& plans) : count_(plans.size()) {
    size_t size = 16;
    while (size < 2 * plans.size()) size *= 2;
    slots_.resize(size);
    for (const auto& plan : plans) slot(plan.first) = plan;
  }
  const Plan* find(const Key& key) const {
    const auto& found = const_cast<Table*>(this)->slot(key);
    return found.first == key ? &found.second : nullptr;
  }
  size_t size() const { return count_; }

 private:
  std::pair<Key, Plan>& slot(const Key& key) {
    size_t i = KeyHash()(key) & (slots_.size() - 1);
    while (slots_[i].first.kind != -1 && !(slots_[i].first == key)) i = (i + 1) & (slots_.size() - 1);
    return slots_[i];
  }
  size_t count_;
  std::vector<std::pair<Key, Plan>> slots_;
};

// CSV -----------------------------------------------------------------------------------------------------------------

std::vector<std::string> split(const std::string& line) {
  std::vector<std::string> cells;
  std::stringstream stream(line);
  for (std::string cell; std::getline(stream, cell, ',');) cells.push_back(cell);
  if (!line.empty() && line.back() == ',') cells.emplace_back();
  return cells;
}

// The whole of `text` as a number, whatever the process's locale is (strtof would read "1.5" by it).
bool parse(const std::string& text, int64_t* value) {
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, *value);
  return parsed.ec == std::errc() && parsed.ptr == end;
}

bool parse(const std::string& text, double* value) {
  std::istringstream stream(text);
  stream.imbue(std::locale::classic());
  stream >> *value;
  return !stream.fail() && stream.get() == std::istringstream::traits_type::eof() &&
         text.find(' ') == std::string::npos;
}

void drop_carriage_return(std::string& line) {
  if (!line.empty() && line.back() == '\r') line.pop_back();
}

const std::vector<std::string> kColumns = {"dtype", "layout", "m",   "n",  "k",        "kernel", "group", "raster",
                                           "ctas",  "split",  "pdl", "us", "torch_us", "lt_us",  "use"};
constexpr int64_t kMostKnob = 1 << 20;

// The `# key: value` lines at a table's head.
std::map<std::string, std::string> read_header(const std::string& path) {
  std::map<std::string, std::string> header;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line) && line.rfind("# ", 0) == 0;) {
    drop_carriage_return(line);
    const size_t colon = line.find(": ");
    if (colon != std::string::npos) header[line.substr(2, colon - 2)] = line.substr(colon + 2);
  }
  return header;
}

class Row {
 public:
  Row(const std::string& path, int line, const std::string& text) : path_(path), line_(line), cells_(split(text)) {
    if (cells_.size() != kColumns.size()) {
      fail("has " + std::to_string(cells_.size()) + " cells; expected " + std::to_string(kColumns.size()));
    }
  }
  [[noreturn]] void fail(const std::string& what) const {
    throw std::runtime_error("cudal2: plan table " + path_ + ", line " + std::to_string(line_) + ": " + what);
  }
  const std::string& text(const char* name) const {
    return cells_[std::find(kColumns.begin(), kColumns.end(), name) - kColumns.begin()];
  }
  int64_t integer(const char* name, int64_t least, int64_t most = int64_t{1} << 40) const {
    int64_t value = 0;
    if (!parse(text(name), &value) || value < least || value > most) {
      fail(std::string(name) + "='" + text(name) + "'; expected an integer from " + std::to_string(least) + " to " +
           std::to_string(most));
    }
    return value;
  }
  // 0 where the cell is empty, if it may be.
  float microseconds(const char* name, bool optional) const {
    double value = 0;
    if (optional && text(name).empty()) return 0;
    if (!parse(text(name), &value) || !std::isfinite(value) || value <= 0) {
      fail(std::string(name) + "='" + text(name) + "'; expected a time in microseconds, above 0");
    }
    return static_cast<float>(value);
  }
  int choice(const char* name, const char* zero, const char* one) const {
    if (text(name) == zero) return 0;
    if (text(name) == one) return 1;
    fail(std::string(name) + "='" + text(name) + "'; expected " + zero + " or " + one);
  }

 private:
  std::string path_;
  int line_;
  std::vector<std::string> cells_;
};

// The families of this build's kernels. A build for other architectures may lack one as a whole: rows that name its
// kernels do not apply then, and are no error.
std::set<std::string> families() {
  std::set<std::string> names;
  for (const KernelInfo* kernel : kernels()) names.insert(kernel->family);
  return names;
}

DType row_dtype(const Row& row) {
  DType dtype = DType::f16;
  if (!parse_dtype(row.text("dtype"), &dtype)) {
    row.fail("dtype='" + row.text("dtype") + "'; expected f16, bf16 or f16acc16");
  }
  return dtype;
}
Layout row_layout(const Row& row) { return static_cast<Layout>(row.choice("layout", "nn", "tn")); }

Key read_key(const Row& row) {
  return make_key(row_dtype(row), row_layout(row), row.integer("m", 1), row.integer("n", 1), row.integer("k", 1));
}

Plan read_plan(const Row& row, int arch, bool rules) {
  Plan plan;
  plan.use_own = row.choice("use", "cublas", "own") == 1;
  plan.us = row.microseconds("us", rules);
  plan.torch_us = row.microseconds("torch_us", rules);
  plan.knobs.group = static_cast<int>(row.integer("group", 1, kMostKnob));
  plan.knobs.raster = row.choice("raster", "0", "1");
  plan.knobs.ctas = static_cast<int>(row.integer("ctas", 0, kMostKnob));
  plan.knobs.split = static_cast<int>(row.integer("split", 1, kMostKnob));
  plan.knobs.pdl = row.choice("pdl", "0", "1") == 1;
  const std::string& name = row.text("kernel");
  plan.kernel = find_kernel(name);
  if (plan.kernel == nullptr) row.fail("kernel '" + name + "' is not compiled into this build");
  if (plan.kernel->dtype != row_dtype(row) || plan.kernel->layout != row_layout(row)) {
    row.fail("kernel '" + name + "' is of another dtype or layout than the row");
  }
  if (arch < plan.kernel->min_arch || arch > plan.kernel->max_arch) {
    row.fail("kernel '" + name + "' does not run on the table's architecture");
  }
  GemmArgs args;
  args.m = row.integer("m", 1);
  args.n = row.integer("n", 1);
  args.k = row.integer("k", 1);
  if (const char* reason = unsupported_knobs(*plan.kernel, plan.knobs, args)) row.fail(reason);
  return plan;
}

std::vector<std::pair<Key, Plan>> read_plans(const std::string& path, int arch, bool rules) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cudal2: plan table " + path + ": cannot be read");
  std::vector<std::pair<Key, Plan>> plans;
  std::unordered_map<Key, int, KeyHash> seen;  // -> line
  const std::set<std::string> compiled = families();
  bool started = false;
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    drop_carriage_return(line);
    if (line.empty() || line[0] == '#') continue;
    if (!started) {
      started = true;
      if (split(line) != kColumns) {
        throw std::runtime_error("cudal2: plan table " + path + ", line " + std::to_string(number) +
                                 ": expected the columns dtype,layout,m,n,k,kernel,group,raster,ctas,split,pdl,us," +
                                 "torch_us,lt_us,use");
      }
      continue;
    }
    const Row row(path, number, line);
    const Key key = read_key(row);
    const auto first = seen.emplace(key, number);
    if (!first.second) row.fail("the same dtype,layout,m,n,k as line " + std::to_string(first.first->second));
    const std::string& kernel = row.text("kernel");
    if (compiled.count(kernel.substr(0, kernel.find('_')))) plans.emplace_back(key, read_plan(row, arch, rules));
  }
  if (!started) throw std::runtime_error("cudal2: plan table " + path + ": no header row");
  return plans;
}

// Directory -----------------------------------------------------------------------------------------------------------

std::string& plan_directory() {
  static std::string directory = [] {
    const char* chosen = std::getenv("CUDAL2_PLANS");
    if (chosen != nullptr && *chosen != '\0') return std::string(chosen);  // empty: as if unset, as in plans.py
    Dl_info info;
    if (dladdr(reinterpret_cast<const void*>(&find_plan), &info) == 0 || info.dli_fname == nullptr)
      return std::string();
    const std::string library = info.dli_fname;  // <package>/lib/libcudal2.so
    const size_t slash = library.rfind('/');
    return (slash == std::string::npos ? std::string(".") : library.substr(0, slash)) + "/../plans";
  }();
  return directory;
}

std::vector<std::string> table_files(const std::string& directory) {
  std::vector<std::string> files;
  if (DIR* open = opendir(directory.c_str())) {
    while (const dirent* entry = readdir(open)) {
      const std::string name = entry->d_name;
      if (name.size() > 4 && name.compare(name.size() - 4, 4, ".csv") == 0) files.push_back(directory + "/" + name);
    }
    closedir(open);
  }
  std::sort(files.begin(), files.end());
  return files;
}

double header_number(const std::map<std::string, std::string>& header, const char* name) {
  const auto entry = header.find(name);
  double value = 0;
  return entry != header.end() && parse(entry->second, &value) && std::abs(value) < 1e6 ? value : 0;
}

// GeForce cards alone halve their rate for fp32 accumulation: what fp16 accumulation gains there holds for no other.
bool is_geforce(const std::string& gpu) { return gpu.find("GeForce") != std::string::npos; }

void drop(DType dtype, std::vector<std::pair<Key, Plan>>& plans) {
  const auto of_dtype = [dtype](const std::pair<Key, Plan>& plan) { return plan.second.kernel->dtype == dtype; };
  plans.erase(std::remove_if(plans.begin(), plans.end(), of_dtype), plans.end());
}

// Leaves to cuBLAS what sm90 kernels share in one wave of CTAs on a larger GPU: on a smaller one some would wait in
// vain for others that wait for an SM.
void leave_shared_tiles(std::vector<std::pair<Key, Plan>>& plans) {
  for (auto& [key, plan] : plans) {
    if (plan.knobs.split > 1 && !plan.kernel->stream_k) plan.use_own = false;
  }
}

struct Loaded {
  DeviceStatus status;
  std::unique_ptr<Table> table;
};

std::unique_ptr<Loaded> load(int device) {
  const Device& properties = device_properties(device);
  auto loaded = std::make_unique<Loaded>();
  loaded->status.gpu = properties.name;
  loaded->status.arch = properties.arch;
  loaded->status.sm_count = properties.sm_count;
  // Of a table: is it of another model, for another compute capability, and multiprocessors more or less.
  std::tuple<bool, bool, int> nearest{true, true, 1 << 30};
  int table_sms = 0;
  for (const std::string& file : table_files(plan_directory())) {
    const auto header = read_header(file);
    const auto gpu = header.find("gpu");
    const int arch = static_cast<int>(std::lround(10 * header_number(header, "arch")));
    if (gpu == header.end() || arch / 10 != properties.arch / 10) continue;
    const bool same = gpu->second == properties.name;
    const int sms = static_cast<int>(header_number(header, "sms"));
    const std::tuple distance{!same, arch != properties.arch, std::abs(sms - properties.sm_count)};
    if (distance >= nearest) continue;
    nearest = distance;
    table_sms = sms;
    const auto source = header.find("source");
    loaded->status.table = file;
    loaded->status.table_gpu = gpu->second;
    loaded->status.tuned = same;
    loaded->status.rules = source != header.end() && source->second == "rules";
  }
  std::vector<std::pair<Key, Plan>> plans;
  if (properties.runnable && !loaded->status.table.empty()) {
    plans = read_plans(loaded->status.table, properties.arch, loaded->status.rules);
    if (is_geforce(properties.name) != is_geforce(loaded->status.table_gpu)) drop(DType::f16acc16, plans);
    if (properties.sm_count < table_sms) leave_shared_tiles(plans);
  }
  loaded->table = std::make_unique<Table>(plans);
  loaded->status.plans = static_cast<int>(loaded->table->size());
  return loaded;
}

std::atomic<const Loaded*> loaded_tables[kMaxDevices];

const Loaded& loaded_for(int device) {
  if (device >= 0 && device < kMaxDevices) {
    if (const Loaded* ready = loaded_tables[device].load(std::memory_order_acquire)) return *ready;
  }
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  device_properties(device);  // throws if there is no such device
  const Loaded* ready = loaded_tables[device].load(std::memory_order_acquire);
  if (ready == nullptr) {
    ready = load(device).release();  // lives as long as the process
    loaded_tables[device].store(ready, std::memory_order_release);
  }
  return *ready;
}

}  // namespace

void set_plan_directory(const std::string& directory) { plan_directory() = directory; }

const Plan* find_plan(int device, DType dtype, Layout layout, int64_t m, int64_t n, int64_t k) {
  return loaded_for(device).table->find(make_key(dtype, layout, m, n, k));
}

DeviceStatus device_status(int device) { return loaded_for(device).status; }

}  // namespace cudal2
