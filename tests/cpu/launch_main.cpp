// Launching (csrc/runtime/launch.cpp) against a CUDA runtime and driver of its own, for test_launch.py. Prints each
// check that fails; the exit code says whether any did.
#include "runtime/launch.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "runtime/device.h"
#include "runtime/tensor_map.h"
#include "runtime/workspace.h"

namespace {

struct Launch {
  bool by_driver;
  const void* function;  // the driver's handle, or the runtime's stub
  unsigned grid, threads, bytes, cluster;
  bool pdl;
  const void* params;
};

std::vector<Launch> launches;
std::vector<cudal2::MatrixView> views;  // of tensor maps asked for
int prepared = 0, device_in_use = 0;
bool has_driver = true, has_handles = true;
CUresult driver_says = CUDA_SUCCESS;
cudaError_t runtime_says = cudaSuccess, preparing_says = cudaSuccess;
int failures = 0;
char handles[2][2];  // of each kernel on each device
const char stubs[2] = {};

void check(bool condition, const char* what) {
  if (condition) return;
  std::printf("%s\n", what);
  ++failures;
}

// Attributes have the same numbers and layout on both sides.
template <class Config>
Launch read(const Config& config, const void* function, bool by_driver, void** params) {
  Launch launch{by_driver, function, 0, 0, 0, 1, false, params[0]};
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    CUlaunchAttribute attribute;
    std::memcpy(&attribute, &config.attrs[i], sizeof attribute);
    if (attribute.id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) launch.cluster = attribute.value.clusterDim.x;
    if (attribute.id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION) {
      launch.pdl = attribute.value.programmaticStreamSerializationAllowed == 1;
    }
  }
  return launch;
}

CUresult launch_by_driver(const CUlaunchConfig* config, CUfunction function, void** params, void**) {
  Launch launch = read(*config, function, true, params);
  launch.grid = config->gridDimX * config->gridDimY * config->gridDimZ;
  launch.threads = config->blockDimX * config->blockDimY * config->blockDimZ;
  launch.bytes = config->sharedMemBytes;
  if (driver_says == CUDA_SUCCESS) launches.push_back(launch);
  return driver_says;
}

}  // namespace

extern "C" {
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function, void** params) {
  Launch launch = read(*config, function, false, params);
  launch.grid = config->gridDim.x * config->gridDim.y * config->gridDim.z;
  launch.threads = config->blockDim.x * config->blockDim.y * config->blockDim.z;
  launch.bytes = static_cast<unsigned>(config->dynamicSmemBytes);
  if (runtime_says == cudaSuccess) launches.push_back(launch);
  return runtime_says;
}
cudaError_t cudaGetFuncBySymbol(cudaFunction_t* function, const void* stub) {
  *function = reinterpret_cast<cudaFunction_t>(&handles[static_cast<const char*>(stub) - stubs][device_in_use]);
  return has_handles ? cudaSuccess : cudaErrorInvalidDeviceFunction;
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return ++prepared, preparing_says; }
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* stub) {
  *attributes = {};
  attributes->ptxVersion = stub == &stubs[0] ? 90 : 80;  // only the first kernel has the waits
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t error) { return error == cudaErrorLaunchFailure ? "launch" : "other"; }
}

