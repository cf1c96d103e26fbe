// The torch ops. The ops* files are the only ones that see torch, and only its stable ABI (target 2.10): one build
// serves torch 2.10 on, CPU and CUDA builds, any Python. What lives in libtorch_cuda is looked up at run time, so that
// the library also loads under a CPU-only torch.
//
// matmul_forward and linear_forward, and their _eager twins, are the hot path: they read shapes and strides through the
// C shim, look the plan up, allocate the output and launch. A product without a usable plan goes to torch from here.
// The plainest of eager calls come past them, by eager.cpp; what the two share is in product.h.
// They know nothing of autograd or autocast: cudal2/ops.py decides when to call them, and defines the public ops
// matmul, matmul.out and linear on top.
#include "ops_torch.h"
#include "pdl.h"

namespace cudal2::ops {
namespace {

// How a product is called. forward: whatever the operands. eager: refuses sizes without a plan, so that cudal2/ops.py
// remembers them. acc16: fp16 accumulation is welcome, where there is a plan that has it.
enum class Mode { forward, eager, acc16 };

// Planning ------------------------------------------------------------------------------------------------------------

DType dtype_of(const View& half) { return half.dtype == torch_().f16 ? DType::f16 : DType::bf16; }

// The plan for a @ b, and everything of `args` but the output's and the bias's address; nullptr: torch's. `args->c` and
// `args->ldc` are those of the output if it is there already.
template <Mode mode>
const Plan* plan_product(const View& a, const View& b, const Operand& operand, GemmArgs* args) {
  if (a.device_type != torch_().cuda || !a.is_half() || !a.same_kind(b) || torch_().current_stream == nullptr) {
    return nullptr;
  }
  if (!describe(a, operand, args)) return nullptr;
  args->a = a.data();
  args->b = b.data();
  const DType dtype = dtype_of(a);
  if (mode == Mode::acc16 && dtype == DType::f16) {
    if (const Plan* plan = plan_as(DType::f16acc16, operand, args, a.device)) return plan;
  }
  return plan_as(dtype, operand, args, a.device);
}

// Running -------------------------------------------------------------------------------------------------------------

AtenTensorHandle allocate(const View& like, const int64_t* sizes, int64_t rank) {
  int64_t strides[kMaxRank];
  int64_t stride = 1;
  for (int64_t i = rank - 1; i >= 0; --i) {
    strides[i] = stride;
    stride *= sizes[i] > 1 ? sizes[i] : 1;
  }
  AtenTensorHandle out = nullptr;
  check(aoti_torch_empty_strided(rank, sizes, strides, like.dtype, like.device_type, like.device, &out), "allocation");
  return out;
}

// Contiguous, of a's leading dimensions and `n` columns.
AtenTensorHandle allocate_product(const View& a, int64_t n) {
  int64_t sizes[kMaxRank];
  for (int64_t i = 0; i + 1 < a.rank; ++i) sizes[i] = a.sizes[i];
  sizes[a.rank - 1] = n;
  return allocate(a, sizes, a.rank);
}

// Puts a new tensor with the product into `stack`; false where run() is.
bool run_into_new(const Plan& plan, const View& a, GemmArgs* args, StableIValue* stack) {
  Owned out(allocate_product(a, args->n));
  args->c = mutable_data(out.get());
  if (!run(plan, *args, a.device)) return false;
  stack[0] = out.release();
  return true;
}

// Ops -----------------------------------------------------------------------------------------------------------------
// Boxed by hand, not by TORCH_BOX: no reference counts beyond those that come in.

// torch's matmul, by the shortest way: of two plain matrices straight to the backend, which skips two dispatches.
StableIValue torch_matmul(Owned& a, Owned& b, const View& va, const View& vb) {
  last_path_run = kTorch;
  const bool matrices = va.rank == 2 && vb.rank == 2 && va.sizes[1] == vb.sizes[0] && va.same_kind(vb);
  const bool plain = va.is_half() || va.dtype == torch_().f32;
  if (matrices && plain && va.device_type == torch_().cuda && torch_().mm_out != nullptr) {
    Owned out(allocate_product(va, vb.sizes[1]));
    check(torch_().mm_out(out.get(), a.get(), b.get()), "aten::mm");
    return out.release();
  }
  const int64_t k_dim = vb.rank > 1 ? vb.rank - 2 : 0;
  if (va.rank == 0 || vb.rank == 0 || va.dtype != vb.dtype || va.sizes[va.rank - 1] != vb.sizes[k_dim]) {
    defer_error("aten::matmul");
  }
  StableIValue stack[2] = {a.release(), b.release()};
  check(torch_call_dispatcher("aten::matmul", "", stack, TORCH_ABI_VERSION), "aten::matmul");
  return stack[0];
}

// For Mode::eager: ends the call where no tensors of these sizes have a plan.
void defer_unplanned(const View& a, int64_t n, int64_t k) {
  if (a.rank == 0 || a.sizes[a.rank - 1] != k) return;  // no product at all: torch says so
  bool found = a.is_half() && a.device_type == torch_().cuda && torch_().current_stream != nullptr;
  if (found) {
    int64_t m = 1;
    for (int64_t i = 0; i + 1 < a.rank; ++i) m *= a.sizes[i];
    found = planned(a.device, dtype_of(a), m, n, k);
  }
  if (!found) throw std::runtime_error("cudal2 defers to torch: a product without a plan");
}

// matmul_forward(Tensor a, Tensor b) -> Tensor; matmul_eager and matmul_acc16 alike
template <Mode mode>
void matmul_forward(StableIValue* stack, uint64_t, uint64_t) {
  Owned a(stack[0]), b(stack[1]);
  const View va(a.get()), vb(b.get());
  GemmArgs args;
  const Plan* plan = nullptr;
  if (vb.rank == 2) {
    plan = plan_product<mode>(va, vb, Operand::of_matmul(vb), &args);
    if (mode == Mode::eager && plan == nullptr) defer_unplanned(va, vb.sizes[1], vb.sizes[0]);
  }
  if (plan == nullptr || !run_into_new(*plan, va, &args, stack)) stack[0] = torch_matmul(a, b, va, vb);
}

// linear_forward(Tensor input, Tensor weight, Tensor? bias) -> Tensor; linear_eager and linear_acc16 alike
template <Mode mode>
void linear_forward(StableIValue* stack, uint64_t, uint64_t) {
  Owned input(stack[0]), weight(stack[1]);
  OwnedOptional bias(stack[2]);
  const View vi(input.get()), vw(weight.get());
  GemmArgs args;
  const Plan* plan = nullptr;
  if (vw.rank == 2) {
    plan = plan_product<mode>(vi, vw, Operand::of_linear(vw), &args);
    if (mode == Mode::eager && plan == nullptr) defer_unplanned(vi, vw.sizes[0], vw.sizes[1]);
  }
  if (plan != nullptr && bias.get() != nullptr) {
    const View vb(bias.get());
    const bool fusable =
        vb.rank == 1 && vb.sizes[0] == args.n && (vb.strides[0] == 1 || args.n == 1) && vb.same_kind(vi);
    if (fusable) {
      args.bias = vb.data();
    } else {
      plan = nullptr;
    }
  }
  if (plan != nullptr && run_into_new(*plan, vi, &args, stack)) return;
  last_path_run = kTorch;
  if (vi.rank == 0 || vw.rank == 0 || vi.dtype != vw.dtype || vi.sizes[vi.rank - 1] != vw.sizes[vw.rank - 1]) {
    defer_error("aten::linear");
  }
  StableIValue arguments[3] = {input.release(), weight.release(), bias.release()};
  check(torch_call_dispatcher("aten::linear", "", arguments, TORCH_ABI_VERSION), "aten::linear");
  stack[0] = arguments[0];
}

// Whether `out` has the shape of a @ b, rows that fold to one pitch, and a's dtype and device.
bool fits(const View& out, const View& a, int64_t n, GemmArgs* args) {
  Rows rows;
  if (out.rank != a.rank || !out.same_kind(a) || !fold(out, &rows) || rows.columns != n) return false;
  for (int64_t i = 0; i + 1 < a.rank; ++i) {
    if (out.sizes[i] != a.sizes[i]) return false;
  }
  args->ldc = rows.pitch;
  return true;
}

// matmul_into(Tensor a, Tensor b, Tensor(a!) out) -> bool
// a @ b into `out` and true, or false and nothing done: then it is torch's.
void matmul_into(StableIValue* stack, uint64_t, uint64_t) {
  Owned a(stack[0]), b(stack[1]), out(stack[2]);
  const View va(a.get()), vb(b.get()), vo(out.get());
  GemmArgs args;
  const Plan* plan = nullptr;
  if (vb.rank == 2 && fits(vo, va, vb.sizes[1], &args)) {
    args.c = mutable_data(vo.handle);
    plan = plan_product<Mode::forward>(va, vb, Operand::of_matmul(vb), &args);
  }
  const bool ours = plan != nullptr && !out_overlaps_inputs(args) && run(*plan, args, va.device);
  if (!ours) last_path_run = kTorch;
  stack[0] = boxed(ours);
}

// last_path() -> str. Reading it sets it back to "torch", so that a later call which never came here is not mistaken.
std::string last_path() { return std::exchange(last_path_run, kTorch); }

STABLE_TORCH_LIBRARY(cudal2, library) {
  library.def("matmul(Tensor a, Tensor b) -> Tensor");
  library.def("matmul.out(Tensor a, Tensor b, *, Tensor(a!) out) -> Tensor(a!)");
  library.def("linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor");
  library.def("matmul_forward(Tensor a, Tensor b) -> Tensor");
  library.def("matmul_eager(Tensor a, Tensor b) -> Tensor");
  library.def("linear_eager(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor");
  library.def("matmul_into(Tensor a, Tensor b, Tensor(a!) out) -> bool");
  library.def("linear_forward(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor");
  library.def("matmul_acc16(Tensor a, Tensor b) -> Tensor");
  library.def("linear_acc16(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor");
  library.def("last_path() -> str");
}

STABLE_TORCH_LIBRARY_IMPL(cudal2, CUDA, library) {
  library.impl("matmul_forward", &matmul_forward<Mode::forward>);
  library.impl("matmul_eager", &matmul_forward<Mode::eager>);
  library.impl("matmul_into", &matmul_into);
  library.impl("linear_forward", &linear_forward<Mode::forward>);
  library.impl("linear_eager", &linear_forward<Mode::eager>);
  library.impl("matmul_acc16", &matmul_forward<Mode::acc16>);
  library.impl("linear_acc16", &linear_forward<Mode::acc16>);
}

STABLE_TORCH_LIBRARY_IMPL(cudal2, CompositeExplicitAutograd, library) {
  library.impl("last_path", TORCH_BOX(&last_path));
}

}  // namespace

bool run(const Plan& plan, const GemmArgs& args, int device) {
  return run(*plan.kernel, dispatched(plan.knobs), args, device);
}

}  // namespace cudal2::ops
