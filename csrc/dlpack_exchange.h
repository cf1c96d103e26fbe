// DLPack's C exchange API (dlpack.h, version 1.2 on), as far as it is used: a producer's table of functions, here
// torch's (torch.Tensor.__dlpack_c_exchange_api__). Written down because torch's own copy is not in all its releases.
#pragma once

#include <cstdint>

namespace cudal2::dlpack {

constexpr uint32_t kMajorVersion = 1;
constexpr int32_t kCuda = 2;                // DLDeviceType::kDLCUDA
constexpr uint8_t kFloat = 2, kBfloat = 4;  // DLDataTypeCode

struct Device {
  int32_t type, id;
};

struct DataType {
  uint8_t code, bits;
  uint16_t lanes;
};

// DLTensor: strides in elements.
struct Tensor {
  void* data;
  Device device;
  int32_t ndim;
  DataType dtype;
  int64_t *shape, *strides;
  uint64_t byte_offset;
};

struct Version {
  uint32_t major, minor;
};

struct ExchangeApi {
  Version version;
  ExchangeApi* previous;
  void (*managed_tensor_allocator)();
  void (*managed_tensor_from_py_object_no_sync)();
  void (*managed_tensor_to_py_object_no_sync)();
  // Fills *view, which borrows from the tensor. 0, or -1 with a Python error.
  int (*dltensor_from_py_object_no_sync)(void* py_object, Tensor* view);
  void (*current_work_stream)();
};

}  // namespace cudal2::dlpack
