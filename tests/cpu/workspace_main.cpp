// Workspaces (csrc/runtime/workspace.cpp) against a CUDA runtime of its own that has streams, captures and graphs but
// no device, for test_workspace.py. Prints each check that fails; the exit code says whether any did.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/workspace.h"

// The runtime ---------------------------------------------------------------------------------------------------------

struct Object {
  void* pointer;
  cudaHostFn_t destroy;
};

struct FakeGraph {
  std::vector<Object> objects;
  ~FakeGraph() {
    for (const Object& object : objects) object.destroy(object.pointer);
  }
};

struct FakeStream {
  unsigned long long id = 0, capture = 0;
  FakeGraph* graph = nullptr;
};

namespace {

thread_local cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
std::mutex lock;
std::set<void*> allocated, temporary;
int allocations = 0;
bool out_of_memory = false, retain_fails = false;
std::atomic<bool> allocated_relaxed{true};
std::function<void()> during_allocation = [] {};

FakeStream* of(cudaStream_t stream) { return reinterpret_cast<FakeStream*>(stream); }
cudaStream_t handle(FakeStream& stream) { return reinterpret_cast<cudaStream_t>(&stream); }

cudaError_t allocate(void** memory, size_t bytes, std::set<void*>* into) {
  if (out_of_memory) return cudaErrorMemoryAllocation;
  *memory = std::malloc(bytes);
  std::memset(*memory, 0xAB, std::min(bytes, size_t{1} << 19));  // where the counters are
  const std::lock_guard<std::mutex> guard(lock);
  ++allocations;
  into->insert(*memory);
  return cudaSuccess;
}

cudaError_t release(void* memory, std::set<void*>* from) {
  const std::lock_guard<std::mutex> guard(lock);
  if (from->erase(memory) != 1) return cudaErrorInvalidValue;
  std::free(memory);
  return cudaSuccess;
}

cudaError_t capture_info(cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id,
                         cudaGraph_t* graph) {
  *status = of(stream)->capture ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  *id = of(stream)->capture;
  *graph = reinterpret_cast<cudaGraph_t>(of(stream)->graph);
  return cudaSuccess;
}

}  // namespace

extern "C" {
cudaError_t CUDARTAPI cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* other) {
  std::swap(mode, *other);
  return cudaSuccess;
}
cudaError_t CUDARTAPI cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = handle(*new FakeStream);
  return cudaSuccess;
}
cudaError_t CUDARTAPI cudaStreamDestroy(cudaStream_t stream) {
  delete of(stream);
  return cudaSuccess;
}
cudaError_t CUDARTAPI cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t CUDARTAPI cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream) {
  if (of(stream)->capture) return cudaErrorStreamCaptureUnsupported;
  std::memset(memory, value, bytes);
  return cudaSuccess;
}
cudaError_t CUDARTAPI cudaMalloc(void** memory, size_t bytes) {
  if (mode != cudaStreamCaptureModeRelaxed) allocated_relaxed = false;
  during_allocation();
  return allocate(memory, bytes, &allocated);
}
cudaError_t CUDARTAPI cudaFree(void* memory) { return release(memory, &allocated); }
cudaError_t CUDARTAPI cudaMallocAsync(void** memory, size_t bytes, cudaStream_t) {
  return allocate(memory, bytes, &temporary);
}
cudaError_t CUDARTAPI cudaFreeAsync(void* memory, cudaStream_t) { return release(memory, &temporary); }
cudaError_t CUDARTAPI cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  unsigned long long id;
  cudaGraph_t graph;
  return capture_info(stream, status, &id, &graph);
}
cudaError_t CUDARTAPI cudaStreamGetId(cudaStream_t stream, unsigned long long* id) {
  cudaStreamCaptureStatus status;
  cudaGraph_t graph;
  capture_info(stream, &status, id, &graph);
  if (status != cudaStreamCaptureStatusNone) return cudaErrorStreamCaptureUnsupported;  // and the capture is lost
  *id = of(stream)->id;
  return cudaSuccess;
}
#if CUDART_VERSION >= 13000
cudaError_t CUDARTAPI cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                               unsigned long long* id, cudaGraph_t* graph, const cudaGraphNode_t**,
                                               const cudaGraphEdgeData**, size_t*) {
  return capture_info(stream, status, id, graph);
}
#else
cudaError_t CUDARTAPI cudaStreamGetCaptureInfo_v2(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                                  unsigned long long* id, cudaGraph_t* graph, const cudaGraphNode_t**,
                                                  size_t*) {
  return capture_info(stream, status, id, graph);
}
#endif
cudaError_t CUDARTAPI cudaUserObjectCreate(cudaUserObject_t* object, void* pointer, cudaHostFn_t destroy, unsigned,
                                           unsigned) {
  *object = reinterpret_cast<cudaUserObject_t>(new Object{pointer, destroy});
  return cudaSuccess;
}
cudaError_t CUDARTAPI cudaUserObjectRelease(cudaUserObject_t object, unsigned) {
  auto* only = reinterpret_cast<Object*>(object);
  only->destroy(only->pointer);
  delete only;
  return cudaSuccess;
}
cudaError_t CUDARTAPI cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t object, unsigned, unsigned) {
  if (retain_fails) return cudaErrorInvalidValue;
  auto* only = reinterpret_cast<Object*>(object);
  reinterpret_cast<FakeGraph*>(graph)->objects.push_back(*only);
  delete only;
  return cudaSuccess;
}
}

