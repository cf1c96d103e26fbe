// The runtime's whole interface: what a GEMM is, which kernels there are, which plan a shape has, how to launch it.
// Includes no torch, no Python and no CUDA header, so that ops.cpp and tools.cpp compile with the host compiler alone.
// In a fallback-only build (no nvcc) absent.cpp implements it with an empty registry.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#define CUDAL2_API __attribute__((visibility("default")))

namespace cudal2 {

enum class DType : int { f16 = 0, bf16 = 1 };

// How B (K x N) is stored. nn: row-major, pitch ldb >= N. tn: its transpose N x K is row-major, pitch ldb >= K
// (nn.Linear).
enum class Layout : int { nn = 0, tn = 1 };

// C[M,N] = A[M,K] @ B[K,N] (+ bias[N]), fp32 accumulation. A and C are row-major. Pitches count elements.
struct GemmArgs {
  const void* a = nullptr;
  const void* b = nullptr;
  void* c = nullptr;
  const void* bias = nullptr;  // N contiguous elements of the same dtype, any alignment; nullptr: none
  int64_t lda = 0, ldb = 0, ldc = 0;
  int64_t m = 0, n = 0, k = 0;
  DType dtype = DType::f16;
  Layout layout = Layout::nn;
};

// What a plan may choose at run time, without another compiled kernel.
struct LaunchKnobs {
  int group = 8;     // tiles per group along M before the order moves on along N (see kernels/schedule.cuh)
  int raster = 0;    // 0: groups run along M; 1: along N
  int ctas = 0;      // persistent grid of at most this many CTAs; 0: one CTA per tile
  bool pdl = false;  // launched with programmatic stream serialization (programmatic dependent launch)
};

// One compiled kernel. `name` is KernelSpec's canonical name; the fields repeat it for those who cannot parse it.
struct KernelInfo {
  const char* name;
  const char* family;
  DType dtype;
  Layout layout;
  int bm, bn, bk, stages;
  int cluster_m, cluster_n, split;
  int threads;
  int smem_bytes;
  int min_arch, max_arch;  // compute capabilities (90 = 9.0) whose devices can run it
  const void* function;    // the __global__ function's host stub
  // Launches on `stream` of the current device. Returns a cudaError_t as int.
  int (*launch)(const KernelInfo&, const LaunchKnobs&, const GemmArgs&, void* stream);
};

// A row of the plan table, resolved against the registry.
struct Plan {
  const KernelInfo* kernel = nullptr;
  LaunchKnobs knobs;
  bool use_own = false;  // false: cuBLAS measured faster on this shape; dispatch goes there
  float us = 0;          // measured, own kernel
  float torch_us = 0;    // measured, torch.matmul (cuBLAS), same run
};

struct DeviceStatus {
  std::string gpu;  // device name as the driver gives it
  int arch = 0;     // 90 = compute capability 9.0
  int sm_count = 0;
  std::string table;      // file of the plan table in use; empty: none for this architecture
  std::string table_gpu;  // GPU that the table was measured on
  bool tuned = false;     // table_gpu is this GPU
  int plans = 0;
};

// Registry -----------------------------------------------------------------------------------------------------------
CUDAL2_API const std::vector<const KernelInfo*>& kernels();         // sorted by name
CUDAL2_API const KernelInfo* find_kernel(const std::string& name);  // nullptr: not compiled into this build
// Whether this build has machine code, or PTX, that a device of compute capability `arch` (90 = 9.0) can run.
CUDAL2_API bool compiled_for(int arch);
CUDAL2_API const char* build_info();  // architectures, nvcc version; "fallback-only" without nvcc

// Plans. Throw std::runtime_error that names file and row if a table is malformed or names a kernel that is not there.
// --
CUDAL2_API void set_plan_directory(
    const std::string& directory);  // before first use; default: "plans" beside the package's libraries
CUDAL2_API const Plan* find_plan(int device, DType, Layout, int64_t m, int64_t n,
                                 int64_t k);  // lock-free once loaded; nullptr: no plan
CUDAL2_API DeviceStatus device_status(int device);

// Launch -------------------------------------------------------------------------------------------------------------
// Why this kernel cannot run these arguments on this device (alignment, pitch, size, architecture); nullptr: it can.
CUDAL2_API const char* unsupported(const KernelInfo&, const GemmArgs&, int device);
// Launches on `stream`; `device` must be current. Returns nullptr, or the CUDA error's text. Capture-safe, no
// allocation, no sync.
CUDAL2_API const char* launch(const KernelInfo&, const LaunchKnobs&, const GemmArgs&, int device, void* stream);

// The device that is current, and a scope that makes another one current (cudaGetDevice / cudaSetDevice).
CUDAL2_API int current_device();
class CUDAL2_API DeviceScope {
 public:
  explicit DeviceScope(int device);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int previous_;
};

}  // namespace cudal2
