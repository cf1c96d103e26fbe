#include "runtime/launch.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <unordered_map>

#include "kernels/params.h"
#include "kernels/sm90_work.cuh"
#include "runtime/device.h"
#include "runtime/tensor_map.h"
#include "runtime/workspace.h"

namespace cudal2 {
namespace {

constexpr int64_t kMaxExtent = (int64_t{1} << 31) - 512;  // tile coordinates are 32-bit

int cluster_size(const KernelInfo& kernel) { return kernel.cluster_m * kernel.cluster_n * kernel.split; }

int64_t tile_count(const KernelInfo& kernel, const GemmArgs& args) {
  return ceil_div(args.m, kernel.bm) * ceil_div(args.n, kernel.bn);
}

// Tiles, in whole clusters.
int64_t clustered_tile_count(const KernelInfo& kernel, const GemmArgs& args) {
  const int64_t rows = int64_t{kernel.bm} * kernel.cluster_m, columns = int64_t{kernel.bn} * kernel.cluster_n;
  return ceil_div(args.m, rows) * ceil_div(args.n, columns) * kernel.cluster_m * kernel.cluster_n;
}

// The grid of an sm90 kernel, in clusters, for so many cluster tiles.
int64_t grid_clusters(const KernelInfo& kernel, const LaunchKnobs& knobs, int64_t tiles) {
  const int64_t clusters = tiles * knobs.split;
  const bool persistent = knobs.ctas > 0 && kernel.split == 1;
  return persistent ? std::min<int64_t>(clusters, std::max(1, knobs.ctas / cluster_size(kernel))) : clusters;
}

// Whether CTAs stream over what does not make whole waves (sm90), not over all tiles (multistage).
bool streams_waves(const KernelInfo& kernel) { return kernel.stream_k && std::strcmp(kernel.family, "sm90") == 0; }

int64_t partial_bytes(const KernelInfo& kernel, int64_t sharing) {
  return sharing * kernel.partials * kernel.bm * kernel.bn * static_cast<int64_t>(sizeof(float));
}

// What has been seen of a kernel, a bit per device: that it was prepared, and that its code, where it is of 9.0 or
// later, has the waits that programmatic dependent launch relies on.
struct Prepared {
  std::atomic<uint64_t> devices{0}, waits{0};
};

// Loads the kernel on this device and raises its shared-memory limit, once. Loading is not a stream operation, but the
// driver may allocate for it, so a capture in progress on this thread is told to allow that.
cudaError_t prepare(const KernelInfo& kernel, bool* waits) {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  cudaThreadExchangeStreamCaptureMode(&mode);
  cudaError_t error =
      cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize, kernel.smem_bytes);
  if (error == cudaSuccess && cluster_size(kernel) > 8) {
    error = cudaFuncSetAttribute(kernel.function, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  }
  cudaFuncAttributes attributes = {};
  if (error == cudaSuccess) error = cudaFuncGetAttributes(&attributes, kernel.function);
  *waits = attributes.ptxVersion >= 90;
  cudaThreadExchangeStreamCaptureMode(&mode);
  return error;
}

// prepare(), remembered per (kernel, device).
cudaError_t prepare_once(const KernelInfo& kernel, int device, bool* waits) {
  static auto prepared = [] {
    std::unordered_map<const KernelInfo*, Prepared> map;  // its shape is fixed from here on
    for (const KernelInfo* known : kernels()) map[known];
    return map;
  }();
  Prepared& seen = prepared.find(&kernel)->second;
  const uint64_t bit = uint64_t{1} << (device % 64);
  if (seen.devices.load(std::memory_order_acquire) & bit) {
    *waits = (seen.waits.load(std::memory_order_relaxed) & bit) != 0;
    return cudaSuccess;
  }
  const cudaError_t error = prepare(kernel, waits);
  if (error == cudaSuccess && *waits) seen.waits.fetch_or(bit, std::memory_order_relaxed);
  if (error == cudaSuccess) seen.devices.fetch_or(bit, std::memory_order_release);
  return error;
}

// A kernel that was prepared on a device, and its handle there.
struct Ready {
  const KernelInfo* kernel = nullptr;
  CUfunction function = nullptr;  // nullptr: the driver does not say
  int device = -1;
  bool waits = false;
};

// What this thread launched last, direct-mapped: the hot path's look-up is one cache line.
cudaError_t ready(const KernelInfo& kernel, int device, Ready* found) {
  constexpr size_t kEntries = 64;
  thread_local std::array<Ready, kEntries> cache;
  const size_t slot = (reinterpret_cast<uintptr_t>(&kernel) * 0x9E3779B97F4A7C15ull >> 40) % kEntries;
  Ready& entry = cache[slot];
  if (entry.kernel != &kernel || entry.device != device) {
    Ready fresh{&kernel, nullptr, device, false};
    const cudaError_t error = prepare_once(kernel, device, &fresh.waits);
    if (error != cudaSuccess) return error;
    if (cudaGetFuncBySymbol(&fresh.function, kernel.function) != cudaSuccess) {
      cudaGetLastError();
      fresh.function = nullptr;
    }
    entry = fresh;
  }
  *found = entry;
  return cudaSuccess;
}

// From launch() to launch_grid(), past the families' launchers.
thread_local Ready launching;

// The same launch through the runtime, whose attributes are the driver's by other names.
cudaError_t launch_by_runtime(const KernelInfo& kernel, const CUlaunchConfig& config, void** arguments) {
  cudaLaunchConfig_t same = {};
  same.gridDim = dim3(config.gridDimX, config.gridDimY, config.gridDimZ);
  same.blockDim = dim3(config.blockDimX);
  same.dynamicSmemBytes = config.sharedMemBytes;
  same.stream = config.hStream;
  static_assert(sizeof(cudaLaunchAttribute) == sizeof(CUlaunchAttribute) &&
                int{cudaLaunchAttributeClusterDimension} == int{CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION} &&
                int{cudaLaunchAttributeProgrammaticStreamSerialization} ==
                    int{CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION});
  same.attrs = reinterpret_cast<cudaLaunchAttribute*>(config.attrs);
  same.numAttrs = config.numAttrs;
  return cudaLaunchKernelExC(&same, kernel.function, arguments);
}

using LaunchEx = CUresult (*)(const CUlaunchConfig*, CUfunction, void**, void**);

}  // namespace

TileOrder tile_order(const KernelInfo& kernel, const LaunchKnobs& knobs, const GemmArgs& args) {
  return {static_cast<int>(ceil_div(args.m, int64_t{kernel.bm} * kernel.cluster_m)),
          static_cast<int>(ceil_div(args.n, int64_t{kernel.bn} * kernel.cluster_n)), knobs.group, knobs.raster};
}

// Through the driver, which saves the runtime's search for the kernel and its copies of the attributes. What that
// cannot launch (a thread that has no context yet, a context that is not the device's own) the runtime can, or says why
// not.
cudaError_t launch_grid(const KernelInfo& kernel, const LaunchKnobs& knobs, dim3 grid, void* params, void* stream) {
  CUlaunchAttribute attributes[2];
  CUlaunchConfig config = {};
  config.gridDimX = grid.x;
  config.gridDimY = grid.y;
  config.gridDimZ = grid.z;
  config.blockDimX = static_cast<unsigned>(kernel.threads);
  config.blockDimY = config.blockDimZ = 1;
  config.sharedMemBytes = static_cast<unsigned>(kernel.smem_bytes);
  config.hStream = static_cast<CUstream>(stream);
  config.attrs = attributes;
  const int cluster = cluster_size(kernel);
  if (cluster > 1) {
    CUlaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    attribute.value.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  }
  if (knobs.pdl) {
    CUlaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    attribute.value.programmaticStreamSerializationAllowed = 1;
  }
  void* arguments[] = {params};
  static const auto driver = reinterpret_cast<LaunchEx>(driver_function("cuLaunchKernelEx"));
  if (driver != nullptr && launching.kernel == &kernel && launching.function != nullptr &&
      driver(&config, launching.function, arguments, nullptr) == CUDA_SUCCESS) {
    return cudaSuccess;
  }
  return launch_by_runtime(kernel, config, arguments);
}

int launch_sm90(const KernelInfo& kernel, const LaunchKnobs& knobs, const GemmArgs& args,
                const LaunchContext& context) {
  Sm90Params params{};
  const MatrixView a{args.a, args.m, args.k, args.lda, kernel.bm / kernel.cluster_n, 64, args.dtype};
  const bool tn = args.layout == Layout::tn;
  const MatrixView b{args.b,
                     tn ? args.n : args.k,
                     tn ? args.k : args.n,
                     args.ldb,
                     (tn ? kernel.bn : kernel.bk) / kernel.cluster_m,
                     tn ? 64 : nn_panel_columns(kernel.bn),
                     args.dtype};
  const StoreBox box = store_box(kernel.bm, kernel.bn, kernel.split, kernel.swap);
  const MatrixView c{args.c, args.m, args.n, args.ldc, box.rows, box.columns, args.dtype};
  if (tensor_map(a, &params.tma_a) != CUDA_SUCCESS || tensor_map(b, &params.tma_b) != CUDA_SUCCESS ||
      (kernel.tma_store && tensor_map(c, &params.tma_c) != CUDA_SUCCESS)) {
    return cudaErrorInvalidValue;
  }
  params.c = args.c;
  params.bias = args.bias;
  params.ldc = args.ldc;
  params.m = static_cast<int>(args.m);
  params.n = static_cast<int>(args.n);
  params.k_blocks = Divisor(static_cast<int>(ceil_div(args.k, kernel.bk)));
  params.order = tile_order(kernel, knobs, args);
  params.tiles = Divisor(params.order.tiles_m * params.order.tiles_n);
  params.split = Divisor(knobs.split);
  params.partials = context.workspace.partials;
  params.words = reinterpret_cast<uint32_t*>(context.workspace.counters);

  const int cluster = cluster_size(kernel);
  const int clusters = static_cast<int>(grid_clusters(kernel, knobs, params.tiles.value));
  params.step = Divisor(std::min(clusters, params.tiles.value));
  params.stream_tiles =
      kernel.stream_k ? streamed_tiles(params.tiles.value, params.step.value, params.k_blocks.value) : 0;
  params.stream_blocks = params.stream_tiles * params.k_blocks.value;
  return launch_grid(kernel, knobs, dim3(clusters * cluster), &params, context.stream);
}

const char* unsupported(const KernelInfo& kernel, const GemmArgs& args, int device) {
  const Device& target = device_properties(device);
  const auto misaligned = [&kernel](const void* pointer) {
    return reinterpret_cast<uintptr_t>(pointer) % (2 * kernel.vector) != 0;
  };
  if (!target.runnable || target.arch < kernel.min_arch || target.arch > kernel.max_arch) {
    return "the kernel is not compiled for this device's architecture";
  }
  if (kernel.smem_bytes > target.max_smem) return "shared memory: the kernel needs more than a CTA of this device has";
  if (args.dtype != kernel.dtype) return "dtype: the kernel is of another";
  if (args.layout != kernel.layout) return "layout: the kernel expects B stored the other way";
  if (args.m < 1 || args.n < 1 || args.k < 1) return "shape: M, N and K must be at least 1";
  if (args.m > kMaxExtent || args.n > kMaxExtent || args.k > kMaxExtent)
    return "shape: M, N and K must be below 2^31 - 512";
  if (tile_count(kernel, args) * kernel.split > kMaxExtent) return "shape: more tiles than a grid has";
  if (ceil_div(args.k, kernel.bk) < kernel.split) return "shape: K has fewer blocks than the kernel's split";
  if (misaligned(args.a) || misaligned(args.b) || misaligned(args.c))
    return "alignment: A, B and C must start at 16 bytes";
  if (args.lda % kernel.vector || args.ldb % kernel.vector || args.ldc % kernel.vector)
    return "pitch: of A, B and C must be a multiple of 8 elements";
  if (args.n % kernel.vector) return "shape: N must be a multiple of 8";
  if (ceil_div(args.n, kernel.bn) > kernel.max_tiles_n) return "shape: more tiles along N than the kernel's grid has";
  if (args.k % kernel.k_multiple) return "shape: K must be a multiple of what the kernel loads of it at once";
  const int64_t columns_b = args.layout == Layout::nn ? args.n : args.k;
  if (args.lda < args.k || args.ldb < columns_b || args.ldc < args.n) return "pitch: rows of A, B or C overlap";
  return nullptr;
}

int64_t sharing_ctas(const KernelInfo& kernel, const LaunchKnobs& knobs, const GemmArgs& args) {
  if (!kernel.workspace && !kernel.stream_k) return 0;
  const int64_t tiles = clustered_tile_count(kernel, args), k_blocks = ceil_div(args.k, kernel.bk);
  if (!kernel.stream_k || knobs.ctas == 0) return knobs.split > 1 ? tiles * knobs.split : 0;
  if (!streams_waves(kernel)) return std::min<int64_t>(knobs.ctas, tiles * k_blocks);
  const int64_t cluster_tiles = tiles / (kernel.cluster_m * kernel.cluster_n);
  const int64_t clusters = grid_clusters(kernel, knobs, cluster_tiles);
  return streamed_tiles(cluster_tiles, clusters, k_blocks) > 0 ? clusters * cluster_size(kernel) : 0;
}

const char* unsupported_knobs(const KernelInfo& kernel, const LaunchKnobs& knobs, const GemmArgs& args) {
  if (knobs.split < 1) return "split: must be at least 1";
  if (knobs.split == 1 && !kernel.workspace && !kernel.stream_k) return nullptr;
  if (knobs.split > 1 && !kernel.workspace) return "split: this kernel has no workspace to share a tile's K through";
  if (knobs.split > 1 && knobs.ctas > 0)
    return "split: of each tile, and ctas that share all tiles, exclude each other";
  if (ceil_div(args.k, kernel.bk) < knobs.split) return "split: K has fewer blocks";
  if (!kernel.stream_k && knobs.split > kMostParts) return "split: at most 16 CTAs can share a tile of this kernel";
  const int64_t sharing = sharing_ctas(kernel, knobs, args);
  if (sharing == 0) return nullptr;
  // Where waves are streamed counters are the CTAs', and what bounds partial tiles bounds them too.
  if (!streams_waves(kernel) && clustered_tile_count(kernel, args) > kWorkspaceCounters)
    return "workspace: more than 65536 tiles";
  if (partial_bytes(kernel, sharing) > kWorkspaceBytes) return "workspace: more than 32 MiB of partial tiles";
  return nullptr;
}

const char* launch(const KernelInfo& kernel, const LaunchKnobs& knobs, const GemmArgs& args, int device, void* stream) {
  if (const char* reason = unsupported_knobs(kernel, knobs, args)) return reason;
  cudaError_t error = ready(kernel, device, &launching);
  LaunchKnobs allowed = knobs;
  allowed.pdl = knobs.pdl && error == cudaSuccess && launching.waits;
  LaunchContext context{stream, {}};
  WorkspaceLease lease;
  const int64_t sharing = sharing_ctas(kernel, knobs, args);
  if (error == cudaSuccess && sharing > 0) {
    error = lease.take(device, static_cast<cudaStream_t>(stream), partial_bytes(kernel, sharing), &context.workspace);
  }
  if (error == cudaSuccess) error = static_cast<cudaError_t>(kernel.launch(kernel, allowed, args, context));
  if (error == cudaSuccess) return nullptr;
  cudaGetLastError();  // ours to report: it must not surface in torch's next check
  return cudaGetErrorString(error);
}

}  // namespace cudal2
