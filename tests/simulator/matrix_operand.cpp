// SPDX-License-Identifier: Apache-2.0
#include "matrix_operand.h"

#include <array>

#include "error.h"

namespace dsv4::simulator {

const uint8_t* granule_pointer(const Cta& cta, uint32_t address) {
  if (address < kSharedReserved || address + kGranuleBytes > cta.shared.size()) {
    fail("a matrix descriptor leads to shared address %#x; the memory of block %u is [%#x, %#zx)",
         address, cta.rank, kSharedReserved, cta.shared.size());
  }
  return cta.shared.data() + address;
}

void read_operand(const Cta& cta, const SharedOperand& operand, float* out, int row_stride,
                  int k_stride, int (*place)(int row)) {
  const int count = elements_per_granule(operand.format, operand.packing);
  operand.for_each_granule({}, [&](uint32_t address, int row, int step) {
    float elements[32];
    decode_granule(operand.format, operand.packing, granule_pointer(cta, address), elements);
    if (!operand.mn_major) {
      float* to = out + (place != nullptr ? place(row) : row) * row_stride + step * k_stride;
      for (int i = 0; i < count; ++i) to[i * k_stride] = elements[i];
    } else if (place != nullptr) {
      for (int i = 0; i < count; ++i) {
        out[place(row + i) * row_stride + step * k_stride] = elements[i];
      }
    } else {
      float* to = out + row * row_stride + step * k_stride;
      for (int i = 0; i < count; ++i) to[i * row_stride] = elements[i];
    }
  });
}

namespace {

// A set of granules of one block's shared memory, to name each once and neighbours together.
class GranuleSet {
 public:
  void insert(uint32_t address) {
    const uint32_t index = address / kGranuleBytes;
    words_[index / 64] |= uint64_t(1) << index % 64;
    first_ = std::min(first_, index / 64);
    last_ = std::max(last_, index / 64);
  }

  // Calls body(address, bytes) for each run of neighbours.
  template <class Body>
  void for_each_run(Body&& body) const {
    uint32_t begin = 0, length = 0;
    for (uint32_t w = first_; w <= last_; ++w) {
      for (uint64_t word = words_[w]; word != 0; word &= word - 1) {
        const uint32_t index = w * 64 + uint32_t(__builtin_ctzll(word));
        if (length > 0 && index == begin + length) {
          ++length;
          continue;
        }
        if (length > 0) body(begin * kGranuleBytes, length * kGranuleBytes);
        begin = index;
        length = 1;
      }
    }
    if (length > 0) body(begin * kGranuleBytes, length * kGranuleBytes);
  }

 private:
  static constexpr uint32_t kWords =
      (1 << 18) / kGranuleBytes / 64;  // descriptors have 18 address bits
  std::array<uint64_t, kWords> words_{};
  uint32_t first_ = kWords, last_ = 0;
};

}  // namespace

void note_operand_read(Checker& checker, Warp& issuer, const Instruction& by, Agent agent,
                       uint32_t rank, const SharedOperand& operand, const Part& part) {
  GranuleSet granules;
  const Cta& cta = *issuer.cluster().ctas[rank];
  operand.for_each_granule(part, [&](uint32_t address, int, int) {
    granule_pointer(cta, address);
    granules.insert(address);
  });
  granules.for_each_run([&](uint32_t address, uint32_t bytes) {
    checker.shared_async(issuer, by, agent, rank << 24 | address, bytes, false);
  });
}

std::vector<Register> decode_registers(Decoder& decoder, const ptx::Operand& operand, size_t count,
                                       const char* name, bool written, int bytes) {
  std::vector<Register> registers = decoder.list(operand, bytes);
  if (registers.size() != count) {
    decoder.unknown(
        text("%s: expected %zu registers, got %zu", name, count, registers.size()).c_str());
  }
  for (size_t i = 0; i < count; ++i) {
    const bool is_vector = operand.kind == ptx::Operand::Kind::kVector;
    const ptx::Operand& element = is_vector ? operand.elements[i] : operand;
    if (!registers[i] || (written && element.kind != ptx::Operand::Kind::kRegister)) {
      decoder.unknown(text("%s: element %zu is no register", name, i).c_str());
    }
  }
  return registers;
}

void expect_whole_warp(LaneMask lanes) {
  if (lanes != kAllLanes) fail("all 32 lanes of the warp must execute this, got %#010x", lanes);
}

namespace {

template <class T>
T uniform(Warp& warp, Register r, const char* what) {
  const T* values = warp.lanes<T>(r);
  for (int lane = 1; lane < kLanes; ++lane) {
    if (values[lane] != values[0]) {
      fail("%s differs between lanes: %#llx in lane 0, %#llx in lane %d", what,
           static_cast<unsigned long long>(values[0]),
           static_cast<unsigned long long>(values[lane]), lane);
    }
  }
  return values[0];
}

}  // namespace

uint32_t uniform32(Warp& warp, Register r, const char* what) {
  return uniform<uint32_t>(warp, r, what);
}
uint64_t uniform64(Warp& warp, Register r, const char* what) {
  return uniform<uint64_t>(warp, r, what);
}

}  // namespace dsv4::simulator
