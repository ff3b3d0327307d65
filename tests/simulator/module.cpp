// SPDX-License-Identifier: Apache-2.0
// The simulator as pytest sees it: load PTX, launch kernels on host buffers, read counters.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "error.h"
#include "machine.h"
#include "memory.h"
#include "program.h"
#include "tensor_map.h"

namespace py = pybind11;
using namespace dsv4::simulator;

namespace {

Dim3 to_dim3(const std::tuple<uint32_t, uint32_t, uint32_t>& t) {
  return {std::get<0>(t), std::get<1>(t), std::get<2>(t)};
}

// Arguments come packed as the bytes of each parameter, in order.
LaunchResult launch(LoadedModule& module, const std::string& kernel,
                    const std::tuple<uint32_t, uint32_t, uint32_t>& grid,
                    const std::tuple<uint32_t, uint32_t, uint32_t>& block,
                    const std::tuple<uint32_t, uint32_t, uint32_t>& cluster,
                    uint32_t dynamic_shared_bytes, const std::vector<py::bytes>& arguments,
                    const Options& options) {
  const Program& program = module.program(kernel);
  const auto& parameters = program.function->parameters;
  if (arguments.size() != parameters.size()) {
    fail("%s: expected %zu arguments, got %zu", kernel.c_str(), parameters.size(),
         arguments.size());
  }
  std::vector<uint8_t> packed(program.function->parameter_bytes);
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string bytes = arguments[i];
    if (bytes.size() != parameters[i].bytes) {
      fail("%s: argument %zu: expected %zu bytes, got %zu", kernel.c_str(), i, parameters[i].bytes,
           bytes.size());
    }
    std::memcpy(packed.data() + parameters[i].offset, bytes.data(), bytes.size());
  }
  const LaunchShape shape{to_dim3(grid), to_dim3(block), to_dim3(cluster), dynamic_shared_bytes};
  py::gil_scoped_release release;
  return run(program, shape, packed.data(), options);
}

py::dict instructions_of(const WarpCounters& warp) {
  py::dict result;
  for (int i = 0; i < kNumInstructionClasses; ++i)
    result[name_of(InstructionClass(i))] = warp.instructions[i];
  return result;
}

// The 128 bytes of a CUtensorMap, from the arguments of cuTensorMapEncodeTiled.
py::bytes encode_tensor_map(uint32_t data_type, uint64_t base, const std::vector<uint64_t>& size,
                            std::vector<uint64_t> stride_bytes, const std::vector<uint32_t>& box,
                            const std::vector<uint32_t>& element_stride, uint32_t swizzle,
                            uint32_t out_of_bounds_fill) {
  const size_t rank = size.size();
  if (rank == 0 || box.size() != rank || element_stride.size() != rank ||
      stride_bytes.size() + 1 != rank) {
    fail(
        "tensor map: sizes, box and element strides need one element a dimension, strides one "
        "less");
  }
  stride_bytes.push_back(0);  // of rank 1 there are none, but the array may not be null
  const TensorMap map =
      encode_tiled({data_type, uint32_t(rank), base, size.data(), stride_bytes.data(), box.data(),
                    element_stride.data(), 0, swizzle, 0, out_of_bounds_fill});
  std::string bytes(kTensorMapBytes, 0);
  std::memcpy(bytes.data(), &map, sizeof(map));
  return bytes;
}

}  // namespace

