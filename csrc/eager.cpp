// cudal2._eager: the plain eager call in one C function, past torch's dispatcher. On the host a small product costs
// more than its kernel takes, and most of that is Python's checks, the boxing of arguments and dispatch.
//
// It runs a product only if nothing could tell the difference: ordinary CUDA tensors, no gradient wanted, and torch in
// no state (autocast, tracing, modes, profiler) that makes more of a call than its result. Else it returns None, and
// cudal2/ops.py goes the way through the dispatcher, which knows about all of that. cudal2/native.py names the states.
//
// It sees torch through Python's C API and DLPack's exchange table, both stable: the module is built once, for every
// Python with the limited API (3.10 on), and for every torch. The interpreter's lock guards what is static here.
#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstring>
#include <exception>
#include <string>

#include "dlpack_exchange.h"
#include "product.h"

namespace cudal2::eager {
namespace {

using ops::Operand;
using ops::Strided;

// torch's side -------------------------------------------------------------------------------------------------------

// False: no. A Python error counts as a yes, and ends here. Takes the reference.
bool truth_of(PyObject* answer) {
  const int truth = answer == Py_False ? 0 : answer == nullptr ? -1 : PyObject_IsTrue(answer);
  Py_XDECREF(answer);
  if (truth < 0) PyErr_Clear();
  return truth != 0;
}

// A Python function without arguments, called straight through its C function where it has one.
struct Question {
  PyObject* callable = nullptr;
  PyCFunction function = nullptr;
  PyObject* self = nullptr;

  void set(PyObject* value) {
    callable = Py_NewRef(value);
    if (!PyObject_TypeCheck(value, &PyCFunction_Type) || PyCFunction_GetFlags(value) != METH_NOARGS) return;
    function = PyCFunction_GetFunction(value);
    self = PyCFunction_GetSelf(value);
  }
  bool ask() const { return truth_of(function != nullptr ? function(self, nullptr) : PyObject_CallNoArgs(callable)); }
  // Where it is a method of tensors, and has a C function.
  bool ask(PyObject* tensor) const { return truth_of(function(tensor, nullptr)); }
};

// An attribute that a type computes, read straight through its descriptor.
struct Attribute {
  PyObject* descriptor = nullptr;
  descrgetfunc get = nullptr;

  void set(PyObject* value) {
    descriptor = Py_NewRef(value);
    get = reinterpret_cast<descrgetfunc>(PyType_GetSlot(Py_TYPE(value), Py_tp_descr_get));
  }
  bool ask(PyObject* object) const { return truth_of(get(descriptor, object, nullptr)); }
};

// A module's global variable, which is `idle` while nothing special goes on.
struct Global {
  PyObject *module = nullptr, *name = nullptr, *idle = nullptr;

  bool is_idle() const {
    PyObject* value = PyDict_GetItemWithError(module, name);
    if (value == nullptr) PyErr_Clear();
    return value == idle;
  }
};

constexpr Py_ssize_t kMost = 8;

struct Torch {
  PyTypeObject *tensor = nullptr, *parameter = nullptr;
  const dlpack::ExchangeApi* exchange = nullptr;
  Question modes[kMost], grad_enabled, is_neg;
  Attribute requires_grad;
  Global globals[kMost];
  Py_ssize_t modes_count = 0, globals_count = 0;
  PyObject *empty = nullptr, *dtypes[2] = {}, *matmul = nullptr, *linear = nullptr;

  // Types whose instances are just data.
  bool is_plain(PyObject* object) const { return Py_TYPE(object) == tensor || Py_TYPE(object) == parameter; }

