// The few CUDA driver functions that graph timing needs, resolved from libcuda.so.1 on first use.
//
// Declared here by hand rather than taken from cuda.h (the driver's ABI is fixed), so that the tools compile with the
// host compiler alone, import without a GPU, and need no CUDA runtime of their own: libcudal2.so keeps its own copy
// hidden, and handles of streams and graphs pass freely between the two.
#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace cudal2::driver {

using Result = int;  // CUresult; 0 is success
using Device = int;
using Context = struct CUctx_st*;
using Stream = struct CUstream_st*;
using Event = struct CUevent_st*;
using Graph = struct CUgraph_st*;
using GraphNode = struct CUgraphNode_st*;
using GraphExec = struct CUgraphExec_st*;
using Function = struct CUfunc_st*;
using Kernel = struct CUkern_st*;

constexpr Result kSuccess = 0;
constexpr Result kNotReady = 600;
constexpr unsigned kStreamNonBlocking = 1;
constexpr int kCaptureRelaxed = 2;  // calls that a capture need not record (first-use loading) stay allowed
constexpr int kKernelNode = 0;
constexpr int kMemcpyNode = 1;
constexpr int kMemsetNode = 2;
constexpr int kAttributeLocalBytes = 3;
constexpr int kAttributeRegisters = 4;

struct KernelNodeParams {  // CUDA_KERNEL_NODE_PARAMS_v2
  Function function;
  unsigned grid_x, grid_y, grid_z;
  unsigned block_x, block_y, block_z;
  unsigned shared_bytes;
  void** params;
  void** extra;
  Kernel kernel;  // used where `function` is null
  Context context;
};

struct LaunchAttribute {  // CUlaunchAttribute, of which this uses one kind
  int id;
  int padding;
  union {
    unsigned cluster[3];
    char size[64];
  };
};
constexpr int kClusterDimension = 4;

struct LaunchConfig {  // CUlaunchConfig
  unsigned grid_x, grid_y, grid_z;
  unsigned block_x, block_y, block_z;
  unsigned shared_bytes;
  Stream stream;
  LaunchAttribute* attributes;
  unsigned attribute_count;
};

struct Api {
  Result (*init)(unsigned);
  Result (*get_error_string)(Result, const char**);
  Result (*primary_context_retain)(Context*, Device);
  Result (*context_set_current)(Context);
  Result (*context_synchronize)();
  Result (*stream_create)(Stream*, unsigned);
  Result (*stream_destroy)(Stream);
  Result (*stream_begin_capture)(Stream, int);
  Result (*stream_end_capture)(Stream, Graph*);
  Result (*event_create)(Event*, unsigned);
  Result (*event_destroy)(Event);
  Result (*event_record)(Event, Stream);
  Result (*event_query)(Event);
  Result (*event_elapsed)(float*, Event, Event);
  Result (*graph_instantiate)(GraphExec*, Graph, unsigned long long);
  Result (*graph_upload)(GraphExec, Stream);
  Result (*graph_launch)(GraphExec, Stream);
  Result (*graph_destroy)(Graph);
  Result (*graph_exec_destroy)(GraphExec);
  Result (*graph_nodes)(Graph, GraphNode*, std::size_t*);
  Result (*node_type)(GraphNode, int*);
  Result (*kernel_node_params)(GraphNode, KernelNodeParams*);
  Result (*kernel_function)(Function*, Kernel);
  Result (*function_attribute)(int*, int, Function);
  Result (*occupancy)(int*, Function, int, std::size_t);
  Result (*active_clusters)(int*, Function, const LaunchConfig*);
  Result (*function_name)(const char**, Function);  // null with a driver older than CUDA 12.3
  Result (*kernel_name)(const char**, Kernel);      // likewise
};

// The functions. Throws std::runtime_error where there is no driver, or one older than CUDA 12.
inline const Api& api() {
  static const Api instance = [] {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (!library) throw std::runtime_error("timing needs a GPU: the CUDA driver (libcuda.so.1) is not installed here");
    Api a{};
    auto load = [&](auto& slot, const char* name) {
      void* symbol = dlsym(library, name);
      if (!symbol) throw std::runtime_error(std::string("the CUDA driver is too old: it has no ") + name);
      slot = reinterpret_cast<std::remove_reference_t<decltype(slot)>>(symbol);
    };
    auto load_if_there = [&](auto& slot, const char* name) {
      slot = reinterpret_cast<std::remove_reference_t<decltype(slot)>>(dlsym(library, name));
    };
    load(a.init, "cuInit");
    load(a.get_error_string, "cuGetErrorString");
    load(a.primary_context_retain, "cuDevicePrimaryCtxRetain");
    load(a.context_set_current, "cuCtxSetCurrent");
    load(a.context_synchronize, "cuCtxSynchronize");
    load(a.stream_create, "cuStreamCreate");
    load(a.stream_destroy, "cuStreamDestroy_v2");
    load(a.stream_begin_capture, "cuStreamBeginCapture_v2");
    load(a.stream_end_capture, "cuStreamEndCapture");
    load(a.event_create, "cuEventCreate");
    load(a.event_destroy, "cuEventDestroy_v2");
    load(a.event_record, "cuEventRecord");
    load(a.event_query, "cuEventQuery");
    load(a.event_elapsed, "cuEventElapsedTime");
    load(a.graph_instantiate, "cuGraphInstantiateWithFlags");
    load(a.graph_upload, "cuGraphUpload");
    load(a.graph_launch, "cuGraphLaunch");
    load(a.graph_destroy, "cuGraphDestroy");
    load(a.graph_exec_destroy, "cuGraphExecDestroy");
    load(a.graph_nodes, "cuGraphGetNodes");
    load(a.node_type, "cuGraphNodeGetType");
    load(a.kernel_node_params, "cuGraphKernelNodeGetParams_v2");
    load(a.kernel_function, "cuKernelGetFunction");
    load(a.function_attribute, "cuFuncGetAttribute");
    load(a.occupancy, "cuOccupancyMaxActiveBlocksPerMultiprocessor");
    load(a.active_clusters, "cuOccupancyMaxActiveClusters");
    load_if_there(a.function_name, "cuFuncGetName");
    load_if_there(a.kernel_name, "cuKernelGetName");
    return a;
  }();
  return instance;
}

inline void check(Result result, const char* what) {
  if (result == kSuccess) return;
  const char* text = nullptr;
  api().get_error_string(result, &text);
  throw std::runtime_error(std::string(what) + ": " + (text ? text : "unknown CUDA error") + " (" +
                           std::to_string(result) + ")");
}

}  // namespace cudal2::driver
