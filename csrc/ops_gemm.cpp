// gemm: one named kernel, with the knobs given, for tooling. Whatever it cannot run is an error that says why.
#include <sstream>

#include "ops_torch.h"

namespace cudal2::ops {
namespace {

using torch::stable::Tensor;

std::ostream& operator<<(std::ostream& text, const View& view) {
  for (const int64_t* values : {view.sizes, view.strides}) {
    text << (values == view.sizes ? "shape (" : ", strides (");
    for (int64_t i = 0; i < view.rank; ++i) text << (i == 0 ? "" : ", ") << values[i];
    text << ")";
  }
  return text;
}

template <typename... Parts>
void require(bool condition, const Parts&... parts) {
  if (condition) return;
  std::ostringstream text;
  text << "cudal2.gemm: ";
  (text << ... << parts);
  throw std::runtime_error(text.str());
}

void require_operand(const View& view, const char* name, const View& a) {
  require(view.device_type == torch_().cuda, name, " is not on a CUDA device");
  require(view.same_kind(a), name, " differs from a in dtype or device");
}

// The matrix `name` as rows; any number of rows, unit inner stride.
Rows require_matrix(const View& view, const char* name) {
  Rows rows;
  require(view.rank == 2, name, " has ", view, "; expected 2 dimensions");
  require(fold(view, &rows), name, " has ", view, "; expected row-major, rows that do not overlap");
  return rows;
}

void gemm(const Tensor& a, const Tensor& b, const Tensor& out, const std::optional<Tensor>& bias,
          std::string kernel_name, int64_t group, int64_t raster, int64_t ctas, int64_t split, bool pdl) {
  const View va(a.get()), vb(b.get()), vo(out.get());
  require_operand(va, "a", va);
  require(va.is_half(), "a has another dtype; expected float16 or bfloat16");
  require_operand(vb, "b", va);
  require_operand(vo, "out", va);
  const KernelInfo* kernel = find_kernel(kernel_name);
  require(kernel != nullptr, "kernel='", kernel_name, "' is not compiled into this build (", build_info(), ")");
  require(torch_().current_stream != nullptr, "this torch is not a CUDA build");

  const Rows ra = require_matrix(va, "a");
  const Rows ro = require_matrix(vo, "out");
  require(vb.rank == 2, "b has ", vb, "; expected 2 dimensions");
  require(vb.sizes[0] == ra.columns, "b has ", vb, "; expected ", ra.columns, " rows, a's columns");
  require(ro.rows == ra.rows && ro.columns == vb.sizes[1], "out has ", vo, "; expected ", ra.rows, " x ", vb.sizes[1]);
  const bool nn = kernel->layout == Layout::nn;
  const int inner = nn ? 1 : 0;  // the dimension of b whose stride is 1
  require(vb.sizes[inner] == 1 || vb.strides[inner] == 1, "b has ", vb, "; kernel='", kernel_name, "' expects strides ",
          nn ? "(pitch, 1)" : "(1, pitch)");

  GemmArgs args;
  args.a = va.data();
  args.b = vb.data();
  args.c = mutable_data(vo.handle);
  args.lda = ra.pitch;
  args.ldb = vb.sizes[1 - inner] == 1 ? any_pitch(vb.sizes[inner]) : vb.strides[1 - inner];
  args.ldc = ro.pitch;
  args.m = ra.rows;
  args.n = ro.columns;
  args.k = ra.columns;
  args.dtype = va.dtype == torch_().bf16          ? DType::bf16
               : kernel->dtype == DType::f16acc16 ? DType::f16acc16
                                                  : DType::f16;
  args.layout = kernel->layout;
  if (bias.has_value()) {
    const View view(bias->get());
    require_operand(view, "bias", va);
    require(view.rank == 1 && view.sizes[0] == args.n && (args.n == 1 || view.strides[0] == 1), "bias has ", view,
            "; expected ", args.n, " contiguous elements");
    args.bias = view.data();
  }
  require(group >= 1 && group <= (1 << 20), "group=", group, "; expected 1 or more");
  require(raster == 0 || raster == 1, "raster=", raster, "; expected 0 or 1");
  require(ctas >= 0 && ctas <= (1 << 20), "ctas=", ctas, "; expected 0 or more");
  require(split >= 1 && split <= (1 << 20), "split=", split, "; expected 1 or more");
  const LaunchKnobs knobs{static_cast<int>(group), static_cast<int>(raster), static_cast<int>(ctas),
                          static_cast<int>(split), pdl};
  const char* reason = unsupported(*kernel, args, va.device);
  if (reason == nullptr) reason = unsupported_knobs(*kernel, knobs, args);
  require(reason == nullptr, "kernel='", kernel_name, "' cannot run M=", args.m, " N=", args.n, " K=", args.k, ": ",
          reason == nullptr ? "" : reason);
  require(!out_overlaps_inputs(args), "out shares memory with a or b");
  require(args.bias == nullptr || !overlap(args.c, extent(args.m, args.n, args.ldc), args.bias, args.n),
          "out shares memory with bias");
  require(run(*kernel, knobs, args, va.device), "no memory for the workspace of ", kernel_name);
}

STABLE_TORCH_LIBRARY_FRAGMENT(cudal2, library) {
  library.def(
      "gemm(Tensor a, Tensor b, Tensor(a!) out, Tensor? bias, str kernel, int group, int raster, int ctas, int split, "
      "bool pdl) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(cudal2, CompositeExplicitAutograd, library) { library.impl("gemm", TORCH_BOX(&gemm)); }

}  // namespace
}  // namespace cudal2::ops
