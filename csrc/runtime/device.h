// Devices, asked once each, and the driver.
#pragma once

#include <string>

namespace cudal2 {

struct Device {
  std::string name;
  int arch = 0;  // 90 = compute capability 9.0
  int sm_count = 0;
  int max_smem = 0;       // bytes of shared memory that a CTA may use
  bool runnable = false;  // this build has code for it
};

// Throws std::runtime_error if there is no such device.
const Device& device_properties(int device);
constexpr int kMaxDevices = 64;

// A function of the driver, as of CUDA 12.0; nullptr: it has none such. Looked up at run time, so that the library also
// loads where there is no driver.
void* driver_function(const char* name);

}  // namespace cudal2
