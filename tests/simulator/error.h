// SPDX-License-Identifier: Apache-2.0
// The simulator stops at the first thing it does not know or that hardware would not define.
#pragma once

#include <stdexcept>
#include <string>

namespace dsv4::simulator {

// A program that breaks a rule, or an instruction that is not implemented. The scheduler adds
// where.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

[[noreturn]] __attribute__((format(printf, 1, 2))) void fail(const char* format, ...);

__attribute__((format(printf, 1, 2))) std::string text(const char* format, ...);

}  // namespace dsv4::simulator
