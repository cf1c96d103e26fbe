// cuBLAS and cuBLASLt as baselines: the few functions that a GEMM takes, from the libraries that torch has loaded (or
// from the file that Python names), declared by hand so that the tools compile without CUDA's headers.
//
// Row-major C = A @ B is column-major C^T = B^T @ A^T, so our B is the library's first operand: as stored under nn,
// transposed under tn. fp32 compute, alpha 1, beta 0.
#pragma once

#include <dlfcn.h>

#include <climits>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "calls.h"
#include "runtime/gemm.h"

namespace cudal2::cublas {

using Status = int;  // 0 is success

constexpr int kCompute32F = 68, kReal32F = 0;
constexpr int kOpN = 0, kOpT = 1;
constexpr int kDefaultAlgorithm = -1;
constexpr int kDescTransA = 3;
constexpr int kPreferenceMaxWorkspace = 1;

inline const float kOne = 1, kZero = 0;

inline int data_type(DType dtype) { return dtype == DType::bf16 ? 14 : 2; }  // CUDA_R_16F, CUDA_R_16BF

inline void check(Status status, const char* what) {
  if (status == 0) return;
  throw std::runtime_error(std::string(what) + ": cuBLAS status " + std::to_string(status) +
                           (status == 15 ? " (not supported)" : ""));
}

// A shared library that is in the process already, or is loaded from `path`: a file or a soname.
class Library {
 public:
  explicit Library(const std::string& path) : path_(path), handle_(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (!handle_) throw std::runtime_error(dlerror());
  }

  template <class Function>
  void load(Function& slot, const char* name) const {
    void* symbol = dlsym(handle_, name);
    if (!symbol) throw std::runtime_error(path_ + " has no " + name);
    slot = reinterpret_cast<Function>(symbol);
  }

 private:
  std::string path_;
  void* handle_;  // never closed: the CUDA libraries do not stand being unloaded
};

// cuBLAS -------------------------------------------------------------------------------------------------------------

class Blas {
 public:
  // `workspace`: device memory of `workspace_bytes`, which must outlive the handle. A context must be current.
  Blas(const std::string& library, uintptr_t workspace, size_t workspace_bytes)
      : workspace_(reinterpret_cast<void*>(workspace)), workspace_bytes_(workspace_bytes) {
    const Library blas(library);
    blas.load(create_, "cublasCreate_v2");
    blas.load(destroy_, "cublasDestroy_v2");
    blas.load(set_stream_, "cublasSetStream_v2");
    blas.load(set_workspace_, "cublasSetWorkspace_v2");
    blas.load(gemm_, "cublasGemmEx");
    check(create_(&handle_), "cublasCreate");
    bind(nullptr);
  }
  Blas(const Blas&) = delete;
  Blas& operator=(const Blas&) = delete;
  ~Blas() { destroy_(handle_); }

  void gemm(const GemmArgs& g, void* stream) {
    if (stream != stream_) bind(stream);
    const int type = data_type(g.dtype);
    check(gemm_(handle_, g.layout == Layout::tn ? kOpT : kOpN, kOpN, static_cast<int>(g.n), static_cast<int>(g.m),
                static_cast<int>(g.k), &kOne, g.b, type, static_cast<int>(g.ldb), g.a, type, static_cast<int>(g.lda),
                &kZero, g.c, type, static_cast<int>(g.ldc), kCompute32F, kDefaultAlgorithm),
          "cublasGemmEx");
  }

 private:
  void bind(void* stream) {  // setting the stream takes the workspace away
    check(set_stream_(handle_, stream), "cublasSetStream");
    check(set_workspace_(handle_, workspace_, workspace_bytes_), "cublasSetWorkspace");
    stream_ = stream;
  }