namespace cudal2 {
namespace {

const KernelInfo table[] = {
    {"direct", "direct", DType::f16, Layout::nn, 16, 32, 64, 1, 2, 1, 2, 128, 1000, 80, 999, &stubs[0], launch_direct},
    {"plain", "direct", DType::f16, Layout::nn, 16, 32, 64, 1, 1, 1, 1, 64, 0, 80, 999, &stubs[1], launch_direct},
};

}  // namespace

const std::vector<const KernelInfo*>& kernels() {
  static const std::vector<const KernelInfo*> all = {&table[0], &table[1]};
  return all;
}
const Device& device_properties(int) {
  static const Device device;
  return device;
}
void* driver_function(const char* name) {
  if (std::strcmp(name, "cuLaunchKernelEx") != 0 || !has_driver) return nullptr;
  return reinterpret_cast<void*>(&launch_by_driver);
}
CUresult tensor_map(const MatrixView& view, CUtensorMap*) {
  views.push_back(view);
  return CUDA_SUCCESS;
}
cudaError_t WorkspaceLease::take(int, cudaStream_t, int64_t, Workspace*) { return cudaSuccess; }
WorkspaceLease::~WorkspaceLease() = default;

namespace {

const char* run(int kernel, int device = 0, bool pdl = false) {
  GemmArgs args;
  args.m = 64;
  args.n = 64;
  args.k = 64;
  LaunchKnobs knobs;
  knobs.pdl = pdl;
  device_in_use = device;
  launches.clear();
  return launch(table[kernel], knobs, args, device, nullptr);
}

bool is(const Launch& launch, bool by_driver, const void* function, unsigned threads, unsigned bytes, unsigned cluster,
        bool pdl) {
  return launch.by_driver == by_driver && launch.function == function && launch.grid == 8 &&
         launch.threads == threads && launch.bytes == bytes && launch.cluster == cluster && launch.pdl == pdl &&
         launch.params != nullptr;
}

void test_driver() {
  for (int again = 0; again < 2; ++again) {
    for (int device = 0; device < 2; ++device) {
      check(run(0, device) == nullptr && launches.size() == 1, "a launch through the driver");
      check(is(launches[0], true, &handles[0][device], 128, 1000, 4, false), "its function and configuration");
      check(run(1, device) == nullptr && is(launches[0], true, &handles[1][device], 64, 0, 1, false),
            "another kernel's");
    }
  }
  check(prepared == 4, "each kernel is prepared once on each device");
  check(run(0, 0, true) == nullptr && is(launches[0], true, &handles[0][0], 128, 1000, 4, true), "pdl");
  check(run(1, 0, true) == nullptr && !launches[0].pdl, "no pdl for a kernel without the waits");
}

void test_runtime() {
  driver_says = CUDA_ERROR_INVALID_CONTEXT;
  check(run(0, 0, true) == nullptr && launches.size() == 1, "the runtime launches what the driver does not");
  check(is(launches[0], false, &stubs[0], 128, 1000, 4, true), "the same configuration through the runtime");
  runtime_says = cudaErrorLaunchFailure;
  const char* error = run(0);
  check(error != nullptr && std::string(error) == "launch", "the runtime's error");
  driver_says = CUDA_SUCCESS;
  runtime_says = cudaSuccess;
  check(run(0) == nullptr && launches[0].by_driver, "the driver again");
}

// In a thread of its own, which has no handles yet.
void test_without_handles() {
  has_handles = false;
  std::thread([] {
    check(run(1) == nullptr && is(launches[0], false, &stubs[1], 64, 0, 1, false), "no handle");
  }).join();
  has_handles = true;
}

void test_failed_preparation() {
  preparing_says = cudaErrorLaunchFailure;
  for (int again = 0; again < 2; ++again) {
    const char* error = run(0, 2);
    check(error != nullptr && std::string(error) == "launch" && launches.empty(), "a kernel that cannot be prepared");
  }
  preparing_says = cudaSuccess;
}

// Who shares tiles through a workspace, and what of it is too much.
void test_sharing() {
  KernelInfo kernel = table[1];
  kernel.bm = kernel.bn = 128;
  GemmArgs args;
  args.m = args.n = 1024;  // 64 tiles
  args.k = 640;
  LaunchKnobs knobs;
  knobs.ctas = 24;
  check(sharing_ctas(kernel, knobs, args) == 0, "a kernel that does not share");
  kernel.stream_k = kernel.workspace = true;
  check(sharing_ctas(kernel, knobs, args) == 24, "stream-K over all tiles");
  knobs.ctas = 1000;
  check(sharing_ctas(kernel, knobs, args) == 640, "no more CTAs than pairs of a tile and a block");
  kernel.family = "sm90";
  kernel.workspace = false;
  kernel.cluster_m = 2;
  check(sharing_ctas(kernel, knobs, args) == 0, "a grid of all tiles streams none");
  check(unsupported_knobs(kernel, knobs, args) == nullptr, "however many CTAs the knobs allow");
  knobs.ctas = 25;
  check(sharing_ctas(kernel, knobs, args) == 24, "sm90's stream-K, in whole clusters");
  knobs.ctas = 16;
  check(sharing_ctas(kernel, knobs, args) == 0, "whole waves");
  knobs.ctas = 0;
  check(sharing_ctas(kernel, knobs, args) == 0, "no grid to stream over");
  args.m = args.n = 128 * 300;  // 90000 tiles
  knobs.ctas = 132;
  check(sharing_ctas(kernel, knobs, args) == 132, "many tiles");
  check(unsupported_knobs(kernel, knobs, args) == nullptr, "counters are the CTAs', not the tiles'");
  knobs.ctas = 514;
  check(unsupported_knobs(kernel, knobs, args) != nullptr, "more partial tiles than fit");
}

// In which boxes TMA moves the operands of an sm90 kernel.
void test_boxes(Layout layout, int bm, int bn, bool swap, int rows_b, int columns_b, int rows_c, int columns_c) {
  KernelInfo kernel = table[0];
  kernel.bm = bm;
  kernel.bn = bn;
  kernel.bk = 64;
  kernel.cluster_m = 2;
  kernel.cluster_n = 1;
  kernel.split = 1;
  kernel.swap = swap;
  kernel.tma_store = true;
  GemmArgs args;
  args.m = args.n = args.k = 4096;
  args.layout = layout;
  views.clear();
  launches.clear();
  check(launch_sm90(kernel, LaunchKnobs(), args, LaunchContext()) == 0 && launches.size() == 1, "launched");
  check(views.size() == 3, "a map for each operand");
  check(views[0].box_rows == bm && views[0].box_columns == 64, "A, of which each CTA loads its own rows");
  check(views[1].box_rows == rows_b && views[1].box_columns == columns_b, "B, which two CTAs share");
  check(views[2].box_rows == rows_c && views[2].box_columns == columns_c, "C");
}

void test_all_boxes() {
  test_boxes(Layout::tn, 128, 192, false, 96, 64, 16, 64);
  test_boxes(Layout::nn, 128, 192, false, 32, 64, 16, 64);
  test_boxes(Layout::nn, 128, 96, false, 32, 32, 16, 32);
  test_boxes(Layout::nn, 128, 144, false, 32, 64, 16, 16);
  test_boxes(Layout::tn, 96, 64, true, 32, 64, 48, 16);
  test_boxes(Layout::nn, 176, 128, true, 32, 64, 16, 16);
  test_boxes(Layout::nn, 168, 128, true, 32, 64, 56, 16);
  test_boxes(Layout::tn, 32, 64, true, 32, 64, 32, 16);
}

}  // namespace
}  // namespace cudal2

int main(int count, char**) {
  has_driver = count == 1;
  if (has_driver) {
    cudal2::test_driver();
    cudal2::test_runtime();
    cudal2::test_without_handles();
    cudal2::test_failed_preparation();
    cudal2::test_sharing();
    cudal2::test_all_boxes();
  } else {
    check(cudal2::run(0) == nullptr && cudal2::is(launches[0], false, &stubs[0], 128, 1000, 4, false), "no driver");
  }
  return failures == 0 ? 0 : 1;
}
