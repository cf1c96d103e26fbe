// Loads the plan tables of a folder as a device would, for test_plan_table.py: prints each plan that argv names, or the
// error. Environment variables: the kernels of "this build" are those named in KERNELS; the device is an H200, unless
// GPU, ARCH and SMS say otherwise; plans are looked up for DTYPE (f16).
#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <exception>
#include <sstream>

#include "runtime/device.h"
#include "runtime/gemm.h"

namespace cudal2 {

const char* setting(const char* name, const char* usual) {
  const char* value = std::getenv(name);
  return value == nullptr ? usual : value;
}

const Device& device_properties(int) {
  static const Device device{setting("GPU", "NVIDIA H200"), std::atoi(setting("ARCH", "90")),
                             std::atoi(setting("SMS", "132")), 227 << 10, true};
  return device;
}

const std::vector<const KernelInfo*>& kernels() {
  static std::deque<std::string> names;
  static std::deque<KernelInfo> infos;
  static const std::vector<const KernelInfo*> all = [] {
    std::vector<const KernelInfo*> list;
    std::istringstream text(setting("KERNELS", ""));
    for (std::string name; text >> name;) {
      names.push_back(name);
      KernelInfo info{};
      info.name = names.back().c_str();
      std::istringstream parts(name);
      std::string dtype;
      std::getline(parts, names.emplace_back(), '_');
      info.family = names.back().c_str();
      std::getline(parts, dtype, '_');
      parse_dtype(dtype, &info.dtype);
      info.layout = name.find("_nn_") == std::string::npos ? Layout::tn : Layout::nn;
      info.min_arch = 75;
      info.max_arch = 999;
      const bool both = std::getenv("STREAM_K") != nullptr;
      info.stream_k = both || name.find("_sk") != std::string::npos;
      info.workspace = both || (info.stream_k && name.find("sm90") != 0) || name.find("_ws") != std::string::npos;
      infos.push_back(info);
      list.push_back(&infos.back());
    }
    return list;
  }();
  return all;
}

const KernelInfo* find_kernel(const std::string& name) {
  for (const KernelInfo* kernel : kernels()) {
    if (name == kernel->name) return kernel;
  }
  return nullptr;
}

const char* unsupported_knobs(const KernelInfo& kernel, const LaunchKnobs& knobs, const GemmArgs&) {
  return knobs.split > 1 && !kernel.workspace ? "split: this kernel has no workspace" : nullptr;
}

}  // namespace cudal2

int main(int argc, char** argv) {
  std::setlocale(LC_ALL, "");
  if (*argv[1] != '\0') cudal2::set_plan_directory(argv[1]);
  try {
    const cudal2::DeviceStatus status = cudal2::device_status(0);
    std::printf("plans=%d tuned=%d rules=%d\n", status.plans, status.tuned, status.rules);
    std::fprintf(stderr, "table_gpu=%s\n", status.table_gpu.c_str());
    for (int i = 2; i + 2 < argc; i += 3) {
      cudal2::DType dtype = cudal2::DType::f16;
      cudal2::parse_dtype(cudal2::setting("DTYPE", "f16"), &dtype);
      const cudal2::Plan* plan = cudal2::find_plan(0, dtype, cudal2::Layout::tn, std::atoll(argv[i]),
                                                   std::atoll(argv[i + 1]), std::atoll(argv[i + 2]));
      if (plan == nullptr) {
        std::printf("none\n");
      } else {
        std::printf("%s group=%d ctas=%d split=%d own=%d us=%.3f\n", plan->kernel->name, plan->knobs.group,
                    plan->knobs.ctas, plan->knobs.split, plan->use_own, static_cast<double>(plan->us));
      }
    }
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
}
