#include "runtime/workspace.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "runtime/device.h"

namespace cudal2 {
namespace {

constexpr size_t kCounterBytes = kWorkspaceCounters * sizeof(int);
constexpr int64_t kLeastBytes = int64_t{256} << 10;

// Whose a workspace is. Ids of streams and captures are unique for the life of the process; a handle is not, and the
// work of a destroyed stream may still run when another stream gets its handle. In a capture nothing runs, and asking a
// capturing stream for its id would end the capture: there the handle serves.
struct Owner {
  int device = -1;
  unsigned long long capture = 0;  // 0: eager launches
  unsigned long long stream = 0;   // id; in a capture, handle

  bool operator<(const Owner& other) const {
    return std::tie(device, capture, stream) < std::tie(other.device, other.capture, other.stream);
  }
  bool operator==(const Owner& other) const {
    return device == other.device && capture == other.capture && stream == other.stream;
  }
};

struct Entry {
  Owner owner;
  int64_t bytes = 0;
  Workspace memory;
};

// Lets this thread allocate while it, or another thread, captures.
class RelaxedCapture {
 public:
  RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

Workspace divide(void* memory) {
  return {reinterpret_cast<float*>(static_cast<char*>(memory) + kCounterBytes), static_cast<int*>(memory)};
}

// Every workspace there is: lent, or free. Its lock is never held during a call of CUDA, which may hold locks of its
// own when it calls give_back().
class Pool {
 public:
  // The owner's workspace, if it has one of `bytes`.
  Entry* lent(const Owner& owner, int64_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = lent_.find(owner);
    return found != lent_.end() && found->second->bytes >= bytes ? found->second : nullptr;
  }

  // Whether another stream may have a workspace for good; counts it if so.
  bool admit_stream(int device) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (streams_[device] == kMostStreams) return false;
    ++streams_[device];
    return true;
  }

  // The smallest free workspace of `bytes` or more, taken out of the pool; nullptr: there is none.
  Entry* take_free(int device, int64_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto best = free_.end();
    for (auto at = free_.begin(); at != free_.end(); ++at) {
      const Entry& entry = **at;
      if (entry.owner.device != device || entry.bytes < bytes) continue;
      if (best == free_.end() || entry.bytes < (*best)->bytes) best = at;
    }
    if (best == free_.end()) return nullptr;
    Entry* entry = *best;
    free_.erase(best);
    return entry;
  }

  void lend(const Owner& owner, Entry* entry) {
    const std::lock_guard<std::mutex> lock(mutex_);
    entry->owner = owner;
    lent_[owner] = entry;
  }

  // For when nothing that used it can still run, or nothing did.
  void give_back(Entry* entry) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = lent_.find(entry->owner);
    if (found != lent_.end() && found->second == entry) lent_.erase(found);
    free_.push_back(entry);
  }

  // Undoes admit_stream(), where no workspace could be had after it.
  void dismiss_stream(int device) {
    const std::lock_guard<std::mutex> lock(mutex_);
    --streams_[device];
  }

