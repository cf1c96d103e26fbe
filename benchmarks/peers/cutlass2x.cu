// A benchmark peer, no part of the library: sm_80-style GEMM kernels (cp.async + mma.sync) of CUTLASS 2.x's
// device::Gemm, compiled for the GPU at hand so that they run beside our own. C = A B; f16 or bf16 in and out, fp32
// accumulation. A and C are row-major; B is row-major (nn) or column-major (tn). Data-parallel only: no split-K, no
// stream-K.
//
// Built by `python -m benchmarks.peers.cutlass2x --build`, and called from benchmarks/peers/cutlass2x.py.
#include <cuda_runtime.h>

#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include "cutlass/gemm/device/gemm.h"

namespace {

struct Problem {
  int m, n, k;
  int64_t lda, ldb, ldc;
};

struct Operands {
  const void *a, *b;
  void* c;
};

constexpr int kUnsupported = -1;
constexpr int64_t kAlignment = 8;  // elements: 16-byte accesses

// One kernel. `log_swizzle`: GemmIdentityThreadblockSwizzle's width, which it reads at run time, as a power of two.
template <class Element, class LayoutB, int BM, int BN, int BK, int Stages, int WM, int WN>
int launch(const Problem& p, const Operands& o, int log_swizzle, cudaStream_t stream) {
  using namespace cutlass;
  using RowMajor = layout::RowMajor;
  using Epilogue = epilogue::thread::LinearCombination<Element, 8, float, float, epilogue::thread::ScaleType::Nothing>;
  using Kernel =
      typename gemm::device::Gemm<Element, RowMajor, Element, LayoutB, Element, RowMajor, float, arch::OpClassTensorOp,
                                  arch::Sm80, gemm::GemmShape<BM, BN, BK>, gemm::GemmShape<WM, WN, BK>,
                                  gemm::GemmShape<16, 8, 16>, Epilogue,
                                  gemm::threadblock::GemmIdentityThreadblockSwizzle<8>, Stages, 8, 8>::GemmKernel;
  constexpr int kSmem = sizeof(typename Kernel::SharedStorage);
  static const cudaError_t ready =
      cudaFuncSetAttribute(cutlass::Kernel<Kernel>, cudaFuncAttributeMaxDynamicSharedMemorySize, kSmem);
  if (ready != cudaSuccess) return ready;

  const gemm::GemmCoord tiles((p.m + BM - 1) / BM, (p.n + BN - 1) / BN, 1);
  auto* a = static_cast<Element*>(const_cast<void*>(o.a));
  auto* b = static_cast<Element*>(const_cast<void*>(o.b));
  auto* c = static_cast<Element*>(o.c);
  typename Kernel::Params params({p.m, p.n, p.k}, tiles, {a, RowMajor(p.lda)}, {b, LayoutB(p.ldb)},
                                 {c, RowMajor(p.ldc)}, {c, RowMajor(p.ldc)});
  params.swizzle_log_tile = log_swizzle;
  const int width = 1 << log_swizzle;
  const dim3 grid(tiles.m() * width, (tiles.n() + width - 1) / width);
  cutlass::Kernel<Kernel><<<grid, Kernel::kThreadCount, kSmem, stream>>>(params);
  return cudaGetLastError();
}

struct Config {
  using Launch = int (*)(const Problem&, const Operands&, int, cudaStream_t);
  const char* name;
  int bn;
  Launch launch[2][2];  // [bf16][tn]
};

template <int BM, int BN, int BK, int Stages, int WM, int WN>
constexpr Config config(const char* name) {
  using cutlass::bfloat16_t, cutlass::half_t;
  using cutlass::layout::ColumnMajor, cutlass::layout::RowMajor;
  return {
      name,
      BN,
      {{launch<half_t, RowMajor, BM, BN, BK, Stages, WM, WN>, launch<half_t, ColumnMajor, BM, BN, BK, Stages, WM, WN>},
       {launch<bfloat16_t, RowMajor, BM, BN, BK, Stages, WM, WN>,
        launch<bfloat16_t, ColumnMajor, BM, BN, BK, Stages, WM, WN>}}};
}

// BM, BN, BK, stages, then a warp's tile. Up to 227 KiB of shared memory, which compute capability 9.0 has.
#define CONFIG(bm, bn, bk, s, wm, wn) config<bm, bn, bk, s, wm, wn>(#bm "x" #bn "x" #bk "_s" #s "_w" #wm "x" #wn)
constexpr Config kConfigs[] = {
    CONFIG(128, 256, 32, 3, 64, 64), CONFIG(256, 128, 32, 3, 64, 64), CONFIG(128, 256, 64, 3, 64, 64),
    CONFIG(256, 128, 64, 3, 64, 64), CONFIG(128, 128, 32, 4, 64, 64), CONFIG(128, 128, 64, 3, 64, 64),
    CONFIG(128, 256, 32, 4, 64, 64), CONFIG(256, 128, 32, 4, 64, 64), CONFIG(128, 128, 32, 5, 64, 64),
    CONFIG(128, 128, 64, 4, 64, 64), CONFIG(128, 256, 64, 4, 64, 64), CONFIG(256, 128, 64, 4, 64, 64),
    CONFIG(128, 128, 32, 3, 64, 64), CONFIG(128, 128, 64, 3, 64, 32), CONFIG(256, 64, 32, 4, 64, 64),
    CONFIG(64, 256, 32, 4, 64, 64),  CONFIG(256, 64, 64, 3, 64, 64),  CONFIG(64, 256, 64, 3, 64, 64),
    CONFIG(128, 256, 32, 6, 64, 64), CONFIG(256, 128, 32, 6, 64, 64), CONFIG(128, 128, 32, 5, 64, 32),
    CONFIG(128, 64, 32, 6, 64, 32),  CONFIG(64, 128, 32, 6, 32, 64),  CONFIG(128, 64, 64, 4, 64, 32),
    CONFIG(64, 128, 64, 4, 32, 64),  CONFIG(64, 64, 32, 10, 32, 32),  CONFIG(64, 64, 64, 5, 32, 32),
    CONFIG(64, 64, 64, 8, 32, 32),   CONFIG(64, 32, 64, 6, 32, 32),   CONFIG(32, 64, 64, 6, 32, 32),
    CONFIG(32, 32, 64, 8, 32, 32),
};
#undef CONFIG
constexpr int kConfigCount = std::size(kConfigs);

// Most useful first, since a large problem is tried with the first few kernels only.
constexpr int kLogSwizzles[] = {2, 3, 0, 1};

// An index names a config and a swizzle: all configs with the first swizzle come first.
const Config& config_of(int index) { return kConfigs[index % kConfigCount]; }
int log_swizzle_of(int index) { return kLogSwizzles[index / kConfigCount]; }

}  // namespace