  bool is_idle() const {
    for (Py_ssize_t i = 0; i < globals_count; ++i) {
      if (!globals[i].is_idle()) return false;
    }
    for (Py_ssize_t i = 0; i < modes_count; ++i) {
      if (modes[i].ask()) return false;
    }
    return true;
  }
  // False: the tensor has no memory of its own (functorch's wrappers, sparse, meta).
  bool read(PyObject* object, dlpack::Tensor* view) const {
    if (exchange->dltensor_from_py_object_no_sync(object, view) == 0) return true;
    PyErr_Clear();
    return false;
  }
};

Torch torch_;

bool is_half(const dlpack::DataType& type) {
  return type.bits == 16 && type.lanes == 1 && (type.code == dlpack::kFloat || type.code == dlpack::kBfloat);
}

bool same_kind(const dlpack::Tensor& x, const dlpack::Tensor& y) {
  return x.dtype.code == y.dtype.code && x.dtype.bits == y.dtype.bits && x.device.type == y.device.type &&
         x.device.id == y.device.id;
}

Strided strided(const dlpack::Tensor& view) { return {view.shape, view.strides, view.ndim}; }

// What is known of a product ------------------------------------------------------------------------------------------

constexpr int kMostDims = 4;

// All that decides about a product but addresses. Compared as bytes.
struct Key {
  int64_t a[2 * kMostDims] = {}, b[4] = {};
  int32_t rank = 0, device = 0, bfloat = 0, linear = 0;
};

struct Known {
  Key key;                                        // rank 0: nothing is known
  bool unplanned = false;                         // tensors of these sizes have no plan
  const Plan* plan = nullptr;                     // nullptr: not run from here
  GemmArgs args;                                  // all but addresses
  PyObject *sizes = nullptr, *strides = nullptr;  // the output's
};

constexpr size_t kEntries = 256;  // direct-mapped
Known known[kEntries];

size_t slot_of(const Key& key) {
  uint64_t hash = static_cast<uint64_t>(key.rank + 16 * (key.device + 256 * (key.bfloat + 2 * key.linear)));
  for (int i = 0; i < key.rank; ++i) hash = (hash ^ static_cast<uint64_t>(key.a[i])) * 0x9E3779B97F4A7C15ull;
  for (const int64_t part : key.b) hash = (hash ^ static_cast<uint64_t>(part)) * 0x9E3779B97F4A7C15ull;
  return (hash >> 40) % kEntries;
}

Key key_of(const dlpack::Tensor& a, const dlpack::Tensor& b, bool linear) {
  Key key;
  key.rank = a.ndim;
  key.device = a.device.id;
  key.bfloat = a.dtype.code == dlpack::kBfloat;
  key.linear = linear;
  for (int i = 0; i < a.ndim; ++i) {
    key.a[i] = a.shape[i];
    key.a[kMostDims + i] = a.strides[i];
  }
  for (int i = 0; i < 2; ++i) {
    key.b[i] = b.shape[i];
    key.b[2 + i] = b.strides[i];
  }
  return key;
}

// The output's sizes and strides: a's leading dimensions and `n` columns, contiguous. False with a Python error.
bool describe_output(const Strided& a, int64_t n, Known* entry) {
  entry->sizes = PyTuple_New(a.rank);
  entry->strides = PyTuple_New(a.rank);
  if (entry->sizes == nullptr || entry->strides == nullptr) return false;
  int64_t stride = 1;
  for (int64_t i = a.rank - 1; i >= 0; --i) {
    const int64_t size = i == a.rank - 1 ? n : a.sizes[i];
    if (PyTuple_SetItem(entry->sizes, i, PyLong_FromLongLong(size)) != 0) return false;
    if (PyTuple_SetItem(entry->strides, i, PyLong_FromLongLong(stride)) != 0) return false;
    stride *= size > 1 ? size : 1;
  }
  return PyErr_Occurred() == nullptr;
}

void forget_output(Known* entry) {
  Py_CLEAR(entry->sizes);
  Py_CLEAR(entry->strides);
}

// Throws std::runtime_error where the plan table is malformed. nullptr with a Python error: no memory.
const Known* look_up(const dlpack::Tensor& a, const dlpack::Tensor& b, bool linear) {
  const Key key = key_of(a, b, linear);
  Known& entry = known[slot_of(key)];
  if (std::memcmp(&entry.key, &key, sizeof key) == 0) return &entry;
  Known found;  // put into its slot when it is complete: making tuples may run Python code, which may come here
  found.key = key;
  const Operand operand = linear ? Operand::of_linear(strided(b)) : Operand::of_matmul(strided(b));
  if (ops::describe(strided(a), operand, &found.args)) {
    const DType dtype = key.bfloat ? DType::bf16 : DType::f16;
    const GemmArgs& args = found.args;
    found.plan = ops::plan_as(dtype, operand, &found.args, key.device);
    found.unplanned = found.plan == nullptr && !ops::planned(key.device, dtype, args.m, args.n, args.k);
    if (found.plan != nullptr && !describe_output(strided(a), args.n, &found)) {
      forget_output(&found);
      return nullptr;
    }
  }
  forget_output(&entry);
  entry = found;
  return &entry;
}

// The call ------------------------------------------------------------------------------------------------------------

PyObject* refuse() { return Py_NewRef(Py_None); }

// `bias`: nullptr, or N contiguous elements of a's kind. The product, None, or nullptr with a Python error.
PyObject* run_known(const Known& entry, const dlpack::Tensor& a, const dlpack::Tensor& b, const dlpack::Tensor* bias) {
  const Plan& plan = *entry.plan;  // lives as long as the process; `entry` only until Python code runs
  GemmArgs args = entry.args;
  PyObject* sizes = Py_NewRef(entry.sizes);
  PyObject* strides = Py_NewRef(entry.strides);
  PyObject* out = PyObject_CallFunctionObjArgs(torch_.empty, sizes, strides, torch_.dtypes[entry.key.bfloat], nullptr);
  Py_DECREF(sizes);
  Py_DECREF(strides);
  if (out == nullptr) return nullptr;
  dlpack::Tensor c;
  bool done = torch_.read(out, &c) && same_kind(a, c);
  std::string failure;
  if (done) {
    args.a = a.data;
    args.b = b.data;
    args.c = c.data;
    args.bias = bias != nullptr ? bias->data : nullptr;
    Py_BEGIN_ALLOW_THREADS;  // a launch waits where the queue is full, perhaps for a callback that wants the lock
    try {
      done = ops::run(plan, args, a.device.id);
    } catch (const std::exception& error) {
      failure = error.what();
    }
    Py_END_ALLOW_THREADS;
  }
  if (done && failure.empty()) return out;
  Py_DECREF(out);
  if (failure.empty()) return refuse();
  PyErr_SetString(PyExc_RuntimeError, failure.c_str());
  return nullptr;
}

// a @ b, or a @ b.T + bias if `linear`; bias: nullptr or a Python object. None: not run from here.
PyObject* product(PyObject* a, PyObject* b, PyObject* bias, bool linear) {
  PyObject* const tensors[] = {a, b, bias};
  dlpack::Tensor views[3];
  const int count = bias != nullptr ? 3 : 2;
  for (int i = 0; i < count; ++i) {
    if (!torch_.is_plain(tensors[i])) return refuse();
  }
  if (!torch_.is_idle()) return refuse();  // before the tensors are read, which makes a lazy copy a real one
  for (int i = 0; i < count; ++i) {
    if (!torch_.read(tensors[i], &views[i]) || views[i].device.type != dlpack::kCuda || !is_half(views[i].dtype) ||
        !same_kind(views[i], views[0]) || views[i].strides == nullptr || views[i].byte_offset != 0) {
      return refuse();
    }
  }
  if (views[0].ndim < 1 || views[0].ndim > kMostDims || views[1].ndim != 2) return refuse();
  if (torch_.grad_enabled.ask()) {
    for (int i = 0; i < count; ++i) {
      if (torch_.requires_grad.ask(tensors[i])) return refuse();
    }
  }
  const Known* entry = nullptr;
  try {
    entry = look_up(views[0], views[1], linear);
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  if (entry == nullptr) return nullptr;
  if (entry->unplanned) {
    return PyObject_CallFunctionObjArgs(linear ? torch_.linear : torch_.matmul, a, b, bias, nullptr);
  }
  if (entry->plan == nullptr) return refuse();
  if (bias != nullptr &&
      (views[2].ndim != 1 || views[2].shape[0] != entry->args.n || (views[2].strides[0] != 1 && entry->args.n != 1))) {
    return refuse();
  }
  const auto address = reinterpret_cast<uintptr_t>(views[0].data) | reinterpret_cast<uintptr_t>(views[1].data);
  if (address % (2 * entry->plan->kernel->vector) != 0 || current_device() != views[0].device.id) return refuse();
  for (int i = 0; i < count; ++i) {
    if (views[i].data == nullptr || torch_.is_neg.ask(tensors[i])) return refuse();
  }
  return run_known(*entry, views[0], views[1], bias != nullptr ? &views[2] : nullptr);
}

PyObject* matmul(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 2) return refuse();
  return product(arguments[0], arguments[1], nullptr, false);
}

PyObject* linear(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 3) return refuse();
  return product(arguments[0], arguments[1], arguments[2] == Py_None ? nullptr : arguments[2], true);
}

// Set-up --------------------------------------------------------------------------------------------------------------

bool keep_modes(PyObject* questions) {
  torch_.modes_count = PyTuple_Size(questions);
  if (torch_.modes_count > kMost) return false;
  for (Py_ssize_t i = 0; i < torch_.modes_count; ++i) torch_.modes[i].set(PyTuple_GetItem(questions, i));
  return true;
}

bool keep_globals(PyObject* globals) {
  torch_.globals_count = PyTuple_Size(globals);
  if (torch_.globals_count > kMost) return false;
  for (Py_ssize_t i = 0; i < torch_.globals_count; ++i) {
    Global& global = torch_.globals[i];
    if (!PyArg_ParseTuple(PyTuple_GetItem(globals, i), "O!UO", &PyDict_Type, &global.module, &global.name,
                          &global.idle))
      return false;
    for (PyObject* object : {global.module, global.name, global.idle}) Py_INCREF(object);
  }
  return true;
}

// prepare(tensor, parameter, exchange, modes, globals, grad_enabled, requires_grad, is_neg, empty, float16, bfloat16,
// matmul, linear) -> bool, whether matmul and linear can work with this torch. To be called once, before them.
PyObject* prepare(PyObject*, PyObject* arguments) {
  PyObject *tensor, *parameter, *capsule, *modes, *globals, *grad_enabled, *requires_grad, *is_neg;
  PyObject *empty, *float16, *bfloat16, *matmul, *linear;
  if (!PyArg_ParseTuple(arguments, "O!O!OO!O!OOOOOOOO", &PyType_Type, &tensor, &PyType_Type, &parameter, &capsule,
                        &PyTuple_Type, &modes, &PyTuple_Type, &globals, &grad_enabled, &requires_grad, &is_neg, &empty,
                        &float16, &bfloat16, &matmul, &linear)) {
    return nullptr;
  }
  // All or nothing: calls may be on their way through what was prepared before.
  const void* exchange = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
  if (exchange == nullptr) return nullptr;
  for (PyObject* object : {tensor, parameter, empty, float16, bfloat16, matmul, linear}) Py_INCREF(object);
  torch_.exchange = static_cast<const dlpack::ExchangeApi*>(exchange);
  torch_.empty = empty;
  torch_.dtypes[0] = float16;
  torch_.dtypes[1] = bfloat16;
  torch_.matmul = matmul;
  torch_.linear = linear;
  torch_.tensor = reinterpret_cast<PyTypeObject*>(tensor);
  torch_.parameter = reinterpret_cast<PyTypeObject*>(parameter);
  torch_.requires_grad.set(requires_grad);
  torch_.grad_enabled.set(grad_enabled);
  torch_.is_neg.set(is_neg);
  const bool fit = keep_modes(modes) && keep_globals(globals) && torch_.is_neg.function != nullptr &&
                   torch_.requires_grad.get != nullptr && torch_.exchange->version.major == dlpack::kMajorVersion &&
                   torch_.exchange->dltensor_from_py_object_no_sync != nullptr;
  if (PyErr_Occurred()) return nullptr;
  return PyBool_FromLong(fit);
}

PyMethodDef methods[] = {
    {"prepare", prepare, METH_VARARGS, nullptr},
    {"matmul", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(matmul)), METH_FASTCALL, nullptr},
    {"linear", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(linear)), METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "cudal2._eager", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace
}  // namespace cudal2::eager

PyMODINIT_FUNC PyInit__eager() { return PyModule_Create(&cudal2::eager::module); }
