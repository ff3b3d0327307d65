// SPDX-License-Identifier: Apache-2.0
#include "error.h"

#include <cstdarg>
#include <cstdio>

namespace dsv4::simulator {
namespace {

std::string format_text(const char* format, va_list arguments) {
  char buffer[4096];
  std::vsnprintf(buffer, sizeof(buffer), format, arguments);
  return buffer;
}

}  // namespace

void fail(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const std::string message = format_text(format, arguments);
  va_end(arguments);
  throw Error(message);
}

std::string text(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const std::string message = format_text(format, arguments);
  va_end(arguments);
  return message;
}

}  // namespace dsv4::simulator
