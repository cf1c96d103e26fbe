// The torch ops. The only file that sees torch, and only its stable ABI (target 2.10): one build serves torch 2.10 on,
// CPU and CUDA builds, any Python. What lives in libtorch_cuda is looked up at run time, so that the library also loads
// under a CPU-only torch.
//
// matmul_forward and linear_forward, and their _eager twins, are the hot path: they read shapes and strides through the
// C shim, look the plan up, allocate the output and launch. A product without a usable plan goes to torch from here.
// They know nothing of autograd or autocast: cudal2/ops.py decides when to call them, and defines the public ops
// matmul, matmul.out and linear on top.
#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

#include "runtime/gemm.h"

namespace {

using cudal2::DType;
using cudal2::GemmArgs;
using cudal2::KernelInfo;
using cudal2::LaunchKnobs;
using cudal2::Layout;
using cudal2::Plan;
using torch::stable::Tensor;
using torch::stable::detail::to;

// What the last forward op of this thread ran: a kernel's name, or "torch". Tests and `cudal2 demo` read it.
constexpr const char* kTorch = "torch";
thread_local const char* last_path_run = kTorch;

// torch ---------------------------------------------------------------------------------------------------------------

// The head of every error that stands for one of torch's: its text does not cross the C shim, so cudal2/ops.py lets
// torch raise it again.
[[noreturn]] void defer_error(const char* op) {
  throw std::runtime_error(std::string("cudal2 defers to torch: ") + op + " does not accept these arguments");
}

void check(AOTITorchError error, const char* what) {
  if (error != AOTI_TORCH_SUCCESS) throw std::runtime_error(std::string("cudal2 defers to torch: ") + what + " failed");
}

struct Torch {
  using CurrentStream = AOTITorchError (*)(int32_t device, void** stream);
  using MatmulOut = AOTITorchError (*)(AtenTensorHandle out, AtenTensorHandle a, AtenTensorHandle b);

  const int32_t cuda = aoti_torch_device_type_cuda();
  const int32_t f16 = aoti_torch_dtype_float16();
  const int32_t bf16 = aoti_torch_dtype_bfloat16();
  const int32_t f32 = aoti_torch_dtype_float32();
  CurrentStream current_stream = nullptr;  // nullptr: not a CUDA build
  MatmulOut mm_out = nullptr;

  Torch() {
    void* library = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
    if (library == nullptr) return;
    current_stream = reinterpret_cast<CurrentStream>(dlsym(library, "aoti_torch_get_current_cuda_stream"));
    mm_out = reinterpret_cast<MatmulOut>(dlsym(library, "aoti_torch_cuda_mm_out"));
  }
};

const Torch& torch_() {
  static const Torch found;
  return found;
}

template <typename T>
StableIValue boxed(T value) {
  return torch::stable::detail::from(value);
}

// A tensor handle that this call owns.
class Owned {
 public:
  explicit Owned(StableIValue value) : handle_(to<AtenTensorHandle>(value)) {}
  explicit Owned(AtenTensorHandle handle) : handle_(handle) {}
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  ~Owned() {
    if (handle_ != nullptr) aoti_torch_delete_tensor_object(handle_);
  }
  AtenTensorHandle get() const { return handle_; }
  StableIValue release() { return boxed(std::exchange(handle_, nullptr)); }

 private:
  AtenTensorHandle handle_;
};

// An argument of schema type Tensor?: nullptr, or a heap cell that holds a handle; this call owns both.
class OwnedOptional {
 public:
  explicit OwnedOptional(StableIValue value) : cell_(to<StableIValue*>(value)) {}
  OwnedOptional(const OwnedOptional&) = delete;
  OwnedOptional& operator=(const OwnedOptional&) = delete;
  ~OwnedOptional() {
    if (cell_ == nullptr) return;
    aoti_torch_delete_tensor_object(get());
    delete cell_;
  }
  AtenTensorHandle get() const { return cell_ == nullptr ? nullptr : to<AtenTensorHandle>(*cell_); }
  StableIValue release() { return boxed(std::exchange(cell_, nullptr)); }

