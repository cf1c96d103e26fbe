// Scratch memory for kernels whose CTAs share tiles (split-K, stream-K). Launches that may run at once never share it:
//
// - an eager launch has the workspace of its stream, which lives as long as the process. The first kMostStreams streams
//   of a device have one; a launch on any other allocates and frees its own, in stream order.
// - a launch that is captured has one of its (capture, stream), because the graph runs later, on whatever stream and
//   beside whatever eager work. The graph owns it, its executable graphs and copies too, and the last of them gives it
//   back for reuse. (Two executable graphs made of one captured graph share it as they share their outputs: they must
//   not run at once.)
//
// Within a stream, launches follow each other; under programmatic dependent launch it is griddepcontrol.wait that keeps
// them apart (see Workspace).
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "runtime/gemm.h"

namespace cudal2 {

constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;  // of partial tiles, at most
constexpr int kWorkspaceCounters = 65536;
constexpr int kMostStreams = 32;  // per device; torch's own pool has as many of each priority

// The workspace of one launch. It must outlive the call that queues the kernel, no longer.
class WorkspaceLease {
 public:
  WorkspaceLease() = default;
  ~WorkspaceLease();
  WorkspaceLease(const WorkspaceLease&) = delete;
  WorkspaceLease& operator=(const WorkspaceLease&) = delete;

  // A workspace with `bytes` (at most kWorkspaceBytes) of partial tiles and kWorkspaceCounters counters, all 0, for the
  // next launch on `stream` of `device`, which is current.
  cudaError_t take(int device, cudaStream_t stream, int64_t bytes, Workspace* workspace);

 private:
  cudaError_t take_temporary(cudaStream_t stream, int64_t bytes, Workspace* workspace);

  void* temporary_ = nullptr;  // to be freed on stream_
  cudaStream_t stream_ = nullptr;
};

}  // namespace cudal2
