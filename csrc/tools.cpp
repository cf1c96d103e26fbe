// cudal2._tools: what tooling needs from the native side and torch ops do not offer: the kernel registry, plans, what a
// launch occupies, and device times by CUDA graph. Imports without a GPU; cudal2/tools.py is its Python face.
//
// Timing. A contender is a graph of R identical launches. Timer.race replays contenders in a given order, an event
// between each two, without waiting in between: the queue never runs dry, so host time stays out of the figures.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "driver.h"
#include "runtime/gemm.h"

namespace py = pybind11;

namespace cudal2 {
namespace {

const KernelInfo& kernel_named(const std::string& name) {
  const KernelInfo* kernel = find_kernel(name);
  if (!kernel) throw py::value_error("kernel='" + name + "' is not compiled into this build");
  return *kernel;
}

// Registry -----------------------------------------------------------------------------------------------------------

py::dict describe(const KernelInfo& k) {
  py::dict d;
  d["name"] = k.name;
  d["family"] = k.family;
  d["dtype"] = k.dtype == DType::f16 ? "f16" : "bf16";
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
  return d;
}

DType dtype_named(const std::string& name) {
  if (name == "f16") return DType::f16;
  if (name == "bf16") return DType::bf16;
  throw py::value_error("dtype='" + name + "'; expected f16 or bf16");
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
  d["plans"] = status.plans;
  return d;
}

// Timing -------------------------------------------------------------------------------------------------------------

struct Graph {
  Graph(driver::GraphExec exec, int launches) : exec(exec), launches(launches) {}
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph() { driver::api().graph_exec_destroy(exec); }

  driver::GraphExec exec;
  int launches;
};

struct GraphHandle {  // owns a captured, not yet instantiated graph
  driver::Graph graph = nullptr;
  ~GraphHandle() {
    if (graph) driver::api().graph_destroy(graph);
  }
};

class Timer {
 public:
  explicit Timer(int device) : device_(device) {
    const driver::Api& cuda = driver::api();
    driver::check(cuda.init(0), "cuInit");
    driver::check(cuda.primary_context_retain(&context_, device), "no such device");
    make_current();
    driver::check(cuda.stream_create(&stream_, driver::kStreamNonBlocking), "creating the timing stream");
  }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;
  ~Timer() {
    for (driver::Event event : events_) driver::api().event_destroy(event);
    driver::api().stream_destroy(stream_);
  }

  uintptr_t stream() const { return reinterpret_cast<uintptr_t>(stream_); }

  // Queues one launch on the timing stream: eager, or into the capture that begin() opened.
  void launch(const std::string& name, const LaunchKnobs& knobs, const GemmArgs& args) {
    const KernelInfo& kernel = kernel_named(name);
    make_current();
    if (const char* reason = unsupported(kernel, args, device_)) throw py::value_error(name + ": " + reason);
    launch_checked(kernel, knobs, args);
  }

  void begin() {
    make_current();
    driver::check(driver::api().stream_begin_capture(stream_, driver::kCaptureRelaxed), "beginning capture");
  }

  // Closes the capture and drops what it holds. For use after an error within it.
  void abort() noexcept {
    GraphHandle captured;
    driver::api().stream_end_capture(stream_, &captured.graph);
  }

  std::shared_ptr<Graph> end(int launches) {
    if (launches < 1) throw py::value_error("launches=" + std::to_string(launches) + "; at least 1");
    GraphHandle captured;
    end_capture(captured);
    driver::GraphExec exec = nullptr;
    driver::check(driver::api().graph_instantiate(&exec, captured.graph, 0), "instantiating a graph");
    auto graph = std::make_shared<Graph>(exec, launches);
    driver::check(driver::api().graph_upload(exec, stream_), "uploading a graph");
    return graph;
  }

  // `launches` launches of one kernel, over the problems in turn.
  std::shared_ptr<Graph> capture(const std::string& name, const LaunchKnobs& knobs,
                                 const std::vector<GemmArgs>& problems, int launches) {
    record(name, knobs, problems, launches);
    return end(launches);
  }

