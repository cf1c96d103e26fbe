// Launchers of the families that need no tensor map: their parameters are the arguments themselves.
#include <algorithm>

#include "kernels/params.h"
#include "runtime/launch.h"

namespace cudal2 {
namespace {

// What all their parameter structs have in common.
template <class Params>
Params params_of(const GemmArgs& args) {
  Params params = {};
  params.a = args.a;
  params.b = args.b;
  params.c = args.c;
  params.bias = args.bias;
  params.lda = args.lda;
  params.ldb = args.ldb;
  params.ldc = args.ldc;
  params.m = static_cast<int>(args.m);
  params.n = static_cast<int>(args.n);
  params.k = static_cast<int>(args.k);
  return params;
}

// Elements (8, 4, 2 or 1) in which every row of a matrix can be moved.
int width_of(const void* base, int64_t pitch) {
  const auto bits = reinterpret_cast<uintptr_t>(base) | static_cast<uintptr_t>(2 * pitch);
  return bits % 16 == 0 ? 8 : bits % 8 == 0 ? 4 : bits % 4 == 0 ? 2 : 1;
}

}  // namespace

int launch_wmma(const KernelInfo& kernel, const LaunchKnobs& knobs, const GemmArgs& args,
                const LaunchContext& context) {
  auto params = params_of<WmmaParams>(args);
  params.order = tile_order(kernel, knobs, args);
  return launch_grid(kernel, knobs, dim3(params.order.tiles_m * params.order.tiles_n), &params, context.stream);
}

int launch_direct(const KernelInfo& kernel, const LaunchKnobs& knobs, const GemmArgs& args,
                  const LaunchContext& context) {
  auto params = params_of<DirectParams>(args);
  const dim3 grid(static_cast<unsigned>(ceil_div(args.m, kernel.bm)),
                  static_cast<unsigned>(ceil_div(args.n, kernel.bn)));
  return launch_grid(kernel, knobs, grid, &params, context.stream);
}

int launch_multistage(const KernelInfo& kernel, const LaunchKnobs& knobs, const GemmArgs& args,
                      const LaunchContext& context) {
  auto params = params_of<MultistageParams>(args);
  params.width_a = width_of(args.a, args.lda);
  params.width_b = width_of(args.b, args.ldb);
  params.width_c = width_of(args.c, args.ldc);
  params.order = tile_order(kernel, knobs, args);
  params.partials = context.workspace.partials;
  params.counters = context.workspace.counters;
  const int64_t sharing = sharing_ctas(kernel, knobs, args);
  const int64_t ctas = sharing > 0 ? sharing : int64_t{params.order.tiles_m} * params.order.tiles_n;
  return launch_grid(kernel, knobs, dim3(static_cast<unsigned>(ctas)), &params, context.stream);
}

}  // namespace cudal2
