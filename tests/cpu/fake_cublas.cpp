// A cuBLAS and cuBLASLt of the functions that csrc/cublas.h calls, on the CPU and by the letter of their documentation:
// column-major, leading dimensions, cudaDataType 2 and 14, cublasComputeType_t 68. Anything unexpected is a status.
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace {

enum { kOk = 0, kInvalid = 7, kNotSupported = 15 };

float load(const void* base, int type, int64_t at) {
  if (type == 2) return static_cast<float>(static_cast<const _Float16*>(base)[at]);
  const uint32_t bits = static_cast<uint32_t>(static_cast<const uint16_t*>(base)[at]) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

void store(void* base, int type, int64_t at, float value) {
  if (type == 2) {
    static_cast<_Float16*>(base)[at] = static_cast<_Float16>(value);
    return;
  }
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  bits += 0x7fff + ((bits >> 16) & 1);
  static_cast<uint16_t*>(base)[at] = static_cast<uint16_t>(bits >> 16);
}

// Column-major C (m x n) = op(A) (m x k) * B (k x n).
void gemm(bool transposed, int64_t m, int64_t n, int64_t k, const void* a, int64_t lda, const void* b, int64_t ldb,
          void* c, int64_t ldc, int type) {
  for (int64_t column = 0; column < n; ++column) {
    for (int64_t row = 0; row < m; ++row) {
      float sum = 0;
      for (int64_t i = 0; i < k; ++i) {
        sum += load(a, type, transposed ? row * lda + i : i * lda + row) * load(b, type, column * ldb + i);
      }
      store(c, type, column * ldc + row, sum);
    }
  }
}

struct Desc {
  int transposed;
};
struct Layout {
  int type;
  uint64_t rows, columns;
  int64_t pitch;
};
struct Preference {
  uint64_t workspace;
};
struct Handle {
  void* stream;
  void* workspace;
  size_t bytes;
};
struct Suggestion {
  uint64_t algorithm[8];
  size_t workspace;
  int state;
  float waves;
  int reserved[4];
};

}  // namespace

extern "C" {

int cublasCreate_v2(void** handle) { return *handle = new Handle{}, kOk; }
int cublasDestroy_v2(void* handle) { return delete static_cast<Handle*>(handle), kOk; }
int cublasSetStream_v2(void* handle, void* stream) {
  *static_cast<Handle*>(handle) = {stream, nullptr, 0};  // the documented effect on the workspace
  return kOk;
}
int cublasSetWorkspace_v2(void* handle, void* workspace, size_t bytes) {
  static_cast<Handle*>(handle)->workspace = workspace;
  static_cast<Handle*>(handle)->bytes = bytes;
  return kOk;
}
int cublasGemmEx(void* handle, int transa, int transb, int m, int n, int k, const void* alpha, const void* a,
                 int a_type, int lda, const void* b, int b_type, int ldb, const void* beta, void* c, int c_type,
                 int ldc, int compute, int algorithm) {
  if (!static_cast<Handle*>(handle)->workspace) return kInvalid;
  if (transb != 0 || compute != 68 || algorithm != -1 || a_type != b_type || a_type != c_type) return kInvalid;
  if (*static_cast<const float*>(alpha) != 1 || *static_cast<const float*>(beta) != 0) return kInvalid;
  gemm(transa == 1, m, n, k, a, lda, b, ldb, c, ldc, a_type);
  return kOk;
}

size_t cublasLtGetVersion() { return 990100; }
int cublasLtCreate(void** handle) { return *handle = new Handle{}, kOk; }
int cublasLtDestroy(void* handle) { return delete static_cast<Handle*>(handle), kOk; }
int cublasLtMatmulDescCreate(void** desc, int compute, int scale) {
  if (compute != 68 || scale != 0) return kInvalid;
  return *desc = new Desc{}, kOk;
}
int cublasLtMatmulDescSetAttribute(void* desc, int attribute, const void* value, size_t size) {
  if (attribute != 3 || size != 4) return kInvalid;
  static_cast<Desc*>(desc)->transposed = *static_cast<const int32_t*>(value);
  return kOk;
}
int cublasLtMatmulDescDestroy(void* desc) { return delete static_cast<Desc*>(desc), kOk; }
int cublasLtMatrixLayoutCreate(void** layout, int type, uint64_t rows, uint64_t columns, int64_t pitch) {
  if (pitch < static_cast<int64_t>(rows)) return kInvalid;
  return *layout = new Layout{type, rows, columns, pitch}, kOk;
}
int cublasLtMatrixLayoutDestroy(void* layout) { return delete static_cast<Layout*>(layout), kOk; }
int cublasLtMatmulPreferenceCreate(void** preference) { return *preference = new Preference{}, kOk; }
int cublasLtMatmulPreferenceSetAttribute(void* preference, int attribute, const void* value, size_t size) {
  if (attribute != 1 || size != 8) return kInvalid;
  static_cast<Preference*>(preference)->workspace = *static_cast<const uint64_t*>(value);
  return kOk;
}
int cublasLtMatmulPreferenceDestroy(void* preference) { return delete static_cast<Preference*>(preference), kOk; }

// Three suggestions, of which the second cannot run and the third fails when it does.
int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void* preference, int most,
                                   Suggestion* found, int* count) {
  *count = most < 3 ? most : 3;
  for (int i = 0; i < *count; ++i) {
    found[i] = {};
    found[i].algorithm[0] = 100 + i;
    found[i].algorithm[7] = 7;
    found[i].workspace = static_cast<Preference*>(preference)->workspace;
    found[i].state = i == 1 ? kNotSupported : kOk;
  }
  return kOk;
}

int cublasLtMatmul(void*, void* desc, const void* alpha, const void* a, void* a_layout, const void* b, void* b_layout,
                   const void* beta, const void* c, void* c_layout, void* d, void* d_layout, const void* algorithm,
                   void*, size_t bytes, void*) {
  const uint64_t* code = static_cast<const uint64_t*>(algorithm);
  if (code[7] != 7 || bytes != 4096 || c != d || c_layout != d_layout) return kInvalid;
  if (code[0] != 100) return kNotSupported;
  if (*static_cast<const float*>(alpha) != 1 || *static_cast<const float*>(beta) != 0) return kInvalid;
  const Layout &first = *static_cast<Layout*>(a_layout), &second = *static_cast<Layout*>(b_layout);
  const Layout& output = *static_cast<Layout*>(d_layout);
  const bool transposed = static_cast<Desc*>(desc)->transposed == 1;
  const uint64_t inner = transposed ? first.rows : first.columns, outer = transposed ? first.columns : first.rows;
  if (inner != second.rows || outer != output.rows || second.columns != output.columns) return kInvalid;
  gemm(transposed, output.rows, output.columns, inner, a, first.pitch, b, second.pitch, d, output.pitch, first.type);
  return kOk;
}

}  // extern "C"