PYBIND11_MODULE(dsv4_simulator, m) {
  py::register_exception<Error>(m, "SimulatorError", PyExc_RuntimeError);

  py::enum_<AsyncMode>(m, "AsyncMode")
      .value("EAGER", AsyncMode::kEager)
      .value("LAZY", AsyncMode::kLazy)
      .value("RANDOM", AsyncMode::kRandom);
  py::class_<Options>(m, "Options")
      .def(py::init<>())
      .def_readwrite("async_mode", &Options::async)
      .def_readwrite("seed", &Options::seed)
      .def_readwrite("budget", &Options::budget)
      .def_readwrite("check", &Options::check)
      .def_readwrite("count", &Options::count)
      .def_readwrite("max_reports", &Options::max_reports)
      .def_readwrite("tensor_fences", &Options::tensor_fences)
      .def_readwrite("registers_per_thread", &Options::registers_per_thread)
      .def("start_after", [](Options& options, const LaunchResult& previous) {
        options.previous = previous.writes;
      });
  py::class_<WarpCounters>(m, "WarpCounters")
      .def_property_readonly("instructions", &instructions_of)
      .def_readonly("lane_instructions", &WarpCounters::lane_instructions)
      .def_readonly("shared_loads", &WarpCounters::shared_loads)
      .def_readonly("shared_load_wavefronts", &WarpCounters::shared_load_wavefronts)
      .def_readonly("shared_stores", &WarpCounters::shared_stores)
      .def_readonly("shared_store_wavefronts", &WarpCounters::shared_store_wavefronts)
      .def_readonly("barrier_waits", &WarpCounters::barrier_waits)
      .def_readonly("blocked_waits", &WarpCounters::blocked_waits);
  py::class_<Counters>(m, "Counters")
      .def(py::init<>())
      .def_readonly("warps", &Counters::warps)
      .def_property_readonly("total", &Counters::total)
      .def_readonly("global_load_bytes", &Counters::global_load_bytes)
      .def_readonly("global_store_bytes", &Counters::global_store_bytes)
      .def_readonly("cp_async_bytes", &Counters::cp_async_bytes)
      .def_readonly("bulk_load_bytes", &Counters::bulk_load_bytes)
      .def_readonly("bulk_store_bytes", &Counters::bulk_store_bytes)
      .def_readonly("distributed_shared_bytes", &Counters::distributed_shared_bytes)
      .def_readonly("matrix_instructions", &Counters::matrix_instructions)
      .def_readonly("opcodes", &Counters::opcodes)
      .def_readonly("matrix_flop", &Counters::matrix_flop)
      .def_readonly("matrix_cycles", &Counters::matrix_cycles)
      .def_property_readonly("num_sectors", [](const Counters& c) { return c.sectors.size(); })
      .def("add", &Counters::add);
  py::class_<LaunchResult>(m, "LaunchResult")
      .def_readonly("counters", &LaunchResult::counters)
      .def_readonly("races", &LaunchResult::races)
      .def_readonly("unanchored", &LaunchResult::unanchored)
      .def_readonly("lints", &LaunchResult::lints);
  py::class_<LoadedModule>(m, "Module")
      .def(py::init<const std::string&>(), py::arg("ptx"))
      .def_property_readonly("kernels", &LoadedModule::kernels)
      .def_property_readonly("target",
                             [](const LoadedModule& module) { return module.source().target; })
      .def("decode",
           [](LoadedModule& module, const std::string& kernel) { module.program(kernel); })
      .def("address_of",
           [](const LoadedModule& module, const std::string& name) {
             return reinterpret_cast<uint64_t>(module.address_of(name));
           })
      .def("launch", &launch, py::arg("kernel"), py::arg("grid"), py::arg("block"),
           py::arg("cluster"), py::arg("dynamic_shared_bytes"), py::arg("arguments"),
           py::arg("options"));
  m.def("register_memory", [](uint64_t address, size_t bytes) {
    register_memory(reinterpret_cast<void*>(address), bytes);
  });
  m.def("unregister_memory",
        [](uint64_t address) { unregister_memory(reinterpret_cast<void*>(address)); });
  m.def("encode_tensor_map", &encode_tensor_map, py::arg("data_type"), py::arg("base"),
        py::arg("size"), py::arg("stride_bytes"), py::arg("box"), py::arg("element_stride"),
        py::arg("swizzle"), py::arg("out_of_bounds_fill"));
}