// The checks ----------------------------------------------------------------------------------------------------------

namespace {

using cudal2::kMostStreams;
using cudal2::kWorkspaceBytes;
using cudal2::kWorkspaceCounters;
using cudal2::Workspace;
using cudal2::WorkspaceLease;

constexpr int64_t kSmall = 1 << 20;
int failures = 0;

void check(bool condition, const char* what) {
  if (condition) return;
  ++failures;
  std::printf("failed: %s\n", what);
}

// The partial tiles of a launch, written to at both ends; nullptr: it got none.
float* launch(FakeStream& stream, int64_t bytes = kSmall, int device = 0) {
  WorkspaceLease lease;
  Workspace workspace;
  if (lease.take(device, handle(stream), bytes, &workspace) != cudaSuccess) return nullptr;
  for (int i = 0; i < kWorkspaceCounters; ++i) {
    if (workspace.counters[i] != 0) check(false, "a counter is not 0");
  }
  workspace.partials[0] = workspace.partials[bytes / sizeof(float) - 1] = 1;
  return workspace.partials;
}

void eager() {
  FakeStream first{1}, second{2};
  float* const own = launch(first);
  check(own != nullptr && launch(first) == own, "a stream keeps its workspace");
  check(launch(first, kWorkspaceBytes) == own, "whatever the size");
  check(launch(second) != own, "streams share nothing");
  check(launch(first) == own, "also after another stream's launch");
  check(launch(first, kSmall, 1) != own, "devices share nothing");
  FakeStream reused{3};
  first = reused;  // the handle, with another stream's id
  check(launch(first) != own, "a handle's next stream has another workspace");
  float* elsewhere = nullptr;
  FakeStream again{1};
  std::thread([&] { elsewhere = launch(again); }).join();
  check(elsewhere == own, "a stream has one for all threads");
}

void captured() {
  FakeStream stream{10}, side{11};
  float* const eager = launch(stream);
  auto* graph = new FakeGraph;
  stream.graph = side.graph = graph;
  stream.capture = side.capture = 100;
  float* const own = launch(stream);
  check(own != nullptr && own != eager, "a capture shares nothing with its stream's eager launches");
  check(launch(stream) == own, "a stream keeps its workspace within a capture");
  check(launch(side) != own, "streams of one capture share nothing");
  float* const larger = launch(stream, kWorkspaceBytes);
  check(larger != own && launch(stream) == larger, "a larger launch gets a larger workspace");
  stream.capture = 0;
  check(launch(stream) == eager, "eager launches have theirs again");

  FakeGraph* const other = new FakeGraph;
  stream.graph = other;
  stream.capture = 101;
  float* const next = launch(stream);
  check(next != own && next != larger, "captures share nothing");
  const int before = allocations;
  delete graph;  // three come back
  stream.graph = new FakeGraph;
  stream.capture = 102;
  check(launch(stream) != nullptr && allocations == before, "what a graph gives back is used again");
  check(launch(stream) != next, "a live graph keeps its own");
  delete stream.graph;
  delete other;
}

void errors() {
  FakeStream stream{20};
  out_of_memory = true;
  WorkspaceLease lease;
  Workspace workspace;
  check(lease.take(7, handle(stream), kSmall, &workspace) == cudaErrorMemoryAllocation, "out of memory is told");
  stream.graph = new FakeGraph;
  stream.capture = 200;
  check(lease.take(7, handle(stream), kSmall, &workspace) == cudaErrorMemoryAllocation, "in a capture as well");
  out_of_memory = false;
  retain_fails = true;
  check(launch(stream, kSmall, 7) == nullptr, "a graph that keeps nothing");
  retain_fails = false;
  const int before = allocations;
  check(launch(stream, kSmall, 7) != nullptr && allocations == before, "its workspace comes back");
  delete stream.graph;
  stream.capture = 0;
  check(launch(stream, kSmall, 7) != nullptr, "and all is well afterwards");
}

// CUDA may destroy user objects on a thread of its own at any time, and wait for that thread.
void graphs_destroyed_during_an_allocation() {
  FakeStream stream{30}, other{31};
  stream.graph = new FakeGraph;
  stream.capture = 300;
  launch(stream);
  during_allocation = [&] { std::thread([&] { delete std::exchange(stream.graph, nullptr); }).join(); };
  check(launch(other) != nullptr, "a launch beside it");
  during_allocation = [] {};
}

void many_streams() {
  std::vector<FakeStream> streams(3 * kMostStreams);
  std::set<float*> distinct;
  const int device = 3, before = allocations;
  for (size_t i = 0; i < streams.size(); ++i) {
    streams[i].id = 1000 + i;
    float* const own = launch(streams[i], kSmall, device);
    if (i < static_cast<size_t>(kMostStreams)) distinct.insert(own);
  }
  check(distinct.size() == static_cast<size_t>(kMostStreams), "each of the first streams has its own");
  check(allocations - before == 3 * kMostStreams && temporary.empty(), "the others' are freed after the launch");
  WorkspaceLease first, second;
  Workspace a, b;
  first.take(device, handle(streams[80]), kSmall, &a);
  second.take(device, handle(streams[80]), kSmall, &b);
  check(a.partials != b.partials, "theirs overlap nobody's");
  check(launch(streams[0], kSmall, device) != nullptr && allocations - before == 3 * kMostStreams + 2,
        "the first ones keep theirs");
}

void threads() {
  std::vector<std::thread> all;
  std::vector<float*> found(16);
  for (size_t i = 0; i < found.size(); ++i) {
    all.emplace_back([i, &found] {
      FakeStream stream{2000 + i};
      found[i] = launch(stream, kSmall, 4);
      for (unsigned long long round = 1; round < 20; ++round) {
        FakeGraph graph;
        FakeStream capturing{2000 + i, 10000 * round + i, &graph};
        if (launch(capturing, kSmall, 4) == nullptr) found[i] = nullptr;
      }
    });
  }
  for (std::thread& thread : all) thread.join();
  check(std::set<float*>(found.begin(), found.end()).size() == found.size(), "threads share nothing");
}

}  // namespace

int main() {
  eager();
  captured();
  errors();
  graphs_destroyed_during_an_allocation();
  many_streams();
  threads();
  check(allocated_relaxed, "every allocation was made under relaxed capture");
  check(mode == cudaStreamCaptureModeGlobal, "the thread's capture mode is what it was");
  return failures == 0 ? 0 : 1;
}