  // What one launch takes: read back from its graph node, so that it is what the runtime really asks for.
  py::dict occupancy(const std::string& name, const LaunchKnobs& knobs, const GemmArgs& args) {
    record(name, knobs, {args}, 1);
    GraphHandle captured;
    end_capture(captured);
    const driver::KernelNodeParams node = kernel_node(captured.graph);
    const driver::Api& cuda = driver::api();
    driver::Function function = node.function;
    if (!function) driver::check(cuda.kernel_function(&function, node.kernel), "reading a kernel node");
    const int threads = static_cast<int>(node.block_x * node.block_y * node.block_z);
    int registers = 0, local_bytes = 0, ctas_per_sm = 0;
    driver::check(cuda.function_attribute(&registers, driver::kAttributeRegisters, function), "registers");
    driver::check(cuda.function_attribute(&local_bytes, driver::kAttributeLocalBytes, function), "local memory");
    driver::check(cuda.occupancy(&ctas_per_sm, function, threads, node.shared_bytes), "occupancy");
    py::dict d;
    d["registers"] = registers;
    d["local_bytes"] = local_bytes;
    d["shared_bytes"] = node.shared_bytes;
    d["threads"] = threads;
    d["ctas"] = static_cast<int64_t>(node.grid_x) * node.grid_y * node.grid_z;
    d["ctas_per_sm"] = ctas_per_sm;
    return d;
  }

  // Replays graphs[order[0]], graphs[order[1]], ... and returns the µs per launch of each replay, in that order.
  std::vector<double> race(const std::vector<std::shared_ptr<Graph>>& graphs, const std::vector<size_t>& order,
                           double timeout_s) {
    for (size_t index : order) {
      if (index >= graphs.size())
        throw py::value_error("order names graph " + std::to_string(index) + " of " + std::to_string(graphs.size()));
    }
    if (order.empty()) return {};
    py::gil_scoped_release unlocked;
    make_current();
    const driver::Api& cuda = driver::api();
    need_events(order.size() + 1);
    // Untimed: gives the host a head start on the device.
    driver::check(cuda.graph_launch(graphs[order[0]]->exec, stream_), "launching a graph");
    driver::check(cuda.event_record(events_[0], stream_), "recording an event");
    for (size_t i = 0; i < order.size(); ++i) {
      driver::check(cuda.graph_launch(graphs[order[i]]->exec, stream_), "launching a graph");
      driver::check(cuda.event_record(events_[i + 1], stream_), "recording an event");
    }
    wait(events_[order.size()], timeout_s);
    std::vector<double> us(order.size());
    for (size_t i = 0; i < order.size(); ++i) {
      float ms = 0;
      driver::check(cuda.event_elapsed(&ms, events_[i], events_[i + 1]), "reading an event");
      us[i] = 1000.0 * ms / graphs[order[i]]->launches;
    }
    return us;
  }

  // Waits for the timing stream. Throws the kernels' own error, or after timeout_s.
  void synchronize(double timeout_s) {
    py::gil_scoped_release unlocked;
    make_current();
    need_events(1);
    driver::check(driver::api().event_record(events_[0], stream_), "recording an event");
    wait(events_[0], timeout_s);
  }

 private:
  void make_current() { driver::check(driver::api().context_set_current(context_), "making the device current"); }

  void launch_checked(const KernelInfo& kernel, const LaunchKnobs& knobs, const GemmArgs& args) {
    if (const char* error = cudal2::launch(kernel, knobs, args, device_, stream_)) {
      throw std::runtime_error(std::string(kernel.name) + ": " + error);
    }
  }