 private:
  std::mutex mutex_;
  std::map<Owner, Entry*> lent_;
  std::vector<Entry*> free_;
  int streams_[kMaxDevices] = {};
};

// Never destroyed: graphs may outlive static objects.
Pool& pool() {
  static Pool& only = *new Pool;
  return only;
}

cudaError_t zero_counters(void* memory) {
  cudaStream_t stream = nullptr;  // of our own: none that is captured, and none that others wait for
  cudaError_t error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  if (error != cudaSuccess) return error;
  error = cudaMemsetAsync(memory, 0, kCounterBytes, stream);
  const cudaError_t finished = cudaStreamSynchronize(stream);
  cudaStreamDestroy(stream);
  return error != cudaSuccess ? error : finished;
}

// A workspace that nobody uses, of `bytes` or more: a free one, or a new one.
cudaError_t obtain(int device, int64_t bytes, Entry** entry) {
  *entry = pool().take_free(device, bytes);
  if (*entry != nullptr) return cudaSuccess;
  int64_t size = kLeastBytes;
  while (size < bytes) size *= 2;
  const RelaxedCapture relaxed;
  void* memory = nullptr;
  cudaError_t error = cudaMalloc(&memory, kCounterBytes + size);
  if (error != cudaSuccess) return error;
  error = zero_counters(memory);
  if (error != cudaSuccess) {
    cudaFree(memory);
    return error;
  }
  *entry = new Entry{{device, 0, 0}, size, divide(memory)};
  return cudaSuccess;
}

// For the graph that owns a workspace. Runs on a thread of CUDA's own, and may call nothing of it.
void CUDART_CB give_back(void* entry) { pool().give_back(static_cast<Entry*>(entry)); }

cudaError_t capture_of(cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id,
                       cudaGraph_t* graph) {
#if CUDART_VERSION >= 13000
  return cudaStreamGetCaptureInfo(stream, status, id, graph, nullptr, nullptr, nullptr);
#else
  return cudaStreamGetCaptureInfo_v2(stream, status, id, graph, nullptr, nullptr);
#endif
}

cudaError_t captured_workspace(int device, cudaStream_t stream, int64_t bytes, Workspace* workspace) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  Owner owner{device, 0, reinterpret_cast<uintptr_t>(stream)};
  cudaGraph_t graph = nullptr;
  cudaError_t error = capture_of(stream, &status, &owner.capture, &graph);
  if (error != cudaSuccess) return error;
  if (status != cudaStreamCaptureStatusActive) return cudaErrorStreamCaptureInvalidated;
  Entry* entry = pool().lent(owner, bytes);
  if (entry == nullptr) {
    error = obtain(device, bytes, &entry);
    if (error != cudaSuccess) return error;
    cudaUserObject_t object = nullptr;
    error = cudaUserObjectCreate(&object, entry, give_back, 1, cudaUserObjectNoDestructorSync);
    if (error != cudaSuccess) {
      pool().give_back(entry);
      return error;
    }
    error = cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove);
    if (error != cudaSuccess) {
      cudaUserObjectRelease(object, 1);  // which gives the workspace back
      return error;
    }
    pool().lend(owner, entry);  // the graph lives at least until its capture ends, so this comes before give_back()
  }
  *workspace = entry->memory;
  return cudaSuccess;
}

}  // namespace

cudaError_t WorkspaceLease::take(int device, cudaStream_t stream, int64_t bytes, Workspace* workspace) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  Owner owner;
  owner.device = device;
  cudaError_t error = cudaStreamIsCapturing(stream, &status);
  if (error == cudaSuccess && status != cudaStreamCaptureStatusNone) {
    return captured_workspace(device, stream, bytes, workspace);
  }
  if (error == cudaSuccess) error = cudaStreamGetId(stream, &owner.stream);
  if (error != cudaSuccess) return error;
  thread_local Owner last_owner;
  thread_local Workspace last;
  if (!(last_owner == owner)) {
    Entry* entry = pool().lent(owner, bytes);
    if (entry == nullptr) {
      if (!pool().admit_stream(device)) return take_temporary(stream, bytes, workspace);
      error = obtain(device, kWorkspaceBytes, &entry);
      if (error != cudaSuccess) {
        pool().dismiss_stream(device);
        return error;
      }
      pool().lend(owner, entry);
    }
    last_owner = owner;
    last = entry->memory;
  }
  *workspace = last;
  return cudaSuccess;
}

cudaError_t WorkspaceLease::take_temporary(cudaStream_t stream, int64_t bytes, Workspace* workspace) {
  cudaError_t error = cudaMallocAsync(&temporary_, kCounterBytes + bytes, stream);
  if (error != cudaSuccess) return error;
  stream_ = stream;
  *workspace = divide(temporary_);
  return cudaMemsetAsync(temporary_, 0, kCounterBytes, stream);
}

WorkspaceLease::~WorkspaceLease() {
  if (temporary_ != nullptr) cudaFreeAsync(temporary_, stream_);
}

}  // namespace cudal2
