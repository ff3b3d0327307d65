// SPDX-License-Identifier: Apache-2.0
// The host side as pytest sees it: plan, lengths and page arithmetic, which libdsv4 does not
// export. Never shipped. Links the library's objects, so it also serves to run the C++ API without
// torch.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdio>
#include <limits>
#include <optional>
#include <stdexcept>
#include <vector>

#include "cuda/device.h"
#include "cuda/schedule.h"
#include "dsv4/dsv4.h"
#include "engines.h"
#include "plan.h"
#include "row_length.h"

namespace py = pybind11;

namespace {

dsv4::Plan make_plan(int64_t rows, int64_t heads, int64_t slots, int64_t parallelism,
                     bool batch_invariant, std::optional<size_t> workspace_bytes,
                     int64_t head_block, int64_t min_head_block, int64_t min_split_slots,
                     int64_t max_splits) {
  dsv4::PlanInput input;
  input.rows = rows;
  input.heads = heads;
  input.slots = slots;
  input.parallelism = parallelism;
  input.batch_invariant = batch_invariant;
  return dsv4::make_plan(input, {head_block, min_head_block, min_split_slots, max_splits},
                         workspace_bytes.value_or(std::numeric_limits<size_t>::max()));
}

std::pair<int64_t, int64_t> split_range(int64_t length, int64_t num_splits, int64_t split) {
  const dsv4::SplitRange range = dsv4::split_range(length, num_splits, split);
  return {range.begin, range.end};
}

int64_t row_length(const std::vector<int32_t>& values, int64_t row, int64_t width,
                   int64_t rows_per_value, int32_t subtract, bool causal,
                   const std::optional<std::vector<int32_t>>& row_offsets) {
  dsv4::LengthView view;
  view.values = values.data();
  view.rows_per_value = rows_per_value;
  view.subtract = subtract;
  view.causal = causal;
  if (row_offsets) {
    view.row_offsets = row_offsets->data();
    view.num_requests = int64_t(row_offsets->size()) - 1;
  }
  return dsv4::row_length(view, row, width);
}

// A small decode through the C++ API on the given device; returns the status message, empty when
// ok.
std::string decode_on(bool cuda, int32_t index, int64_t heads) {
  std::vector<uint16_t> query(size_t(heads > 0 ? heads : 0) * dsv4::kHeadDim), out(query.size());
  std::vector<uint16_t> pool(dsv4::kHeadDim);
  const int32_t slot = 0;
  dsv4::DecodeProblem problem;
  problem.device = {cuda ? dsv4::DeviceType::kCuda : dsv4::DeviceType::kCpu, index};
  problem.batch = 1;
  problem.heads = heads;
  problem.query = {query.data(), heads * dsv4::kHeadDim, 0, dsv4::kHeadDim};
  problem.out = {out.data(), heads * dsv4::kHeadDim, 0, dsv4::kHeadDim};
  problem.window.pool = {pool.data(), 1, 1, dsv4::kHeadDim * 2, dsv4::kHeadDim * 2};
  problem.window.indices = &slot;
  problem.window.columns = 1;
  return dsv4::sparse_mla_decode(problem).message;
}

dsv4::Schedule make_schedule(int64_t rows, int64_t heads, int64_t slots, int64_t blocks,
                             bool batch_invariant, std::optional<size_t> workspace_bytes,
                             int64_t table_rows, int64_t window_slots, bool persistent,
                             bool compares_tables) {
  dsv4::ScheduleInput input;
  input.rows = rows;
  input.table_rows = table_rows;
  input.window_slots = window_slots;
  input.heads = heads;
  input.compressed_slots = slots;
  input.blocks = blocks;
  input.persistent = persistent;
  input.compares_tables = compares_tables;
  input.batch_invariant = batch_invariant;
  const dsv4::EngineCosts costs{2,          {16, 32}, {1, 1}, {64, 48}, {1.7, 2.0}, {3.5, 5.5},
                                {1.5, 2.0}, 3.0,      0.1,    0.0012,   1.1,        1};
  return dsv4::make_schedule(input, costs, workspace_bytes.value_or(SIZE_MAX));
}

// Name of the engine that serves a GPU, or the status message.
std::string engine_for(int major, int minor, const std::string& gpu_name) {
  dsv4::GpuInfo gpu;
  gpu.present = true;
  gpu.major = major;
  gpu.minor = minor;
  std::snprintf(gpu.name, sizeof(gpu.name), "%s", gpu_name.c_str());
  const dsv4::Engine* engine;
  const dsv4::Status status = dsv4::find_gpu_engine(gpu, 0, &engine);
  return status.ok() ? engine->name : status.message;
}

}  // namespace