  void* workspace_;
  size_t workspace_bytes_;
  void* handle_ = nullptr;
  void* stream_ = nullptr;
  Status (*create_)(void**) = nullptr;
  Status (*destroy_)(void*) = nullptr;
  Status (*set_stream_)(void*, void*) = nullptr;
  Status (*set_workspace_)(void*, void*, size_t) = nullptr;
  Status (*gemm_)(void*, int, int, int, int, int, const void*, const void*, int, int, const void*, int, int,
                  const void*, void*, int, int, int, int) = nullptr;
};

class BlasCall : public Call {
 public:
  BlasCall(std::shared_ptr<Blas> blas, const GemmArgs& args, void* stream)
      : Call(stream), blas_(std::move(blas)), args_(args) {
    for (int64_t value : {args.m, args.n, args.k, args.lda, args.ldb, args.ldc}) {
      if (value > INT_MAX) throw std::runtime_error("cublasGemmEx: sizes of at most 2^31 - 1");
    }
  }
  void queue() override { blas_->gemm(args_, stream_); }

 private:
  std::shared_ptr<Blas> blas_;
  const GemmArgs args_;
};

// cuBLASLt -----------------------------------------------------------------------------------------------------------

struct Suggestion {  // cublasLtMatmulHeuristicResult_t
  uint64_t algorithm[8];
  size_t workspace;
  Status state;
  float waves;
  int reserved[4];
};

struct LtApi {
  Status (*create)(void**);
  Status (*destroy)(void*);
  Status (*desc_create)(void**, int, int);
  Status (*desc_set)(void*, int, const void*, size_t);
  Status (*desc_destroy)(void*);
  Status (*layout_create)(void**, int, uint64_t, uint64_t, int64_t);
  Status (*layout_destroy)(void*);
  Status (*preference_create)(void**);
  Status (*preference_set)(void*, int, const void*, size_t);
  Status (*preference_destroy)(void*);
  Status (*heuristic)(void*, void*, void*, void*, void*, void*, void*, int, Suggestion*, int*);
  Status (*matmul)(void*, void*, const void*, const void*, void*, const void*, void*, const void*, const void*, void*,
                   void*, void*, const void*, void*, size_t, void*);
  size_t (*version)();
};

// An opaque cuBLASLt object with its own destructor.
class Opaque {
 public:
  explicit Opaque(Status (*destroy)(void*)) : destroy_(destroy) {}
  Opaque(const Opaque&) = delete;
  Opaque& operator=(const Opaque&) = delete;
  ~Opaque() {
    if (pointer) destroy_(pointer);
  }

  void* pointer = nullptr;

 private:
  Status (*destroy_)(void*);
};

// A cuBLASLt handle with its workspace, which must outlive it. A context must be current.
class Lt {
 public:
  Lt(const std::string& library, uintptr_t workspace, size_t workspace_bytes)
      : api(load(library)),
        workspace(reinterpret_cast<void*>(workspace)),
        workspace_bytes(workspace_bytes),
        handle(api.destroy),
        preference(api.preference_destroy) {
    check(api.create(&handle.pointer), "cublasLtCreate");
    check(api.preference_create(&preference.pointer), "cublasLtMatmulPreferenceCreate");
    const uint64_t bytes = workspace_bytes;
    check(api.preference_set(preference.pointer, kPreferenceMaxWorkspace, &bytes, sizeof bytes),
          "cublasLtMatmulPreferenceSetAttribute");
  }

  size_t version() const { return api.version(); }

  const LtApi api;
  void* const workspace;
  const size_t workspace_bytes;
  Opaque handle, preference;

