#include "runtime/device.h"

#include <cuda_runtime_api.h>

#include <mutex>
#include <stdexcept>

#include "runtime/gemm.h"

namespace cudal2 {
namespace {

void check(cudaError_t error, int device) {
  if (error == cudaSuccess) return;
  cudaGetLastError();
  throw std::runtime_error("cudal2: CUDA device " + std::to_string(device) + ": " + cudaGetErrorString(error));
}

Device query(int device) {
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, device), device);
  const int arch = properties.major * 10 + properties.minor;
  return {properties.name, arch, properties.multiProcessorCount, static_cast<int>(properties.sharedMemPerBlockOptin),
          compiled_for(arch)};
}

}  // namespace

const Device& device_properties(int device) {
  static Device devices[kMaxDevices];
  static std::once_flag known[kMaxDevices];
  if (device < 0 || device >= kMaxDevices) {
    throw std::runtime_error("cudal2: device " + std::to_string(device) + "; expected 0 to 63");
  }
  std::call_once(known[device], [device] { devices[device] = query(device); });
  return devices[device];
}

void* driver_function(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult status;
  return cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &status) == cudaSuccess ? function
                                                                                                             : nullptr;
}

int current_device() {
  int device = -1;
  cudaGetDevice(&device);
  return device;
}

DeviceScope::DeviceScope(int device) : previous_(current_device()) {
  if (device != previous_) cudaSetDevice(device);
}

DeviceScope::~DeviceScope() {
  if (current_device() != previous_) cudaSetDevice(previous_);
}

}  // namespace cudal2
