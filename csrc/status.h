// SPDX-License-Identifier: Apache-2.0
// Building a Status. printf-style, because a Status owns a fixed buffer: no allocation, no
// exception.
#pragma once

#include <cstdarg>
#include <cstdio>

#include "dsv4/dsv4.h"

namespace dsv4 {

__attribute__((format(printf, 2, 3))) inline Status make_status(StatusCode code, const char* format,
                                                                ...) {
  Status status;
  status.code = code;
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(status.message, sizeof(status.message), format, arguments);
  va_end(arguments);
  return status;
}

// Returns from the calling function with a failed status: DSV4_FAIL(kInvalidValue, "heads: ...",
// ...).
#define DSV4_FAIL(code, ...) return ::dsv4::make_status(::dsv4::StatusCode::code, __VA_ARGS__)

// Passes a failed status on.
#define DSV4_RETURN_IF_FAILED(expression)                                     \
  do {                                                                        \
    if (::dsv4::Status status_ = (expression); !status_.ok()) return status_; \
  } while (0)

}  // namespace dsv4