 private:
  StableIValue* cell_;
};

// A tensor's metadata, borrowed from it.
struct View {
  AtenTensorHandle handle = nullptr;
  const int64_t* sizes = nullptr;
  const int64_t* strides = nullptr;
  int64_t rank = 0;
  int32_t dtype = 0, device_type = 0, device = 0;

  explicit View(AtenTensorHandle tensor) : handle(tensor) {
    check(aoti_torch_get_dim(tensor, &rank), "reading a tensor");
    int64_t* values = nullptr;
    check(aoti_torch_get_sizes(tensor, &values), "reading a tensor");
    sizes = values;
    check(aoti_torch_get_strides(tensor, &values), "reading a tensor");
    strides = values;
    check(aoti_torch_get_dtype(tensor, &dtype), "reading a tensor");
    check(aoti_torch_get_device_type(tensor, &device_type), "reading a tensor");
    check(aoti_torch_get_device_index(tensor, &device), "reading a tensor");
  }
  bool same_kind(const View& other) const {
    return dtype == other.dtype && device_type == other.device_type && device == other.device;
  }
  bool is_half() const { return dtype == torch_().f16 || dtype == torch_().bf16; }
  const void* data() const {
    const void* pointer = nullptr;
    check(torch_get_const_data_ptr(handle, &pointer), "reading a tensor");
    return pointer;
  }
};

void* mutable_data(AtenTensorHandle tensor) {
  void* pointer = nullptr;
  check(torch_get_mutable_data_ptr(tensor, &pointer), "reading a tensor");
  return pointer;
}

void* current_stream(int32_t device) {
  void* stream = nullptr;
  check(torch_().current_stream(device, &stream), "reading the current stream");
  return stream;
}

// Layouts -------------------------------------------------------------------------------------------------------------

constexpr int64_t kMaxRank = 16;

// A pitch for a matrix of one row, where none is ever used: the least that the kernels accept.
int64_t any_pitch(int64_t columns) { return (columns + 7) / 8 * 8; }

// A tensor as rows of its last dimension, one pitch apart.
struct Rows {
  int64_t rows = 1, columns = 0, pitch = 0;
};

// Folds the leading dimensions. False if there is no single pitch, if the inner stride is not 1, or if rows overlap.
bool fold(const View& tensor, Rows* folded) {
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
};

// The plan for `args` with B in `layout`, if dispatch runs one of ours and it can run these very tensors.
const Plan* usable_plan(GemmArgs* args, Layout layout, int64_t ldb, int device) {
  args->layout = layout;
  args->ldb = ldb;
  const Plan* plan = cudal2::find_plan(device, args->dtype, layout, args->m, args->n, args->k);
  if (plan == nullptr || !plan->use_own || cudal2::unsupported(*plan->kernel, *args, device) != nullptr) return nullptr;
  return plan;
}

// The plan for a @ b, and everything of `args` but the output's and the bias's address; nullptr: torch's. `args->c` and
// `args->ldc` are those of the output if it is there already.
const Plan* plan_product(const View& a, const View& b, const Operand& operand, GemmArgs* args) {
  if (a.device_type != torch_().cuda || !a.is_half() || !a.same_kind(b) || torch_().current_stream == nullptr) {
    return nullptr;
  }
  Rows rows;
  if (!fold(a, &rows) || rows.columns != operand.k || rows.rows == 0 || operand.k == 0 || operand.n == 0)
    return nullptr;
  args->a = a.data();
  args->b = b.data();
  args->m = rows.rows;
  args->n = operand.n;
  args->k = operand.k;
  args->lda = rows.pitch;
  args->dtype = a.dtype == torch_().f16 ? DType::f16 : DType::bf16;
  if (args->ldc == 0) args->ldc = operand.n;
  const Plan* plan = nullptr;
  if (operand.stride_n == 1 || operand.n == 1) {
    plan = usable_plan(args, Layout::nn, operand.k == 1 ? any_pitch(operand.n) : operand.stride_k, a.device);
  }
  if (plan == nullptr && (operand.stride_k == 1 || operand.k == 1)) {
    plan = usable_plan(args, Layout::tn, operand.n == 1 ? any_pitch(operand.k) : operand.stride_n, a.device);
  }
  return plan;
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

void run(const KernelInfo& kernel, const LaunchKnobs& knobs, const GemmArgs& args, int device) {
  void* stream = current_stream(device);
  std::optional<cudal2::DeviceScope> scope;
  if (cudal2::current_device() != device) scope.emplace(device);
  const char* error = cudal2::launch(kernel, knobs, args, device, stream);
  if (error != nullptr) throw std::runtime_error(std::string("cudal2: launch of ") + kernel.name + ": " + error);
  last_path_run = kernel.name;
}

AtenTensorHandle run_into_new(const Plan& plan, const View& a, GemmArgs* args) {
  Owned out(allocate_product(a, args->n));
  args->c = mutable_data(out.get());
  run(*plan.kernel, plan.knobs, *args, a.device);
  return to<AtenTensorHandle>(out.release());
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

// Whether a product of this size is one of ours as either layout, if its operands are as the kernel needs them.
bool planned(int32_t device, DType dtype, int64_t m, int64_t n, int64_t k) {
  for (const Layout layout : {Layout::nn, Layout::tn}) {
    const Plan* plan = cudal2::find_plan(device, dtype, layout, m, n, k);
    if (plan != nullptr && plan->use_own) return true;
  }
  return false;
}

// For the *_eager ops: ends the call where no tensors of these sizes have a plan, so that cudal2/ops.py remembers it.
void defer_unplanned(const View& a, int64_t n, int64_t k) {
  if (a.rank == 0 || a.sizes[a.rank - 1] != k) return;  // no product at all: torch says so
  bool found = a.is_half() && a.device_type == torch_().cuda && torch_().current_stream != nullptr;
  if (found) {
    int64_t m = 1;
    for (int64_t i = 0; i + 1 < a.rank; ++i) m *= a.sizes[i];
    found = planned(a.device, a.dtype == torch_().f16 ? DType::f16 : DType::bf16, m, n, k);
  }
  if (!found) throw std::runtime_error("cudal2 defers to torch: a product without a plan");
}

// matmul_forward(Tensor a, Tensor b) -> Tensor; matmul_eager, with `eager`, refuses sizes without a plan
template <bool eager>
void matmul_forward(StableIValue* stack, uint64_t, uint64_t) {
  Owned a(stack[0]), b(stack[1]);
  const View va(a.get()), vb(b.get());
  GemmArgs args;
  const Plan* plan = nullptr;
  if (vb.rank == 2) {
    plan = plan_product(va, vb, {vb.sizes[0], vb.sizes[1], vb.strides[0], vb.strides[1]}, &args);
    if (eager && plan == nullptr) defer_unplanned(va, vb.sizes[1], vb.sizes[0]);
  }
  stack[0] = plan != nullptr ? boxed(run_into_new(*plan, va, &args)) : torch_matmul(a, b, va, vb);
}

// linear_forward(Tensor input, Tensor weight, Tensor? bias) -> Tensor; linear_eager as matmul_eager
template <bool eager>
void linear_forward(StableIValue* stack, uint64_t, uint64_t) {
  Owned input(stack[0]), weight(stack[1]);
  OwnedOptional bias(stack[2]);
  const View vi(input.get()), vw(weight.get());
  GemmArgs args;
  const Plan* plan = nullptr;
  if (vw.rank == 2) {
    plan = plan_product(vi, vw, {vw.sizes[1], vw.sizes[0], vw.strides[1], vw.strides[0]}, &args);
    if (eager && plan == nullptr) defer_unplanned(vi, vw.sizes[0], vw.sizes[1]);
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
  if (plan != nullptr) {
    stack[0] = boxed(run_into_new(*plan, vi, &args));
    return;
  }
  last_path_run = kTorch;
  if (vi.rank == 0 || vw.rank == 0 || vi.dtype != vw.dtype || vi.sizes[vi.rank - 1] != vw.sizes[vw.rank - 1]) {
    defer_error("aten::linear");
  }
  StableIValue arguments[3] = {input.release(), weight.release(), bias.release()};
  check(torch_call_dispatcher("aten::linear", "", arguments, TORCH_ABI_VERSION), "aten::linear");
  stack[0] = arguments[0];
}

bool overlap(const void* a, int64_t a_elements, const void* b, int64_t b_elements) {
  const auto* first = static_cast<const char*>(a);
  const auto* second = static_cast<const char*>(b);
  return first < second + 2 * b_elements && second < first + 2 * a_elements;
}

// Elements from a matrix's first to past its last.
int64_t extent(int64_t rows, int64_t columns, int64_t pitch) { return (rows - 1) * pitch + columns; }

bool out_overlaps_inputs(const GemmArgs& args) {
  const bool nn = args.layout == Layout::nn;
  const int64_t c = extent(args.m, args.n, args.ldc);
  const int64_t b = extent(nn ? args.k : args.n, nn ? args.n : args.k, args.ldb);
  return overlap(args.c, c, args.a, extent(args.m, args.k, args.lda)) || overlap(args.c, c, args.b, b);
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
    plan = plan_product(va, vb, {vb.sizes[0], vb.sizes[1], vb.strides[0], vb.strides[1]}, &args);
  }
  const bool ours = plan != nullptr && !out_overlaps_inputs(args);
  if (ours) run(*plan->kernel, plan->knobs, args, va.device);
  if (!ours) last_path_run = kTorch;
  stack[0] = boxed(ours);
}

// gemm: one named kernel, for tooling ---------------------------------------------------------------------------------

std::ostream& operator<<(std::ostream& text, const View& view) {
  for (const int64_t* values : {view.sizes, view.strides}) {
    text << (values == view.sizes ? "shape (" : ", strides (");
    for (int64_t i = 0; i < view.rank; ++i) text << (i == 0 ? "" : ", ") << values[i];
    text << ")";
  }
  return text;
}

template <typename... Parts>
void require(bool condition, const Parts&... parts) {
  if (condition) return;
  std::ostringstream text;
  text << "cudal2.gemm: ";
  (text << ... << parts);
  throw std::runtime_error(text.str());
}

void require_operand(const View& view, const char* name, const View& a) {
  require(view.device_type == torch_().cuda, name, " is not on a CUDA device");
  require(view.same_kind(a), name, " differs from a in dtype or device");
}

// The matrix `name` as rows; any number of rows, unit inner stride.
Rows require_matrix(const View& view, const char* name) {
  Rows rows;
  require(view.rank == 2, name, " has ", view, "; expected 2 dimensions");
  require(fold(view, &rows), name, " has ", view, "; expected row-major, rows that do not overlap");
  return rows;
}

void gemm(const Tensor& a, const Tensor& b, const Tensor& out, const std::optional<Tensor>& bias,
          std::string kernel_name, int64_t group, int64_t raster, int64_t ctas, bool pdl) {
  const View va(a.get()), vb(b.get()), vo(out.get());
  require_operand(va, "a", va);
  require(va.is_half(), "a has another dtype; expected float16 or bfloat16");
  require_operand(vb, "b", va);
  require_operand(vo, "out", va);
  const KernelInfo* kernel = cudal2::find_kernel(kernel_name);
  require(kernel != nullptr, "kernel='", kernel_name, "' is not compiled into this build (", cudal2::build_info(), ")");
  require(torch_().current_stream != nullptr, "this torch is not a CUDA build");

  const Rows ra = require_matrix(va, "a");
  const Rows ro = require_matrix(vo, "out");
  require(vb.rank == 2, "b has ", vb, "; expected 2 dimensions");
  require(vb.sizes[0] == ra.columns, "b has ", vb, "; expected ", ra.columns, " rows, a's columns");
  require(ro.rows == ra.rows && ro.columns == vb.sizes[1], "out has ", vo, "; expected ", ra.rows, " x ", vb.sizes[1]);
  const bool nn = kernel->layout == Layout::nn;
  const int inner = nn ? 1 : 0;  // the dimension of b whose stride is 1
  require(vb.sizes[inner] == 1 || vb.strides[inner] == 1, "b has ", vb, "; kernel='", kernel_name, "' expects strides ",
          nn ? "(pitch, 1)" : "(1, pitch)");

  GemmArgs args;
  args.a = va.data();
  args.b = vb.data();
  args.c = mutable_data(vo.handle);
  args.lda = ra.pitch;
  args.ldb = vb.sizes[1 - inner] == 1 ? any_pitch(vb.sizes[inner]) : vb.strides[1 - inner];
  args.ldc = ro.pitch;
  args.m = ra.rows;
  args.n = ro.columns;
  args.k = ra.columns;
  args.dtype = va.dtype == torch_().f16 ? DType::f16 : DType::bf16;
  args.layout = kernel->layout;
  if (bias.has_value()) {
    const View view(bias->get());
    require_operand(view, "bias", va);
    require(view.rank == 1 && view.sizes[0] == args.n && (args.n == 1 || view.strides[0] == 1), "bias has ", view,
            "; expected ", args.n, " contiguous elements");
    args.bias = view.data();
  }
  require(group >= 1 && group <= (1 << 20), "group=", group, "; expected 1 or more");
  require(raster == 0 || raster == 1, "raster=", raster, "; expected 0 or 1");
  require(ctas >= 0 && ctas <= (1 << 20), "ctas=", ctas, "; expected 0 or more");
  const char* reason = cudal2::unsupported(*kernel, args, va.device);
  require(reason == nullptr, "kernel='", kernel_name, "' cannot run M=", args.m, " N=", args.n, " K=", args.k, ": ",
          reason == nullptr ? "" : reason);
  require(!out_overlaps_inputs(args), "out shares memory with a or b");
  run(*kernel, {static_cast<int>(group), static_cast<int>(raster), static_cast<int>(ctas), pdl}, args, va.device);
}

// last_path() -> str. Reading it sets it back to "torch", so that a later call which never came here is not mistaken.
std::string last_path() { return std::exchange(last_path_run, kTorch); }

}  // namespace

STABLE_TORCH_LIBRARY(cudal2, library) {
  library.def("matmul(Tensor a, Tensor b) -> Tensor");
  library.def("matmul.out(Tensor a, Tensor b, *, Tensor(a!) out) -> Tensor(a!)");
  library.def("linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor");
  library.def("matmul_forward(Tensor a, Tensor b) -> Tensor");
  library.def("matmul_eager(Tensor a, Tensor b) -> Tensor");
  library.def("linear_eager(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor");
  library.def("matmul_into(Tensor a, Tensor b, Tensor(a!) out) -> bool");
  library.def("linear_forward(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor");
  library.def(
      "gemm(Tensor a, Tensor b, Tensor(a!) out, Tensor? bias, str kernel, int group, int raster, int ctas, bool pdl) "
      "-> ()");
  library.def("last_path() -> str");
}

STABLE_TORCH_LIBRARY_IMPL(cudal2, CUDA, library) {
  library.impl("matmul_forward", &matmul_forward<false>);
  library.impl("matmul_eager", &matmul_forward<true>);
  library.impl("matmul_into", &matmul_into);
  library.impl("linear_forward", &linear_forward<false>);
  library.impl("linear_eager", &linear_forward<true>);
}

STABLE_TORCH_LIBRARY_IMPL(cudal2, CompositeExplicitAutograd, library) {
  library.impl("gemm", TORCH_BOX(&gemm));
  library.impl("last_path", TORCH_BOX(&last_path));
}
