// SPDX-License-Identifier: Apache-2.0
#include "runtime/state.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <iterator>

#include "memory.h"
#include "runtime/dsv4_sim.h"

namespace dsv4::simulator::cuda {
namespace {

constexpr const char* kOptions[] = {"gpu",   "schedule", "seed",    "budget",
                                    "check", "count",    "clusters"};

std::vector<std::string> split_at_commas(const std::string& text) {
  std::vector<std::string> parts(1);
  for (char c : text) {
    if (c == ',') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

bool to_number(const std::string& text, uint64_t* value) {
  char* end = nullptr;
  *value = std::strtoull(text.c_str(), &end, 10);
  return !text.empty() && *end == 0;
}

}  // namespace

void refuse(cudaError_t code, const char* format, ...) {
  char buffer[1024];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(buffer, sizeof(buffer), format, arguments);
  va_end(arguments);
  throw Refusal{code, buffer};
}

State& state() {
  // Never destroyed: the program's own destructors may still free memory.
  static State* const instance = new State;
  return *instance;
}

ThreadState& thread_state() {
  static thread_local ThreadState instance;
  return instance;
}

State::State() {
  devices = {find_gpu_model("H200")};
  for (const char* option : kOptions) {
    std::string name = std::string("DSV4_SIM_") + option;
    for (char& c : name) c = char(std::toupper(static_cast<unsigned char>(c)));
    const char* value = std::getenv(name.c_str());
    if (value == nullptr || *value == 0) continue;
    if (const std::string problem = set(option, value); !problem.empty()) {
      // There is no caller to tell, and going on would simulate something else than was asked for.
      std::fprintf(stderr, "%s: %s\n", name.c_str(), problem.c_str());
      std::abort();
    }
  }
}

std::string State::set(const std::string& option, const std::string& value) {
  uint64_t number = 0;
  if (option == "gpu") {
    std::vector<const GpuModel*> found;
    for (const std::string& key : split_at_commas(value)) {
      const size_t colon = key.find(':');
      const GpuModel* model = find_gpu_model(key.substr(0, colon));
      if (model == nullptr) return "no GPU " + key + "; there are " + gpu_model_names();
      if (colon != std::string::npos) {
        if (!to_number(key.substr(colon + 1), &number) || number == 0 ||
            number > uint64_t(model->num_sms)) {
          return "expected 1 to " + std::to_string(model->num_sms) + " SMs, got " + key;
        }
        slices.push_back(*model);
        slices.back().num_sms = int(number);
        model = &slices.back();
      }
      found.push_back(model);
    }
    devices = std::move(found);
    for (auto& [function, kernel] : kernels) kernel.attributes.clear();
    return "";
  }
  if (option == "schedule") {
    if (value == "eager") {
      options.async = AsyncMode::kEager;
    } else if (value == "lazy") {
      options.async = AsyncMode::kLazy;
    } else if (value == "random") {
      options.async = AsyncMode::kRandom;
    } else {
      return "expected eager, lazy or random, got " + value;
    }
    return "";
  }
  if (option == "check") {
    if (value != "0" && value != "1" && value != "report")
      return "expected 0, 1 or report, got " + value;
    check = value == "0" ? Check::kOff : value == "1" ? Check::kFail : Check::kReport;
    options.check = check != Check::kOff;
    return "";
  }
  if (option == "clusters" && value == "all") {
    options.max_clusters = UINT64_MAX;
    return "";
  }
  if (!to_number(value, &number)) return "expected a number, got " + value;
  if (option == "seed") {
    options.seed = number;
  } else if (option == "budget") {
    if (number == 0 || number > 1u << 30) return "expected a positive number, got " + value;
    options.budget = int(number);
  } else if (option == "count") {
    options.count = number != 0;
  } else if (option == "clusters") {
    options.max_clusters = number;
  } else {
    return "unknown option " + option;
  }
  return "";
}

const GpuModel& gpu_of(int device) {
  if (device < 0 || size_t(device) >= state().devices.size()) {
    refuse(cudaErrorInvalidDevice, "there is no device %d", device);
  }
  return *state().devices[size_t(device)];
}

cudaError_t failed(cudaError_t code, const std::string& why) {
  state().last_error = why;
  return thread_state().last_error = code;
}

}  // namespace dsv4::simulator::cuda

using namespace dsv4::simulator;
using namespace dsv4::simulator::cuda;

namespace {

const std::vector<std::string>* texts_of(dsv4_sim_text_kind kind) {
  const State& s = state();
  switch (kind) {
    case DSV4_SIM_RACES:
      return &s.races;
    case DSV4_SIM_LINTS:
      return &s.lints;
    case DSV4_SIM_LAUNCHES:
      return &s.launch_records;
    case DSV4_SIM_SCHEDULES:
      return &s.schedule_records;
    case DSV4_SIM_UNANCHORED:
      break;
  }
  return nullptr;  // a set
}

void summarise(const Counters& counters, uint64_t launches, dsv4_sim_counters* result) {
  const WarpCounters total = counters.total();
  *result = {};
  result->launches = launches;
  for (uint64_t count : total.instructions) result->warp_instructions += count;
  result->lane_instructions = total.lane_instructions;
  result->global_load_bytes = counters.global_load_bytes;
  result->global_store_bytes = counters.global_store_bytes;
  result->cp_async_bytes = counters.cp_async_bytes;
  result->bulk_load_bytes = counters.bulk_load_bytes;
  result->bulk_store_bytes = counters.bulk_store_bytes;
  result->distributed_shared_bytes = counters.distributed_shared_bytes;
  result->sectors = counters.sectors.size();
  result->shared_load_wavefronts = total.shared_load_wavefronts;
  result->shared_store_wavefronts = total.shared_store_wavefronts;
  result->matrix_flop = counters.matrix_flop;
  result->matrix_cycles = counters.matrix_cycles;
}

}  // namespace

extern "C" {

int dsv4_sim_set(const char* option, const char* value) {
  std::lock_guard lock(state().mutex);
  const std::string problem = state().set(option, value);
  if (problem.empty()) return 0;
  state().last_error = problem;
  return -1;
}

const char* dsv4_sim_last_error(void) { return state().last_error.c_str(); }

void dsv4_sim_reset(void) {
  State& s = state();
  std::lock_guard lock(s.mutex);
  s.last_error.clear();
  s.broken = cudaSuccess;
  s.num_launches = 0;
  s.last_launch = s.all_launches = {};
  s.races.clear();
  s.lints.clear();
  s.launch_records.clear();
  s.schedule_records.clear();
  s.unanchored.clear();
  thread_state().last_error = cudaSuccess;
}

void dsv4_sim_register_memory(const void* data, size_t bytes) { register_memory(data, bytes); }
void dsv4_sim_unregister_memory(const void* data) { unregister_memory(data); }

void dsv4_sim_last_launch(dsv4_sim_counters* counters) {
  std::lock_guard lock(state().mutex);
  summarise(state().last_launch, state().num_launches > 0, counters);
}

void dsv4_sim_all_launches(dsv4_sim_counters* counters) {
  std::lock_guard lock(state().mutex);
  summarise(state().all_launches, state().num_launches, counters);
}

size_t dsv4_sim_num_texts(dsv4_sim_text_kind kind) {
  std::lock_guard lock(state().mutex);
  const std::vector<std::string>* const texts = texts_of(kind);
  return texts != nullptr ? texts->size() : state().unanchored.size();
}

const char* dsv4_sim_text(dsv4_sim_text_kind kind, size_t index) {
  std::lock_guard lock(state().mutex);
  if (index >= dsv4_sim_num_texts(kind)) return nullptr;
  const std::vector<std::string>* const texts = texts_of(kind);
  if (texts != nullptr) return (*texts)[index].c_str();
  return std::next(state().unanchored.begin(), long(index))->c_str();
}

size_t dsv4_sim_num_modules(void) {
  std::lock_guard lock(state().mutex);
  return state().modules.size();
}

const char* dsv4_sim_module_ptx(size_t module) {
  std::lock_guard lock(state().mutex);
  const State& s = state();
  return module < s.modules.size() ? s.modules[module].own->text.c_str() : nullptr;
}

int dsv4_sim_replace_ptx(size_t module, const char* ptx) {
  State& s = state();
  std::lock_guard lock(s.mutex);
  try {
    if (module >= s.modules.size()) fail("there is no module %zu", module);
    replace_ptx(s.modules[module], ptx == nullptr ? "" : ptx);
    return 0;
  } catch (const Error& error) {
    s.last_error = error.what();
    return -1;
  }
}

}  // extern "C"
