// cudal2._tools: what tooling needs from the native side and torch ops do not offer: the kernel registry, plans, what a
// launch occupies, times by CUDA graph and by the wall clock (timer.h), and the cuBLAS baselines (cublas.h). Imports
// without a GPU; cudal2/tools.py is its Python face.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <string>

#include "calls.h"
#include "cublas.h"
#include "runtime/gemm.h"
#include "timer.h"

namespace cudal2 {
namespace {

// Registry -----------------------------------------------------------------------------------------------------------

py::dict describe(const KernelInfo& k) {
  py::dict d;
  d["name"] = k.name;
  d["family"] = k.family;
  d["dtype"] = name_of(k.dtype);
  d["layout"] = k.layout == Layout::nn ? "nn" : "tn";
  d["bm"] = k.bm;
  d["bn"] = k.bn;
  d["bk"] = k.bk;
  d["stages"] = k.stages;
  d["cluster_m"] = k.cluster_m;
  d["cluster_n"] = k.cluster_n;
  d["split"] = k.split;
  d["threads"] = k.threads;
  d["smem_bytes"] = k.smem_bytes;
  d["min_arch"] = k.min_arch;
  d["max_arch"] = k.max_arch;
  d["vector"] = k.vector;
  d["k_multiple"] = k.k_multiple;
  d["stream_k"] = k.stream_k;
  d["workspace"] = k.workspace;
  return d;
}

DType dtype_named(const std::string& name) {
  DType dtype;
  if (parse_dtype(name, &dtype)) return dtype;
  throw py::value_error("dtype='" + name + "'; expected f16, bf16 or f16acc16");
}

Layout layout_named(const std::string& name) {
  if (name == "nn") return Layout::nn;
  if (name == "tn") return Layout::tn;
  throw py::value_error("layout='" + name + "'; expected nn or tn");
}

py::object plan_of(int device, const std::string& dtype, const std::string& layout, int64_t m, int64_t n, int64_t k) {
  const Plan* plan = find_plan(device, dtype_named(dtype), layout_named(layout), m, n, k);
  if (!plan) return py::none();
  py::dict d;
  d["kernel"] = plan->kernel ? py::object(py::str(plan->kernel->name)) : py::none();
  d["group"] = plan->knobs.group;
  d["raster"] = plan->knobs.raster;
  d["ctas"] = plan->knobs.ctas;
  d["split"] = plan->knobs.split;
  d["pdl"] = plan->knobs.pdl;
  d["use_own"] = plan->use_own;
  d["us"] = plan->us;
  d["torch_us"] = plan->torch_us;
  return d;
}

py::dict status_of(int device) {
  const DeviceStatus status = device_status(device);
  py::dict d;
  d["gpu"] = status.gpu;
  d["arch"] = status.arch;
  d["sm_count"] = status.sm_count;
  d["table"] = status.table;
  d["table_gpu"] = status.table_gpu;
  d["tuned"] = status.tuned;
  d["rules"] = status.rules;
  d["plans"] = status.plans;
  return d;
}

// Module --------------------------------------------------------------------------------------------------------------

GemmArgs make_gemm(uintptr_t a, uintptr_t b, uintptr_t c, int64_t m, int64_t n, int64_t k, int64_t lda, int64_t ldb,
                   int64_t ldc, const std::string& dtype, const std::string& layout, uintptr_t bias) {
  GemmArgs args;
  args.a = reinterpret_cast<const void*>(a);
  args.b = reinterpret_cast<const void*>(b);
  args.c = reinterpret_cast<void*>(c);
  args.bias = reinterpret_cast<const void*>(bias);
  args.m = m;
  args.n = n;
  args.k = k;
  args.lda = lda;
  args.ldb = ldb;
  args.ldc = ldc;
  args.dtype = dtype_named(dtype);
  args.layout = layout_named(layout);
  return args;
}

void bind_cublas(py::module_& m) {
  using namespace cublas;
  py::class_<Blas, std::shared_ptr<Blas>>(m, "Blas")
      .def(py::init<const std::string&, uintptr_t, size_t>(), py::arg("library"), py::arg("workspace"),
           py::arg("workspace_bytes"))
      .def(
          "prepare",
          [](std::shared_ptr<Blas> blas, const GemmArgs& args, uintptr_t stream) -> CallPtr {
            return std::make_shared<BlasCall>(std::move(blas), args, reinterpret_cast<void*>(stream));
          },
          py::arg("gemm"), py::arg("stream"));
  py::class_<Lt, std::shared_ptr<Lt>>(m, "Lt")
      .def(py::init<const std::string&, uintptr_t, size_t>(), py::arg("library"), py::arg("workspace"),
           py::arg("workspace_bytes"))
      .def_property_readonly("version", &Lt::version);
  py::class_<LtProblem, std::shared_ptr<LtProblem>>(m, "LtProblem")
      .def(py::init<std::shared_ptr<Lt>, const GemmArgs&, int>(), py::arg("lt"), py::arg("gemm"), py::arg("most") = 100)
      .def("__len__", &LtProblem::count)
      .def(
          "prepare",
          [](std::shared_ptr<LtProblem> problem, size_t index, const GemmArgs& args, uintptr_t stream) -> CallPtr {
            return std::make_shared<LtCall>(std::move(problem), index, args, reinterpret_cast<void*>(stream));
          },
          py::arg("index"), py::arg("gemm"), py::arg("stream"));
}

PYBIND11_MODULE(_tools, m) {
  m.doc() = "Registry, plans, occupancy and graph timing. Use it through cudal2.tools.";

  m.def("build_info", &build_info);
  m.def("compiled_for", &compiled_for, py::arg("arch"));
  m.def("kernels", [] {
    py::list all;
    for (const KernelInfo* kernel : kernels()) all.append(describe(*kernel));
    return all;
  });
  m.def("find_plan", &plan_of, py::arg("device"), py::arg("dtype"), py::arg("layout"), py::arg("m"), py::arg("n"),
        py::arg("k"));
  m.def("device_status", &status_of, py::arg("device"));
  m.def("set_plan_directory", &set_plan_directory, py::arg("directory"));
  m.def(
      "unsupported",
      [](const std::string& kernel, const GemmArgs& args, int device) -> py::object {
        const char* reason = unsupported(kernel_named(kernel), args, device);
        return reason ? py::object(py::str(reason)) : py::none();
      },
      py::arg("kernel"), py::arg("gemm"), py::arg("device") = 0);

  py::class_<GemmArgs>(m, "Gemm").def(py::init(&make_gemm), py::kw_only(), py::arg("a"), py::arg("b"), py::arg("c"),
                                      py::arg("m"), py::arg("n"), py::arg("k"), py::arg("lda"), py::arg("ldb"),
                                      py::arg("ldc"), py::arg("dtype"), py::arg("layout"), py::arg("bias") = 0);
  py::class_<LaunchKnobs>(m, "Knobs")
      .def(py::init([](int group, int raster, int ctas, int split, bool pdl) {
             return LaunchKnobs{group, raster, ctas, split, pdl};
           }),
           py::kw_only(), py::arg("group") = 8, py::arg("raster") = 0, py::arg("ctas") = 0, py::arg("split") = 1,
           py::arg("pdl") = false);
  py::class_<Graph, std::shared_ptr<Graph>>(m, "Graph")
      .def_readonly("launches", &Graph::launches)
      .def_readonly("work", &Graph::work);
  py::class_<Call, CallPtr>(m, "Call").def("__call__", &Call::queue);
  bind_cublas(m);
  py::class_<Timer>(m, "Timer")
      .def(py::init<int>(), py::arg("device") = 0)
      .def_property_readonly("stream", &Timer::stream)
      .def("launch", &Timer::launch, py::arg("kernel"), py::arg("knobs"), py::arg("gemm"))
      .def("begin", &Timer::begin)
      .def("abort", &Timer::abort)
      .def("end", &Timer::end, py::arg("launches"))
      .def("capture", &Timer::capture, py::arg("kernel"), py::arg("knobs"), py::arg("problems"), py::arg("launches"))
      .def("prepare", &Timer::prepare, py::arg("kernel"), py::arg("knobs"), py::arg("gemm"), py::arg("stream"))
      .def("occupancy", &Timer::occupancy, py::arg("kernel"), py::arg("knobs"), py::arg("gemm"))
      .def("race", &Timer::race, py::arg("graphs"), py::arg("order"), py::arg("timeout_s") = 30.0)
      .def("replay", &Timer::replay, py::arg("graph"))
      .def("wall", &Timer::wall, py::arg("calls"), py::arg("order"), py::arg("gaps_us"))
      .def("synchronize", &Timer::synchronize, py::arg("timeout_s") = 30.0);
}

}  // namespace
}  // namespace cudal2
