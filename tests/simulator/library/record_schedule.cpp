// SPDX-License-Identifier: Apache-2.0
// Keeps what make_schedule answers: in the simulated libdsv4 the linker sends its callers here
// (--wrap in CMakeLists.txt), and calls of __real_... to it.
#include "cuda/schedule.h"
#include "error.h"
#include "runtime/state.h"

#define MAKE_SCHEDULE(prefix) \
  prefix##_ZN4dsv413make_scheduleERKNS_13ScheduleInputERKNS_11EngineCostsEm

extern "C" {

dsv4::Schedule MAKE_SCHEDULE(__real_)(const dsv4::ScheduleInput& input,
                                      const dsv4::EngineCosts& costs, size_t workspace_bytes);

dsv4::Schedule MAKE_SCHEDULE(__wrap_)(const dsv4::ScheduleInput& input,
                                      const dsv4::EngineCosts& costs, size_t workspace_bytes) {
  const dsv4::Schedule schedule = MAKE_SCHEDULE(__real_)(input, costs, workspace_bytes);
  auto& state = dsv4::simulator::cuda::state();
  const std::lock_guard lock(state.mutex);
  if (state.options.count) {
    state.schedule_records.push_back(dsv4::simulator::text(
        "{\"num_shares\": %d, \"num_head_tiles\": %d, \"head_tile\": %d, \"unit_slots\": %d, "
        "\"group_rows\": %d, \"balanced\": %s}",
        schedule.num_shares, schedule.num_head_tiles, schedule.head_tile, schedule.unit_slots,
        schedule.group_rows, schedule.balanced ? "true" : "false"));
  }
  return schedule;
}

}  // extern "C"
