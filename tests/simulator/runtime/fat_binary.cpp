// SPDX-License-Identifier: Apache-2.0
#include "runtime/fat_binary.h"

#include <cstdint>
#include <cstring>

#include "error.h"

namespace dsv4::simulator::cuda {
namespace {

constexpr uint32_t kWrapperMagic = 0x466243B1;
constexpr uint32_t kImageMagic = 0xBA55ED50;

// The format is not documented; these fields were found by looking at what nvcc 13.0 writes.
struct Wrapper {
  uint32_t magic, version;
  const uint8_t* image;
  const void* file;
};
struct ImageHeader {
  uint32_t magic;
  uint16_t version, header_bytes;
  uint64_t bytes;  // behind the header
};
struct EntryHeader {
  uint16_t kind, version;
  uint32_t header_bytes;
  uint64_t bytes;  // behind the header
  uint32_t compressed_bytes, reserved;
  uint16_t minor, major;
  uint32_t architecture, name_offset, name_bytes;
  uint64_t flags;
};
constexpr uint16_t kPtx = 1;
constexpr uint64_t kCompressed = 0x2000 | 0x8000;  // LZ4, zstd

std::string target_of(const std::string& ptx) {
  const size_t directive = ptx.find(".target");
  if (directive == std::string::npos) return "";
  const size_t begin = ptx.find_first_not_of(" \t", directive + std::strlen(".target"));
  return ptx.substr(begin, ptx.find_first_of(", \t\r\n", begin) - begin);
}

}  // namespace

FatBinary read_fat_binary(const void* pointer) {
  FatBinary result;
  Wrapper wrapper;
  std::memcpy(&wrapper, pointer, sizeof(wrapper));
  ImageHeader header{};
  if (wrapper.magic == kWrapperMagic) std::memcpy(&header, wrapper.image, sizeof(header));
  if (header.magic != kImageMagic) {
    result.problem = "the fat binary is of an unknown format";
    return result;
  }
  const uint8_t* at = wrapper.image + header.header_bytes;
  const uint8_t* const end = at + header.bytes;
  while (at < end) {
    EntryHeader entry;
    std::memcpy(&entry, at, sizeof(entry));
    const uint8_t* data = at + entry.header_bytes;
    at = data + entry.bytes;
    if (entry.kind != kPtx) continue;
    if (entry.flags & kCompressed) {
      result.problem = "the PTX of the fat binary is compressed: compile with nvcc -no-compress";
      continue;
    }
    const auto* text = reinterpret_cast<const char*>(data);
    std::string ptx(text, strnlen(text, entry.bytes));
    std::string target = target_of(ptx);
    result.ptx.push_back({std::move(target), std::move(ptx)});
  }
  if (result.ptx.empty() && result.problem.empty()) {
    result.problem =
        "the fat binary holds no PTX: compile with nvcc -gencode arch=compute_X,code=compute_X";
  }
  return result;
}

}  // namespace dsv4::simulator::cuda
