/* SPDX-License-Identifier: Apache-2.0 */
/* What a program that is linked against the fake CUDA runtime may ask and tell it, beyond CUDA. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* Sets an option. Each can also be set by the environment, as DSV4_SIM_GPU and so on, read at the
 * first call of any function.
 * - gpu: H200 (default), B200, B300, RTX_PRO_6000 or GB10; several, with commas, are several
 * devices; H200:3 is a slice of one with 3 SMs
 * - schedule: eager (default), lazy or random: when asynchronous work completes
 * - seed: of the random schedule
 * - budget: instructions that a warp runs before the next one
 * - check: 1 (default): reports of the checker fail the launch; report: they are only kept; 0: no
 *   checker
 * - count: 1: count opcodes, sectors and shared-memory wavefronts too, and keep DSV4_SIM_LAUNCHES
 * and DSV4_SIM_SCHEDULES
 * - clusters: all (default), or how many clusters of each grid run, the first ones; 0: launches are
 * checked, but nothing runs
 * Returns 0, or -1 for an unknown option or value. */
int dsv4_sim_set(const char* option, const char* value);

/* Why the last function that failed did; "" if none has. Kept until the next failure or reset. */
const char* dsv4_sim_last_error(void);

/* Forgets failures, also those that CUDA would never forget, counters, and texts. */
void dsv4_sim_reset(void);

/* Memory that was not allocated through CUDA but may be used as device memory. */
void dsv4_sim_register_memory(const void* data, size_t bytes);
void dsv4_sim_unregister_memory(const void* data);

struct dsv4_sim_counters {
  uint64_t launches, warp_instructions, lane_instructions;
  uint64_t global_load_bytes, global_store_bytes; /* by ld, st, atom, red */
  uint64_t cp_async_bytes, bulk_load_bytes, bulk_store_bytes, distributed_shared_bytes;
  uint64_t sectors;                                         /* with count */
  uint64_t shared_load_wavefronts, shared_store_wavefronts; /* with count */
  uint64_t matrix_flop;
  double matrix_cycles;
};
void dsv4_sim_last_launch(struct dsv4_sim_counters* counters);
void dsv4_sim_all_launches(
    struct dsv4_sim_counters* counters); /* since the start or the last reset */

/* What launches reported, all together. */
enum dsv4_sim_text_kind {
  DSV4_SIM_RACES,
  DSV4_SIM_UNANCHORED,
  DSV4_SIM_LINTS,
  /* With count, JSON in the order of the launches: {"kernel", "grid", "block", "cluster",
   * "counters"}; the counters are those of report.py. */
  DSV4_SIM_LAUNCHES,
  /* With count, in a simulated libdsv4, JSON: what its engines got of make_schedule (schedule.h).
   */
  DSV4_SIM_SCHEDULES
};
size_t dsv4_sim_num_texts(enum dsv4_sim_text_kind kind);
const char* dsv4_sim_text(enum dsv4_sim_text_kind kind, size_t index);

/* The PTX of the modules that kernels have been launched from, in the order of their first
 * launches; NULL for one that is not there. A module is one source file, compiled for one target.
 */
size_t dsv4_sim_num_modules(void);
const char* dsv4_sim_module_ptx(size_t module);

/* Runs other PTX in place of a module's from the next launch on, on all devices; NULL: its own
 * again. Its variables begin anew, and graphs captured before may not be launched any more. Returns
 * 0, or -1 if there is no such module or the simulator cannot decode the text. */
int dsv4_sim_replace_ptx(size_t module, const char* ptx);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
