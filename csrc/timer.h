// Device and wall-clock times. A contender is a CUDA graph of R launches. Timer.race replays contenders in a given
// order, an event between each two, without waiting in between: the queue never runs dry, so host time stays out of the
// figures. Timer.wall times prepared calls by the host's clock: call, synchronize.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "calls.h"
#include "driver.h"
#include "runtime/gemm.h"

namespace cudal2 {

namespace py = pybind11;

inline const KernelInfo& kernel_named(const std::string& name) {
  const KernelInfo* kernel = find_kernel(name);
  if (!kernel) throw py::value_error("kernel='" + name + "' is not compiled into this build");
  return *kernel;
}

struct Graph {
  Graph(driver::GraphExec exec, int launches, std::vector<std::string> work)
      : exec(exec), launches(launches), work(std::move(work)) {}
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph() { driver::api().graph_exec_destroy(exec); }

  driver::GraphExec exec;
  int launches;
  std::vector<std::string> work;  // its nodes: a kernel's symbol, or the kind of another node
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
    auto graph = std::make_shared<Graph>(exec, launches, names_of(captured.graph));
    driver::check(driver::api().graph_upload(exec, stream_), "uploading a graph");
    return graph;
  }

  // `launches` launches of one kernel, over the problems in turn.
  std::shared_ptr<Graph> capture(const std::string& name, const LaunchKnobs& knobs,
                                 const std::vector<GemmArgs>& problems, int launches) {
    record(name, knobs, problems, launches);
    return end(launches);
  }

  CallPtr prepare(const std::string& name, const LaunchKnobs& knobs, const GemmArgs& args, uintptr_t stream) const {
    const KernelInfo& kernel = kernel_named(name);
    if (const char* reason = unsupported(kernel, args, device_)) throw py::value_error(name + ": " + reason);
    return std::make_shared<OwnCall>(kernel, knobs, args, device_, reinterpret_cast<void*>(stream));
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
    const KernelInfo& kernel = kernel_named(name);
    const unsigned cluster = kernel.cluster_m * kernel.cluster_n * kernel.split;
    if (cluster > 1) {  // clusters keep to a GPC, and not every GPC has as many SMs
      driver::LaunchAttribute attribute = {driver::kClusterDimension, 0, {{cluster, 1, 1}}};
      const driver::LaunchConfig config = {cluster, 1,          1, node.block_x, 1, 1, node.shared_bytes,
                                           nullptr, &attribute, 1};
      int clusters = 0;
      driver::check(cuda.active_clusters(&clusters, function, &config), "occupancy of clusters");
      d["clusters"] = clusters;
    }
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

  // Queues one replay, and waits for nothing.
  void replay(const Graph& graph) {
    make_current();
    driver::check(driver::api().graph_launch(graph.exec, stream_), "launching a graph");
  }

  // Wall-clock µs of each call and the synchronization behind it, in the given order, after a pause of gaps_us[i].
  std::vector<double> wall(const std::vector<CallPtr>& calls, const std::vector<size_t>& order,
                           const std::vector<double>& gaps_us) {
    using Clock = std::chrono::steady_clock;
    for (size_t index : order) {
      if (index >= calls.size())
        throw py::value_error("order names call " + std::to_string(index) + " of " + std::to_string(calls.size()));
    }
    if (!gaps_us.empty() && gaps_us.size() != order.size()) {
      throw py::value_error("gaps_us has " + std::to_string(gaps_us.size()) + " entries; expected none or " +
                            std::to_string(order.size()));
    }
    py::gil_scoped_release unlocked;
    make_current();
    const driver::Api& cuda = driver::api();
    driver::check(cuda.context_synchronize(), "synchronizing");
    std::vector<double> us(order.size());
    for (size_t i = 0; i < order.size(); ++i) {
      if (!gaps_us.empty()) std::this_thread::sleep_for(std::chrono::duration<double, std::micro>(gaps_us[i]));
      const auto start = Clock::now();
      calls[order[i]]->queue();
      driver::check(cuda.context_synchronize(), "synchronizing");
      us[i] = std::chrono::duration<double, std::micro>(Clock::now() - start).count();
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

  static std::vector<driver::GraphNode> nodes_of(driver::Graph graph) {
    const driver::Api& cuda = driver::api();
    size_t count = 0;
    driver::check(cuda.graph_nodes(graph, nullptr, &count), "reading a graph");
    std::vector<driver::GraphNode> nodes(count);
    if (count > 0) driver::check(cuda.graph_nodes(graph, nodes.data(), &count), "reading a graph");
    return nodes;
  }

  static std::vector<std::string> names_of(driver::Graph graph) {
    std::vector<std::string> names;
    for (driver::GraphNode node : nodes_of(graph)) names.push_back(name_of(node));
    return names;
  }

  // What a node does, for the reader: failures to find a name are not worth an error.
  static std::string name_of(driver::GraphNode node) {
    const driver::Api& cuda = driver::api();
    int type = -1;
    driver::check(cuda.node_type(node, &type), "reading a node");
    if (type == driver::kMemsetNode) return "memset";
    if (type == driver::kMemcpyNode) return "memcpy";
    if (type != driver::kKernelNode) return "node of type " + std::to_string(type);
    driver::KernelNodeParams params{};
    const char* name = nullptr;
    if (cuda.kernel_node_params(node, &params) != driver::kSuccess) return "kernel";
    if (params.function && cuda.function_name) cuda.function_name(&name, params.function);
    if (!name && params.kernel && cuda.kernel_name) cuda.kernel_name(&name, params.kernel);
    return name ? name : "kernel";
  }

  static driver::KernelNodeParams kernel_node(driver::Graph graph) {
    const driver::Api& cuda = driver::api();
    for (driver::GraphNode node : nodes_of(graph)) {
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

}  // namespace cudal2
