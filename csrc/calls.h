// Prepared calls: GEMMs whose arguments are fixed, so that queueing one costs what it costs a user of the library in C.
// OwnCall launches a compiled kernel; cuBLAS's and cuBLASLt's calls stand in cublas.h. The wall-clock modes of the
// benchmarks time them as they time torch: through Python with one cheap call, or (Timer.wall) from C altogether.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>

#include "runtime/gemm.h"

namespace cudal2 {

class Call {
 public:
  explicit Call(void* stream) : stream_(stream) {}
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  virtual ~Call() = default;

  // Queues one GEMM on the stream that the call was prepared for. Throws std::runtime_error where that fails.
  virtual void queue() = 0;

 protected:
  void* const stream_;  // a CUstream; null is the default stream
};

using CallPtr = std::shared_ptr<Call>;

class OwnCall : public Call {
 public:
  OwnCall(const KernelInfo& kernel, const LaunchKnobs& knobs, const GemmArgs& args, int device, void* stream)
      : Call(stream), kernel_(kernel), knobs_(knobs), args_(args), device_(device) {}

  void queue() override {
    if (const char* error = launch(kernel_, knobs_, args_, device_, stream_)) {
      throw std::runtime_error(std::string(kernel_.name) + ": " + error);
    }
  }

 private:
  const KernelInfo& kernel_;
  const LaunchKnobs knobs_;
  const GemmArgs args_;
  const int device_;
};

}  // namespace cudal2
