// What a product of two tensors comes to: rows, layouts, plans. Sees neither torch nor Python, so that ops.cpp and
// eager.cpp share it.
#pragma once

#include <cstdint>

#include "runtime/gemm.h"

namespace cudal2::ops {

constexpr int64_t kMaxRank = 16;

// A tensor's shape and strides, in elements, borrowed from it.
struct Strided {
  const int64_t* sizes = nullptr;
  const int64_t* strides = nullptr;
  int64_t rank = 0;
};

// A pitch for a matrix of one row, where none is ever used: the least that the kernels accept.
inline int64_t any_pitch(int64_t columns) { return (columns + 7) / 8 * 8; }

// A tensor as rows of its last dimension, one pitch apart.
struct Rows {
  int64_t rows = 1, columns = 0, pitch = 0;
};

// Folds the leading dimensions. False if there is no single pitch, if the inner stride is not 1, or if rows overlap.
inline bool fold(const Strided& tensor, Rows* folded) {
  const int64_t last = tensor.rank - 1;
  if (last < 0 || last >= kMaxRank) return false;
  folded->columns = tensor.sizes[last];
  if (folded->columns != 1 && tensor.strides[last] != 1) return false;
  for (int64_t i = last - 1; i >= 0; --i) {
    if (tensor.sizes[i] == 1) continue;
    if (folded->rows == 1) {
      folded->pitch = tensor.strides[i];
    } else if (tensor.strides[i] != folded->pitch * folded->rows) {
      return false;
    }
    folded->rows *= tensor.sizes[i];
  }
  if (folded->rows == 1) folded->pitch = any_pitch(folded->columns);
  return folded->pitch >= folded->columns;
}

// B as the product sees it, K x N, whichever way it is stored.
struct Operand {
  int64_t k, n, stride_k, stride_n;

  // Of matmul's second factor, K x N, and of linear's weight, N x K; both 2-D.
  static Operand of_matmul(const Strided& b) { return {b.sizes[0], b.sizes[1], b.strides[0], b.strides[1]}; }
  static Operand of_linear(const Strided& weight) {
    return {weight.sizes[1], weight.sizes[0], weight.strides[1], weight.strides[0]};
  }
};

// Sizes and pitch of A into `args`, and C's pitch unless it is there already; false if a @ b is no product of rows.
inline bool describe(const Strided& a, const Operand& b, GemmArgs* args) {
  Rows rows;
  if (!fold(a, &rows) || rows.columns != b.k || rows.rows == 0 || b.k == 0 || b.n == 0) return false;
  args->m = rows.rows;
  args->n = b.n;
  args->k = b.k;
  args->lda = rows.pitch;
  if (args->ldc == 0) args->ldc = b.n;
  return true;
}

// The plan for `args` with B in `layout`, if dispatch runs one of ours and it can run these very tensors.
inline const Plan* usable_plan(GemmArgs* args, Layout layout, int64_t ldb, int device) {
  args->layout = layout;
  args->ldb = ldb;
  const Plan* plan = find_plan(device, args->dtype, layout, args->m, args->n, args->k);
  if (plan == nullptr || !plan->use_own || unsupported(*plan->kernel, *args, device) != nullptr) return nullptr;
  return plan;
}

// usable_plan in the layout that B has, in either if both fit.
inline const Plan* plan_as(DType dtype, const Operand& operand, GemmArgs* args, int device) {
  args->dtype = dtype;
  const Plan* plan = nullptr;
  if (operand.stride_n == 1 || operand.n == 1) {
    plan = usable_plan(args, Layout::nn, operand.k == 1 ? any_pitch(operand.n) : operand.stride_k, device);
  }
  if (plan == nullptr && (operand.stride_k == 1 || operand.k == 1)) {
    plan = usable_plan(args, Layout::tn, operand.n == 1 ? any_pitch(operand.k) : operand.stride_n, device);
  }
  return plan;
}

// Whether a product of this size is one of ours as either layout, if its operands are as the kernel needs them.
inline bool planned(int32_t device, DType dtype, int64_t m, int64_t n, int64_t k) {
  for (const Layout layout : {Layout::nn, Layout::tn}) {
    const Plan* plan = find_plan(device, dtype, layout, m, n, k);
    if (plan != nullptr && plan->use_own) return true;
  }
  return false;
}

// Launches the plan on torch's current stream of `device`. False: there is no memory for the workspace that the launch
// takes; torch, which can free its cache, may go on. Throws std::runtime_error where the launch fails. In ops.cpp.
CUDAL2_API bool run(const Plan& plan, const GemmArgs& args, int device);

}  // namespace cudal2::ops
