// The runtime's whole interface: what a GEMM is, which kernels there are, which plan a shape has, how to launch it.
// Includes no torch, no Python and no CUDA header, so that ops*.cpp and tools.cpp compile with the host compiler alone.
// In a fallback-only build (no nvcc) absent.cpp implements it with an empty registry.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#define CUDAL2_API __attribute__((visibility("default")))

namespace cudal2 {

// f16acc16: fp16 operands and fp16 accumulation; only where the caller asks for it.
enum class DType : int { f16 = 0, bf16 = 1, f16acc16 = 2 };
constexpr const char* kDTypeNames[] = {"f16", "bf16", "f16acc16"};  // by value of DType

inline const char* name_of(DType dtype) { return kDTypeNames[static_cast<int>(dtype)]; }

// False: no such dtype.
inline bool parse_dtype(const std::string& name, DType* dtype) {
  for (const DType known : {DType::f16, DType::bf16, DType::f16acc16}) {
    if (name != name_of(known)) continue;
    *dtype = known;
    return true;
  }
  return false;
}

// How B (K x N) is stored. nn: row-major, pitch ldb >= N. tn: its transpose N x K is row-major, pitch ldb >= K
// (nn.Linear).
enum class Layout : int { nn = 0, tn = 1 };

// C[M,N] = A[M,K] @ B[K,N] (+ bias[N]), fp32 accumulation (but for f16acc16). A and C are row-major. Pitches count
// elements.
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
  int group = 8;   // tiles per group along M before the order moves on along N (see kernels/schedule.cuh)
  int raster = 0;  // 0: groups run along M; 1: along N
  int ctas = 0;  // persistent grid of at most this many CTAs; 0: one CTA per tile. With KernelInfo::stream_k they share
                 // (tile, k block) pairs evenly: of all tiles, or under sm90 of as many as do not make whole waves
  int split = 1;     // CTAs that share the K of each tile, for kernels with a workspace (KernelInfo::workspace)
  bool pdl = false;  // launched with programmatic stream serialization (programmatic dependent launch)
};

// Scratch of one launch, where CTAs that share a tile meet. A kernel leaves the counters as it finds them, 0, and under
// programmatic dependent launch touches neither before griddepcontrol.wait: the launch before may still use them.
struct Workspace {
  float* partials = nullptr;  // fp32 partial tiles
  int* counters = nullptr;    // one per tile or CTA: by which those that share a tile know of each other
};

// What a launcher needs beside the problem.
struct LaunchContext {
  void* stream = nullptr;
  Workspace workspace;  // null unless sharing_ctas() > 0 (launch.h)
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
  // Launches on the context's stream, of the current device. Returns a cudaError_t as int.
  int (*launch)(const KernelInfo&, const LaunchKnobs&, const GemmArgs&, const LaunchContext&);
  int vector = 8;      // elements to which bases and pitches of A, B and C, and N, must be aligned: 8, or 1 (any)
  int k_multiple = 1;  // what K must be a multiple of
  int max_tiles_n = 1 << 30;  // along N: a grid's y dimension where the kernel has one
  bool workspace = false;     // CTAs can split the K of each tile through a workspace: LaunchKnobs::split
  bool stream_k = false;      // with LaunchKnobs::ctas, CTAs share tiles through a workspace: stream-K
  int partials = 1;           // tiles that a CTA may leave partial sums of there
  bool tma_store = false;     // sm90: C leaves by TMA
  bool swap = false;          // sm90: the operands are swapped, C leaves transposed from what was computed
};

// A row of the plan table, resolved against the registry.
struct Plan {
  const KernelInfo* kernel = nullptr;
  LaunchKnobs knobs;
  bool use_own = false;  // false: cuBLAS measured faster on this shape; dispatch goes there
  float us = 0;          // measured, own kernel; 0 in a table of rules
  float torch_us = 0;    // measured, torch.matmul (cuBLAS), same run; likewise
};

struct DeviceStatus {
  std::string gpu;  // device name as the driver gives it
  int arch = 0;     // 90 = compute capability 9.0
  int sm_count = 0;
  std::string table;      // file of the plan table in use; empty: none for this architecture
  std::string table_gpu;  // GPU that the table is for
  bool tuned = false;     // table_gpu is this GPU
  bool rules = false;     // the table's plans come from rules; nobody measured them
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
// Why this kernel cannot run these arguments with these knobs, other than for what unsupported() says; nullptr: it can.
CUDAL2_API const char* unsupported_knobs(const KernelInfo&, const LaunchKnobs&, const GemmArgs&);
// Launches on `stream`; `device` must be current. Returns nullptr, or unsupported_knobs' or the CUDA error's text.
// Capture-safe, no sync. Allocates only a stream's or a capture's first workspace (workspace.h).
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
