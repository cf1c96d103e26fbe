// What the ops' files share: torch through its stable ABI, tensors as matrices, and running a kernel on them.
#pragma once

#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "product.h"
#include "runtime/gemm.h"

namespace cudal2::ops {

using torch::stable::detail::to;

// What the last forward op of this thread ran: a kernel's name, or "torch". Tests and `cudal2 demo` read it.
constexpr const char* kTorch = "torch";
inline thread_local const char* last_path_run = kTorch;

// torch ---------------------------------------------------------------------------------------------------------------

// The head of every error that stands for one of torch's: its text does not cross the C shim, so cudal2/ops.py lets
// torch raise it again.
[[noreturn]] inline void defer_error(const char* op) {
  throw std::runtime_error(std::string("cudal2 defers to torch: ") + op + " does not accept these arguments");
}

inline void check(AOTITorchError error, const char* what) {
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

inline const Torch& torch_() {
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
struct View : Strided {
  AtenTensorHandle handle = nullptr;
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

inline void* mutable_data(AtenTensorHandle tensor) {
  void* pointer = nullptr;
  check(torch_get_mutable_data_ptr(tensor, &pointer), "reading a tensor");
  return pointer;
}

inline void* current_stream(int32_t device) {
  void* stream = nullptr;
  check(torch_().current_stream(device, &stream), "reading the current stream");
  return stream;
}

// Running -------------------------------------------------------------------------------------------------------------

// False: there is no memory for the workspace that the launch takes. torch, which can free its cache, may go on.
inline bool run(const KernelInfo& kernel, const LaunchKnobs& knobs, const GemmArgs& args, int device) {
  void* stream = current_stream(device);
  std::optional<DeviceScope> scope;
  if (current_device() != device) scope.emplace(device);
  const char* error = launch(kernel, knobs, args, device, stream);
  if (error != nullptr && std::strcmp(error, "out of memory") == 0) return false;  // as CUDA has it
  if (error != nullptr) throw std::runtime_error(std::string("cudal2: launch of ") + kernel.name + ": " + error);
  last_path_run = kernel.name;
  return true;
}

inline bool overlap(const void* a, int64_t a_elements, const void* b, int64_t b_elements) {
  const auto* first = static_cast<const char*>(a);
  const auto* second = static_cast<const char*>(b);
  return first < second + 2 * b_elements && second < first + 2 * a_elements;
}

// Elements from a matrix's first to past its last.
inline int64_t extent(int64_t rows, int64_t columns, int64_t pitch) { return (rows - 1) * pitch + columns; }

inline bool out_overlaps_inputs(const GemmArgs& args) {
  const bool nn = args.layout == Layout::nn;
  const int64_t c = extent(args.m, args.n, args.ldc);
  const int64_t b = extent(nn ? args.k : args.n, nn ? args.n : args.k, args.ldb);
  return overlap(args.c, c, args.a, extent(args.m, args.k, args.lda)) || overlap(args.c, c, args.b, b);
}

}  // namespace cudal2::ops