extern "C" {

int cutlass2x_count() { return kConfigCount * static_cast<int>(std::size(kLogSwizzles)); }

const char* cutlass2x_name(int index) {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (int i = 0; i < cutlass2x_count(); ++i)
      all.push_back(std::string(config_of(i).name) + "_g" + std::to_string(1 << log_swizzle_of(i)));
    return all;
  }();
  return names[index].c_str();
}

// Whether a kernel can run a problem: aligned, and not the same as with a narrower swizzle, by the thresholds that
// GemmIdentityThreadblockSwizzle has.
int cutlass2x_supports(int index, int64_t m, int64_t n, int64_t k, int64_t lda, int64_t ldb, int64_t ldc) {
  for (int64_t size : {n, k, lda, ldb, ldc})
    if (size % kAlignment) return 0;
  for (int64_t size : {m, n, k})
    if (size < 1 || size > INT32_MAX) return 0;
  constexpr int kFewestTiles[] = {1, 2, 3, 6};
  const int bn = config_of(index).bn;
  return (n + bn - 1) / bn >= kFewestTiles[log_swizzle_of(index)];
}

// Queues a GEMM on the stream. Returns 0, a cudaError_t, or -1 where the kernel cannot run it. On one device only.
int cutlass2x_run(int index, int bf16, int tn, int64_t m, int64_t n, int64_t k, const void* a, int64_t lda,
                  const void* b, int64_t ldb, void* c, int64_t ldc, void* stream) {
  for (const void* pointer : {a, b, static_cast<const void*>(c)})
    if (reinterpret_cast<uintptr_t>(pointer) % 16) return kUnsupported;
  if (!cutlass2x_supports(index, m, n, k, lda, ldb, ldc)) return kUnsupported;
  const Problem problem{static_cast<int>(m), static_cast<int>(n), static_cast<int>(k), lda, ldb, ldc};
  return config_of(index).launch[bf16 != 0][tn != 0](problem, {a, b, c}, log_swizzle_of(index),
                                                     static_cast<cudaStream_t>(stream));
}

const char* cutlass2x_error(int status) {
  return status == kUnsupported ? "this kernel cannot run the problem"
                                : cudaGetErrorString(static_cast<cudaError_t>(status));
}

}  // extern "C"