 private:
  static LtApi load(const std::string& path) {
    const Library library(path);
    LtApi a{};
    library.load(a.create, "cublasLtCreate");
    library.load(a.destroy, "cublasLtDestroy");
    library.load(a.desc_create, "cublasLtMatmulDescCreate");
    library.load(a.desc_set, "cublasLtMatmulDescSetAttribute");
    library.load(a.desc_destroy, "cublasLtMatmulDescDestroy");
    library.load(a.layout_create, "cublasLtMatrixLayoutCreate");
    library.load(a.layout_destroy, "cublasLtMatrixLayoutDestroy");
    library.load(a.preference_create, "cublasLtMatmulPreferenceCreate");
    library.load(a.preference_set, "cublasLtMatmulPreferenceSetAttribute");
    library.load(a.preference_destroy, "cublasLtMatmulPreferenceDestroy");
    library.load(a.heuristic, "cublasLtMatmulAlgoGetHeuristic");
    library.load(a.matmul, "cublasLtMatmul");
    library.load(a.version, "cublasLtGetVersion");
    return a;
  }
};

// One GEMM's descriptors, and cuBLASLt's suggestions for it, its own favourite first. Throws where it has none.
class LtProblem {
 public:
  LtProblem(std::shared_ptr<Lt> lt, const GemmArgs& g, int most)
      : lt_(std::move(lt)),
        desc_(lt_->api.desc_destroy),
        first_(lt_->api.layout_destroy),
        second_(lt_->api.layout_destroy),
        output_(lt_->api.layout_destroy) {
    const LtApi& api = lt_->api;
    const bool transposed = g.layout == Layout::tn;
    check(api.desc_create(&desc_.pointer, kCompute32F, kReal32F), "cublasLtMatmulDescCreate");
    const int32_t operation = transposed ? kOpT : kOpN;
    check(api.desc_set(desc_.pointer, kDescTransA, &operation, sizeof operation), "cublasLtMatmulDescSetAttribute");
    auto layout = [&](Opaque& slot, int64_t rows, int64_t columns, int64_t pitch) {
      check(api.layout_create(&slot.pointer, data_type(g.dtype), rows, columns, pitch), "cublasLtMatrixLayoutCreate");
    };
    layout(first_, transposed ? g.k : g.n, transposed ? g.n : g.k, g.ldb);
    layout(second_, g.k, g.m, g.lda);
    layout(output_, g.n, g.m, g.ldc);
    std::vector<Suggestion> found(most);
    int count = 0;
    check(api.heuristic(lt_->handle.pointer, desc_.pointer, first_.pointer, second_.pointer, output_.pointer,
                        output_.pointer, lt_->preference.pointer, most, found.data(), &count),
          "cublasLtMatmulAlgoGetHeuristic");
    for (int i = 0; i < count; ++i) {
      if (found[i].state == 0) suggestions_.push_back(found[i]);
    }
    if (suggestions_.empty()) throw std::runtime_error("cuBLASLt has no algorithm for this problem");
  }

  size_t count() const { return suggestions_.size(); }

  void matmul(size_t index, const GemmArgs& g, void* stream) const {
    check(lt_->api.matmul(lt_->handle.pointer, desc_.pointer, &kOne, g.b, first_.pointer, g.a, second_.pointer, &kZero,
                          g.c, output_.pointer, g.c, output_.pointer, suggestions_[index].algorithm, lt_->workspace,
                          lt_->workspace_bytes, stream),
          "cublasLtMatmul");
  }

 private:
  std::shared_ptr<Lt> lt_;
  Opaque desc_, first_, second_, output_;
  std::vector<Suggestion> suggestions_;
};

// One of a problem's suggestions, on its operands or others of the same sizes and pitches.
class LtCall : public Call {
 public:
  LtCall(std::shared_ptr<LtProblem> problem, size_t index, const GemmArgs& args, void* stream)
      : Call(stream), problem_(std::move(problem)), index_(index), args_(args) {
    if (index >= problem_->count()) {
      throw std::runtime_error("suggestion " + std::to_string(index) + " of " + std::to_string(problem_->count()));
    }
  }
  void queue() override { problem_->matmul(index_, args_, stream_); }

 private:
  std::shared_ptr<LtProblem> problem_;
  size_t index_;
  const GemmArgs args_;
};

}  // namespace cudal2::cublas
