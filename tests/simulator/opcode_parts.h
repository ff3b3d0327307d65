// SPDX-License-Identifier: Apache-2.0
// The parts of an opcode behind its name: a decoder takes those it knows, and what is left is an
// error.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "program.h"

namespace dsv4::simulator {

class OpcodeParts {
 public:
  explicit OpcodeParts(const Decoder& decoder)
      : decoder_(decoder),
        left_(decoder.statement().parts.begin() + 1, decoder.statement().parts.end()) {}

  bool take(std::string_view part) {
    const auto found = std::find(left_.begin(), left_.end(), part);
    if (found == left_.end()) return false;
    left_.erase(found);
    return true;
  }

  // Takes the first of `parts` that is there and returns its index, or -1.
  int take_one_of(std::initializer_list<std::string_view> parts) {
    int index = 0;
    for (std::string_view part : parts) {
      if (take(part)) return index;
      ++index;
    }
    return -1;
  }

  // The first part that names a type.
  ptx::Type take_type() {
    const ptx::Type type = take_type_or_none();
    if (type == ptx::Type::kNone) decoder_.unknown("the opcode names no type");
    return type;
  }
  ptx::Type take_type_or_none() {
    for (auto part = left_.begin(); part != left_.end(); ++part) {
      const ptx::Type type = ptx::type_of(*part);
      if (type == ptx::Type::kNone) continue;
      left_.erase(part);
      return type;
    }
    return ptx::Type::kNone;
  }

  // The first part left, whatever it is; empty if there is none.
  std::string take_next() {
    if (left_.empty()) return "";
    std::string part = left_.front();
    left_.erase(left_.begin());
    return part;
  }

  void expect_none_left() const {
    if (!left_.empty()) decoder_.unknown(("." + left_.front() + " is not simulated here").c_str());
  }

 private:
  const Decoder& decoder_;
  std::vector<std::string> left_;
};

}  // namespace dsv4::simulator
