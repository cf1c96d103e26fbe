// Loads the plan tables of a folder as an H200 would, for test_plan_table.py: prints each plan that argv names, or the
// error. The kernels of "this build" are those named in the environment variable KERNELS.
#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <exception>
#include <sstream>

#include "runtime/device.h"
#include "runtime/gemm.h"

namespace cudal2 {

const Device& device_properties(int) {
  static const Device h200{"NVIDIA H200", 90, 132, true};
  return h200;
}

const std::vector<const KernelInfo*>& kernels() {
  static std::deque<std::string> names;
  static std::deque<KernelInfo> infos;
  static const std::vector<const KernelInfo*> all = [] {
    std::vector<const KernelInfo*> list;
    std::istringstream text(std::getenv("KERNELS") == nullptr ? "" : std::getenv("KERNELS"));
    for (std::string name; text >> name;) {
      names.push_back(name);
      KernelInfo info{};
      info.name = names.back().c_str();
      info.family = name[0] == 'w' ? "wmma" : "sm90";
      info.dtype = name.find("bf16") == std::string::npos ? DType::f16 : DType::bf16;
      info.layout = name.find("_nn_") == std::string::npos ? Layout::tn : Layout::nn;
      info.min_arch = 75;
      info.max_arch = 999;
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

}  // namespace cudal2

int main(int argc, char** argv) {
  std::setlocale(LC_ALL, "");
  cudal2::set_plan_directory(argv[1]);
  try {
    const cudal2::DeviceStatus status = cudal2::device_status(0);
    std::printf("plans=%d tuned=%d\n", status.plans, status.tuned);
    for (int i = 2; i + 2 < argc; i += 3) {
      const cudal2::Plan* plan = cudal2::find_plan(0, cudal2::DType::f16, cudal2::Layout::tn, std::atoll(argv[i]),
                                                   std::atoll(argv[i + 1]), std::atoll(argv[i + 2]));
      if (plan == nullptr) {
        std::printf("none\n");
      } else {
        std::printf("%s group=%d ctas=%d own=%d us=%.3f\n", plan->kernel->name, plan->knobs.group, plan->knobs.ctas,
                    plan->use_own, static_cast<double>(plan->us));
      }
    }
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
}