  void record(const std::string& name, const LaunchKnobs& knobs, const std::vector<GemmArgs>& problems, int launches) {
    if (problems.empty()) throw py::value_error("problems is empty; at least one Gemm");
    if (launches < 1) throw py::value_error("launches=" + std::to_string(launches) + "; at least 1");
    const KernelInfo& kernel = kernel_named(name);
    for (const GemmArgs& args : problems) {
      if (const char* reason = unsupported(kernel, args, device_)) throw py::value_error(name + ": " + reason);
    }
    begin();
    try {
      for (int i = 0; i < launches; ++i) launch_checked(kernel, knobs, problems[i % problems.size()]);
    } catch (...) {
      abort();
      throw;
    }
  }

  void end_capture(GraphHandle& captured) {
    make_current();
    driver::check(driver::api().stream_end_capture(stream_, &captured.graph), "ending capture");
  }

  static driver::KernelNodeParams kernel_node(driver::Graph graph) {
    const driver::Api& cuda = driver::api();
    size_t count = 0;
    driver::check(cuda.graph_nodes(graph, nullptr, &count), "reading a graph");
    std::vector<driver::GraphNode> nodes(count);
    driver::check(cuda.graph_nodes(graph, nodes.data(), &count), "reading a graph");
    for (driver::GraphNode node : nodes) {
      int type = -1;
      driver::check(cuda.node_type(node, &type), "reading a node");
      driver::KernelNodeParams params{};
      if (type != driver::kKernelNode) continue;
      driver::check(cuda.kernel_node_params(node, &params), "reading a kernel node");
      return params;
    }
    throw std::runtime_error("the launch put no kernel into the graph");
  }

  void need_events(size_t count) {
    while (events_.size() < count) {
      driver::Event event = nullptr;
      driver::check(driver::api().event_create(&event, 0), "creating an event");
      events_.push_back(event);
    }
  }

  static void wait(driver::Event event, double timeout_s) {
    const auto start = std::chrono::steady_clock::now();
    while (true) {
      const driver::Result result = driver::api().event_query(event);
      if (result == driver::kSuccess) return;
      if (result != driver::kNotReady) driver::check(result, "waiting for the device");
      const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - start;
      if (waited.count() > timeout_s) {
        throw std::runtime_error("the device did not finish within " + std::to_string(timeout_s) +
                                 " s: a kernel hangs");
      }
      std::this_thread::yield();
    }
  }

  int device_;
  driver::Context context_ = nullptr;
  driver::Stream stream_ = nullptr;
  std::vector<driver::Event> events_;
};

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

PYBIND11_MODULE(_tools, m) {
  m.doc() = "Registry, plans, occupancy and graph timing. Use it through cudal2.tools.";

  m.def("build_info", &build_info);
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
      .def(py::init([](int group, int raster, int ctas, bool pdl) { return LaunchKnobs{group, raster, ctas, pdl}; }),
           py::kw_only(), py::arg("group") = 8, py::arg("raster") = 0, py::arg("ctas") = 0, py::arg("pdl") = false);
  py::class_<Graph, std::shared_ptr<Graph>>(m, "Graph").def_readonly("launches", &Graph::launches);
  py::class_<Timer>(m, "Timer")
      .def(py::init<int>(), py::arg("device") = 0)
      .def_property_readonly("stream", &Timer::stream)
      .def("launch", &Timer::launch, py::arg("kernel"), py::arg("knobs"), py::arg("gemm"))
      .def("begin", &Timer::begin)
      .def("abort", &Timer::abort)
      .def("end", &Timer::end, py::arg("launches"))
      .def("capture", &Timer::capture, py::arg("kernel"), py::arg("knobs"), py::arg("problems"), py::arg("launches"))
      .def("occupancy", &Timer::occupancy, py::arg("kernel"), py::arg("knobs"), py::arg("gemm"))
      .def("race", &Timer::race, py::arg("graphs"), py::arg("order"), py::arg("timeout_s") = 30.0)
      .def("synchronize", &Timer::synchronize, py::arg("timeout_s") = 30.0);
}

}  // namespace
}  // namespace cudal2