PYBIND11_MODULE(dsv4_host_tests, m) {
  py::class_<dsv4::Schedule>(m, "Schedule")
      .def_readonly("num_shares", &dsv4::Schedule::num_shares)
      .def_readonly("num_head_tiles", &dsv4::Schedule::num_head_tiles)
      .def_readonly("head_tile", &dsv4::Schedule::head_tile)
      .def_readonly("unit_slots", &dsv4::Schedule::unit_slots)
      .def_readonly("group_rows", &dsv4::Schedule::group_rows)
      .def_readonly("num_groups", &dsv4::Schedule::num_groups)
      .def_readonly("groups_of_table", &dsv4::Schedule::groups_of_table)
      .def_readonly("balanced", &dsv4::Schedule::balanced)
      .def_readonly("partial_lse_offset", &dsv4::Schedule::partial_lse_offset)
      .def_readonly("row_parts_offset", &dsv4::Schedule::row_parts_offset)
      .def_readonly("workspace_bytes", &dsv4::Schedule::workspace_bytes);
  m.def("make_schedule", &make_schedule, py::kw_only(), py::arg("rows"), py::arg("heads"),
        py::arg("slots"), py::arg("blocks"), py::arg("batch_invariant") = false,
        py::arg("workspace_bytes") = py::none(), py::arg("table_rows") = 1,
        py::arg("window_slots") = 0, py::arg("persistent") = false,
        py::arg("compares_tables") = false);
  py::class_<dsv4::Plan>(m, "Plan")
      .def_readonly("head_block", &dsv4::Plan::head_block)
      .def_readonly("num_head_blocks", &dsv4::Plan::num_head_blocks)
      .def_readonly("num_splits", &dsv4::Plan::num_splits)
      .def_readonly("num_tasks", &dsv4::Plan::num_tasks)
      .def_readonly("partial_out_offset", &dsv4::Plan::partial_out_offset)
      .def_readonly("partial_lse_offset", &dsv4::Plan::partial_lse_offset)
      .def_readonly("workspace_bytes", &dsv4::Plan::workspace_bytes);
  m.def("make_plan", &make_plan, py::kw_only(), py::arg("rows"), py::arg("heads"), py::arg("slots"),
        py::arg("parallelism"), py::arg("batch_invariant") = false,
        py::arg("workspace_bytes") = py::none(), py::arg("head_block") = 64,
        py::arg("min_head_block") = 16, py::arg("min_split_slots") = 64,
        py::arg("max_splits") = 64);
  m.def("split_range", &split_range, py::arg("length"), py::arg("num_splits"), py::arg("split"));
  m.def("row_length", &row_length, py::arg("values"), py::arg("row"), py::arg("width"),
        py::kw_only(), py::arg("rows_per_value") = 1, py::arg("subtract") = 0,
        py::arg("causal") = false, py::arg("row_offsets") = py::none());
  m.def("decode_on", &decode_on, py::arg("cuda"), py::arg("index"), py::arg("heads"));
  m.def("engine_for", &engine_for, py::arg("major"), py::arg("minor"), py::arg("gpu_name"));
  m.def("build_info", &dsv4::build_info);
  m.def("page_bytes", &dsv4::PackedPage::page_bytes);
  m.def("data_offset", &dsv4::PackedPage::data_offset);
  m.def("scale_offset", &dsv4::PackedPage::scale_offset);
  m.attr("window") = dsv4::kWindow;
}
