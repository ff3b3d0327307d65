// SPDX-License-Identifier: Apache-2.0
#include "families.h"

#include <string_view>

#include "error.h"

namespace dsv4::simulator {
namespace {

bool has_type_of_float(const ptx::Statement& s) {
  for (const std::string& part : s.parts) {
    switch (ptx::type_of(part)) {
      case ptx::Type::kF16:
      case ptx::Type::kF16x2:
      case ptx::Type::kBF16:
      case ptx::Type::kBF16x2:
      case ptx::Type::kF32:
      case ptx::Type::kF32x2:
      case ptx::Type::kF64:
        return true;
      default:
        break;
    }
  }
  return false;
}

bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  for (std::string_view candidate : names) {
    if (name == candidate) return true;
  }
  return false;
}

bool starts_with(const std::string& s, std::string_view prefix) {
  return std::string_view(s).substr(0, prefix.size()) == prefix;
}

}  // namespace

Decode family_of(const ptx::Statement& s) {
  const std::string& name = s.parts[0];
  if (starts_with(s.opcode, "cp.async.bulk.tensor") ||
      starts_with(s.opcode, "cp.reduce.async.bulk.tensor") ||
      starts_with(s.opcode, "cp.async.bulk.prefetch.tensor") || name == "tensormap") {
    return decode_tensor_copy;
  }
  if (starts_with(s.opcode, "cp.async.bulk") || starts_with(s.opcode, "cp.reduce.async.bulk") ||
      starts_with(s.opcode, "st.async") || starts_with(s.opcode, "red.async")) {
    return decode_bulk_copy;
  }
  if (starts_with(s.opcode, "cp.async")) return decode_cp_async;
  if (starts_with(s.opcode, "bar.warp")) return decode_warp;
  if (is_one_of(name, {"ld", "st", "ldu", "prefetch", "prefetchu", "discard", "applypriority"}))
    return decode_load_store;
  if (is_one_of(name, {"atom", "red"})) return decode_atomic;
  if (is_one_of(name, {"shfl", "vote", "elect", "redux", "match", "activemask"}))
    return decode_warp;
  if (is_one_of(name, {"bar", "barrier", "fence", "membar"})) return decode_barrier;
  if (name == "mbarrier") return decode_mbarrier;
  if (name == "wgmma") return decode_wgmma;
  if (name == "mma") return decode_mma_sync;
  if (is_one_of(name, {"ldmatrix", "stmatrix", "movmatrix"})) return decode_matrix_move;
  if (name == "tcgen05") return decode_tcgen05;
  if (is_one_of(name, {"clusterlaunchcontrol", "griddepcontrol"})) return decode_cluster_launch;
  if (is_one_of(name, {"setmaxnreg", "nanosleep", "pmevent", "trap", "brkpt", "call"}))
    return decode_hint;
  if (is_one_of(name, {"mov", "cvta", "mapa", "isspacep", "createpolicy", "getctarank"}))
    return decode_move;
  if (name == "cvt") return decode_convert;
  if (is_one_of(name,
                {"add",  "sub",      "mul",   "fma",   "mad",   "div",  "rem",   "min",  "max",
                 "abs",  "neg",      "sqrt",  "rsqrt", "rcp",   "ex2",  "lg2",   "sin",  "cos",
                 "tanh", "copysign", "testp", "and",   "or",    "xor",  "not",   "cnot", "shl",
                 "shr",  "shf",      "lop3",  "prmt",  "bfe",   "bfi",  "bfind", "brev", "popc",
                 "clz",  "fns",      "sad",   "mul24", "mad24", "addc", "subc",  "madc", "dp4a",
                 "dp2a", "szext",    "bmsk",  "set",   "setp",  "selp", "slct",  "add3"})) {
    return has_type_of_float(s) && name != "selp" ? decode_float : decode_integer;
  }
  fail("no family simulates %s", s.opcode.c_str());
}

}  // namespace dsv4::simulator
