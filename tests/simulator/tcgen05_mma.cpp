// SPDX-License-Identifier: Apache-2.0
// tcgen05.mma: matrix multiplication with the accumulator in tensor memory.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#tcgen05-mma-instructions
//
// Layouts. D has M rows; each block of a pair owns half of them. What a block computes is made of
// strips, each some columns of D on some lanes of tensor memory:
//   A, D  128 rows on 128 lanes                                 one strip of N columns
//   F     64 rows, row m on lane m / 16 * 32 + m % 16 (+ 16)    one strip of N columns
//   B, E  64 rows on lanes 0..63 and again on 64..127           two strips of N / 2 columns
//   G     32 rows on each quarter of the lanes                  four strips of N / 4 columns
// All strips of a block multiply the same rows of A. From tensor memory, though, each strip reads A
// from its own lanes, so that A must stand there as often as there are strips.
#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "checker.h"
#include "error.h"
#include "matrix_multiply.h"
#include "matrix_operand.h"
#include "number_formats.h"
#include "tcgen05.h"

namespace dsv4::simulator {
namespace {

constexpr int kMaxRows = 128;       // of a block
constexpr int kMaxColumns = 256;    // N
constexpr int kMaxSteps = 64;       // K
constexpr int kMaxScales = 4;       // of a row
constexpr int kOperandColumns = 8;  // of A in tensor memory: 32 bytes, whatever the format

enum class Kind : uint8_t { kF16, kTF32, kF8F6F4, kI8, kMXF8F6F4, kMXF4, kMXF4NVF4 };
constexpr const char* kKindNames[] = {"f16",      "tf32", "f8f6f4",  "i8",
                                      "mxf8f6f4", "mxf4", "mxf4nvf4"};

// What the opcode says; kept in Instruction::imm[0]. Registers: r[0] D, r[1] A, r[2] descriptor of
// B, r[3] instruction descriptor, r[4] enable-input-d, r[5] and r[6] scales of A and B, r[7]
// zero-column mask; list: disable-output-lane. imm[1]: scale-input-d.
struct Form {
  Kind kind;
  uint8_t cta_group;
  uint8_t scales;  // of a row: 0 without block scaling
  bool weight_stationary : 1, a_in_tensor_memory : 1, not_enable : 1;
};
static_assert(sizeof(Form) <= sizeof(int64_t));

Form form_of(const Instruction& instruction) {
  Form form;
  std::memcpy(&form, &instruction.imm[0], sizeof(form));
  return form;
}

bool is_block_scaled(Kind kind) { return kind >= Kind::kMXF8F6F4; }
bool is_packed_fp4(Kind kind) { return kind >= Kind::kMXF4; }

// --- instruction descriptor ---------------------------------------------------------------------

struct Descriptor {
  int rows, columns, steps;  // M, N, K
  ElementFormat a, b;
  AccumulatorFormat d;
  bool negate_a, negate_b, transpose_a, transpose_b, saturate;
  bool ue4m3;            // scales
  int scale_a, scale_b;  // first byte of the scales in their words
};

class DescriptorBits {
 public:
  explicit DescriptorBits(uint32_t bits) : bits_(bits) {}
  uint32_t get(int first, int count) const { return bits_ >> first & ((1u << count) - 1); }
  void expect_zero(int first, int count, const char* field) const {
    if (get(first, count) != 0) {
      fail("instruction descriptor %#010x: %s: expected 0, got %u", bits_, field,
           get(first, count));
    }
  }
  [[noreturn]] void bad(const char* field, uint32_t value) const {
    fail("instruction descriptor %#010x: %s: %u is not legal here", bits_, field, value);
  }

 private:
  uint32_t bits_;
};

ElementFormat element_format(Kind kind, const DescriptorBits& bits, int first, const char* field) {
  using F = ElementFormat;
  const uint32_t value = bits.get(first, first == 10 && is_packed_fp4(kind) ? 2 : 3);
  switch (kind) {
    case Kind::kF16:
      if (value <= 1) return value == 0 ? F::kF16 : F::kBF16;
      break;
    case Kind::kTF32:
      if (value == 2) return F::kTF32;
      break;
    case Kind::kI8:
      if (value <= 1) return value == 0 ? F::kU8 : F::kS8;
      break;
    case Kind::kF8F6F4:
    case Kind::kMXF8F6F4: {
      static constexpr F kFormats[] = {F::kE4M3, F::kE5M2, F::kE5M2, F::kE2M3, F::kE3M2, F::kE2M1};
      if (value <= 5 && value != 2) return kFormats[value];
      break;
    }
    case Kind::kMXF4:
    case Kind::kMXF4NVF4:
      if (value == 1) return F::kE2M1;
      break;
  }
  bits.bad(field, value);
}

AccumulatorFormat accumulator_format(Kind kind, const DescriptorBits& bits, ElementFormat a) {
  const uint32_t value = bits.get(4, 2);
  if (kind == Kind::kI8) {
    if (value == 2) return AccumulatorFormat::kS32;
  } else {
    if (value == 1) return AccumulatorFormat::kF32;
    const bool half = kind == Kind::kF8F6F4 || (kind == Kind::kF16 && a == ElementFormat::kF16);
    if (value == 0 && half) return AccumulatorFormat::kF16;
  }
  bits.bad("type of D", value);
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#tcgen05-instruction-descriptor
Descriptor read_descriptor(const Form& form, uint32_t value) {
  const DescriptorBits bits(value);
  Descriptor d{};
  bits.expect_zero(2, 1, "sparsity (bit 2)");
  bits.expect_zero(0, 2, "bits 0-1");
  bits.expect_zero(6, 1, "bit 6");
  d.a = element_format(form.kind, bits, 7, "type of A");
  d.b = element_format(form.kind, bits, 10, "type of B");
  d.negate_a = bits.get(13, 1);
  d.negate_b = bits.get(14, 1);
  d.transpose_a = bits.get(15, 1);
  d.transpose_b = bits.get(16, 1);
  d.columns = int(bits.get(17, 6)) * 8;
  d.rows = int(bits.get(24, 5)) * 16;
  d.steps = is_packed_fp4(form.kind)   ? 64
            : form.kind == Kind::kF16  ? 16
            : form.kind == Kind::kTF32 ? 8
                                       : 32;
  if (is_block_scaled(form.kind)) {
    bits.expect_zero(3, 1, "bit 3");
    if (is_packed_fp4(form.kind)) bits.expect_zero(12, 1, "bit 12");
    d.d = AccumulatorFormat::kF32;
    d.scale_b = int(bits.get(4, 2));
    d.scale_a = int(bits.get(29, 2));
    d.ue4m3 = bits.get(23, 1) == 0;
    if (d.ue4m3 && (form.kind != Kind::kMXF4NVF4 || form.scales != 4)) {
      bits.bad("type of scales", 0);
    }
    bits.expect_zero(31, 1, "K = 96 (bit 31)");
    for (int first : {d.scale_a, d.scale_b}) {
      if (first % form.scales != 0) bits.bad("first scale", uint32_t(first));
    }
  } else {
    d.saturate = bits.get(3, 1);
    if (d.saturate && form.kind != Kind::kI8) bits.bad("saturate", 1);
    d.d = accumulator_format(form.kind, bits, d.a);
    bits.expect_zero(23, 1, "bit 23");
    bits.expect_zero(29, 1, "bit 29");
    bits.expect_zero(30, 2, "shift of B (bits 30-31)");
  }
  if (form.kind == Kind::kF16 && d.a != d.b) bits.bad("type of B, other than A's", bits.get(10, 3));
  if (form.kind == Kind::kI8 && (d.negate_a || d.negate_b)) bits.bad("negation of integers", 1);
  return d;
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#tcgen05-kind-shapes
void expect_legal_shape(const Form& form, const Descriptor& d) {
  const int m = d.rows, n = d.columns;
  const bool pair = form.cta_group == 2;
  bool legal_m, legal_n;
  if (form.weight_stationary) {
    legal_m = m == 32 || m == 64 || m == 128;
    legal_n = n == 64 || n == 128 || n == 256;
  } else {
    legal_m = m == (pair ? 256 : 128) ||
              (m == (pair ? 128 : 64) && (pair || !is_block_scaled(form.kind)));
    int step = pair ? 16 : 8;
    if (form.kind == Kind::kI8) step = pair ? 32 : n > 32 ? 16 : 8;
    const bool bytes = bits_of(d.b) <= 8;
    if (bytes && d.transpose_b) step = std::max(step, pair ? 32 : 16);
    legal_n = n >= step && n <= kMaxColumns && n % step == 0;
  }
  if (!legal_m || !legal_n) {
    fail("kind::%s cta_group::%d%s: no shape M %d N %d", kKindNames[int(form.kind)], form.cta_group,
         form.weight_stationary ? " .ws" : "", m, n);
  }
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#tcgen05-matrix-layout-organization-valid-comb-type-size-majorness-swizzle
void expect_legal_layout(const SharedOperand& operand, const char* name) {
  const bool atoms = operand.descriptor.swizzle() == Swizzle::k128In32ByteAtoms;
  if (!operand.mn_major) {
    if (atoms) fail("%s: the 128-byte swizzle in 32-byte atoms is for transposed tf32", name);
    return;
  }
  if (bits_of(operand.format) < 8) {
    fail("%s: elements of %s cannot be transposed", name, name_of(operand.format));
  }
  if ((bits_of(operand.format) == 32) != atoms) {
    fail("%s: %s transposed %s the 128-byte swizzle in 32-byte atoms", name,
         name_of(operand.format), atoms ? "cannot use" : "needs");
  }
}

// --- strips -------------------------------------------------------------------------------------

struct Strip {
  int first_lane;
  bool spread;  // layout F: 16 rows in each quarter
  int rows, first_column, columns;

  int lane(int row) const { return first_lane + (spread ? row / 16 * 32 + row % 16 : row); }
};

// The strips of one block. `half` is 16 for the upper halves of the quarters in layout F.
std::vector<Strip> strips_of(const Form& form, const Descriptor& d, int half) {
  const int rows = d.rows / form.cta_group, n = d.columns;
  const bool split = form.weight_stationary || form.cta_group == 2;
  if (rows == 128) return {{0, false, 128, 0, n}};
  if (rows == 64 && !split) return {{half, true, 64, 0, n}};
  std::vector<Strip> strips;
  const int count = kTmemLanes / rows;
  for (int s = 0; s < count; ++s) {
    strips.push_back({s * rows, false, rows, s * n / count, n / count});
  }
  return strips;
}

// --- one operation ------------------------------------------------------------------------------

struct Operation {
  Form form;
  Descriptor descriptor;
  CtaGroup blocks;
  int d_column;
  int a_column = 0;           // of A in tensor memory
  uint64_t a_descriptor = 0;  // of A in shared memory
  uint64_t b_descriptor;
  int scale_a_column = 0, scale_b_column = 0;
  std::vector<Strip> strips;
  std::array<uint32_t, 8> disabled_lanes{};
  Update update;

  Packing packing() const { return is_packed_fp4(form.kind) ? Packing::kDense : Packing::kPadded; }
  // What one block of a pair holds: half of the rows of A, half of those of B.
  SharedOperand a() const {
    return {MatrixDescriptor::of_tcgen05(a_descriptor),
            descriptor.a,
            packing(),
            descriptor.transpose_a,
            descriptor.rows / blocks.count,
            descriptor.steps};
  }
  SharedOperand b() const {
    return {MatrixDescriptor::of_tcgen05(b_descriptor),
            descriptor.b,
            packing(),
            descriptor.transpose_b,
            descriptor.columns / blocks.count,
            descriptor.steps};
  }
  // In layout B the strips of a block have different columns of B, and each the scales of its own
  // in its two quarters of the lanes.
  bool has_split_scales() const { return form.cta_group == 2 && descriptor.rows == 128; }
  int num_scale_a_columns() const { return descriptor.rows / blocks.count / 32; }
  int num_scale_b_columns() const {
    const int columns = has_split_scales() ? descriptor.columns / 2 : descriptor.columns;
    return (columns + 31) / 32;
  }
  bool is_disabled(int block, int lane) const {
    return disabled_lanes[size_t(4 * block + lane / 32)] >> lane % 32 & 1;
  }
};

// A from the lanes of a strip, elements one after the other in the words of a lane.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#tcgen05-packing-formats-mat-a-b
void read_a_from_tensor_memory(Cta& cta, const Operation& operation, const Strip& strip, float* a) {
  const Descriptor& d = operation.descriptor;
  const int elements = d.steps / kOperandColumns;
  for (int row = 0; row < strip.rows; ++row) {
    const uint32_t* words = tensor_cell(cta, strip.lane(row), operation.a_column);
    for (int c = 0; c < kOperandColumns; ++c) {
      decode_word(d.a, Packing::kDense, words[c], a + row * d.steps + c * elements);
    }
  }
}

float scale_value(const Descriptor& d, uint32_t word, int byte) {
  const uint8_t bits = uint8_t(word >> 8 * byte);
  return d.ue4m3 ? from_e4m3(bits & 0x7F) : from_ue8m0(bits);
}

// The scales of row m of A: lane m % 32 of the row's own quarter, column m / 32.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#tcgen05-mma-scale-factor-a
void read_scales_of_a(Cta& cta, const Operation& operation, const Strip& strip,
                      float (*scales)[kMaxScales]) {
  const Descriptor& d = operation.descriptor;
  for (int row = 0; row < strip.rows; ++row) {
    const int lane = strip.lane(row) / 32 * 32 + row % 32;
    const uint32_t word = *tensor_cell(cta, lane, operation.scale_a_column + row / 32);
    for (int s = 0; s < operation.form.scales; ++s) {
      scales[row][s] = scale_value(d, word, d.scale_a + s);
    }
  }
}

// The scales of column n of B: lane n % 32 of every quarter that the strip covers, column n / 32,
// where n counts from the strip's first column if the strips of the block have their own scales.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#tcgen05-mma-scale-factor-b
void read_scales_of_b(Cta& cta, const Operation& operation, const Strip& strip,
                      float (*scales)[kMaxColumns]) {
  const Descriptor& d = operation.descriptor;
  for (int column = 0; column < strip.columns; ++column) {
    const int n = operation.has_split_scales() ? column : strip.first_column + column;
    const int quarter = strip.first_lane / 32, num_quarters = strip.rows / 32;
    const auto word_of = [&](int q) {
      return *tensor_cell(cta, 32 * q + n % 32, operation.scale_b_column + n / 32);
    };
    for (int s = 0; s < operation.form.scales; ++s) {
      scales[s][column] = scale_value(d, word_of(quarter), d.scale_b + s);
      for (int q = quarter + 1; q < quarter + num_quarters; ++q) {
        const float other = scale_value(d, word_of(q), d.scale_b + s);
        if (bit_cast<uint32_t>(other) != bit_cast<uint32_t>(scales[s][column])) {
          fail("tcgen05.mma: the scales of column %d of B differ between quarters %d and %d", n,
               quarter, q);
        }
      }
    }
  }
}

// One strip: rows of A times its columns of B, added to D. A few rows at a time, so that sums stay
// near.
void multiply_strip(Cta& cta, int block, const Operation& operation, const Strip& strip,
                    const float* a, const float* b) {
  constexpr int kRowsAtOnce = 4;
  const Descriptor& d = operation.descriptor;
  const int scales = operation.form.scales, columns = strip.columns;
  static thread_local float sums[kRowsAtOnce * kMaxColumns], part[kRowsAtOnce * kMaxColumns];
  static thread_local float scales_a[kMaxRows][kMaxScales], scales_b[kMaxScales][kMaxColumns];
  if (scales > 0) {
    read_scales_of_a(cta, operation, strip, scales_a);
    read_scales_of_b(cta, operation, strip, scales_b);
  }
  const float* b_of_strip = b + strip.first_column;
  for (int first = 0; first < strip.rows; first += kRowsAtOnce) {
    const float* a_of_rows = a + first * d.steps;
    if (scales == 0) {
      multiply(a_of_rows, d.steps, b_of_strip, d.columns, sums, columns, kRowsAtOnce, columns,
               d.steps);
    } else {
      std::fill_n(sums, kRowsAtOnce * columns, 0.0f);
      const int steps = d.steps / scales;
      for (int s = 0; s < scales; ++s) {
        multiply(a_of_rows + s * steps, d.steps, b_of_strip + s * steps * d.columns, d.columns,
                 part, columns, kRowsAtOnce, columns, steps);
        for (int r = 0; r < kRowsAtOnce; ++r) {
          for (int c = 0; c < columns; ++c) {
            sums[r * columns + c] +=
                part[r * columns + c] * scales_a[first + r][s] * scales_b[s][c];
          }
        }
      }
    }
    for (int r = 0; r < kRowsAtOnce; ++r) {
      const int lane = strip.lane(first + r);
      if (operation.is_disabled(block, lane)) continue;
      update_accumulators(operation.update, sums + r * columns,
                          tensor_cell(cta, lane, operation.d_column), columns);
    }
  }
}

void multiply_accumulate(const Operation& operation) {
  const Descriptor& d = operation.descriptor;
  static thread_local float a[kMaxRows * kMaxSteps], b[kMaxSteps * kMaxColumns];
  const SharedOperand b_operand = operation.b();
  for (int block = 0; block < operation.blocks.count; ++block) {
    const Cta& cta = *operation.blocks.ctas[size_t(block)];
    read_operand(cta, b_operand, b + block * b_operand.rows, 1, d.columns);
  }
  for (int block = 0; block < operation.blocks.count; ++block) {
    Cta& cta = *operation.blocks.ctas[size_t(block)];
    if (!operation.form.a_in_tensor_memory) read_operand(cta, operation.a(), a, d.steps, 1);
    for (const Strip& strip : operation.strips) {
      if (operation.form.a_in_tensor_memory) read_a_from_tensor_memory(cta, operation, strip, a);
      multiply_strip(cta, block, operation, strip, a, b);
    }
  }
}

// --- the checker and the counters ---------------------------------------------------------------

// Lanes of a strip, in pieces that are contiguous.
template <class Body>
void for_each_lane_range(const Strip& strip, Body&& body) {
  if (!strip.spread) {
    body(strip.first_lane, strip.rows);
  } else {
    for (int row = 0; row < strip.rows; row += 16) body(strip.lane(row), 16);
  }
}

void note_accesses(Checker& checker, Warp& warp, const Instruction& i, const Operation& operation) {
  const Agent agent = checker.tensor_pipe_agent(warp);
  for (int block = 0; block < operation.blocks.count; ++block) {
    const uint32_t rank = operation.blocks.ctas[size_t(block)]->rank;
    note_operand_read(checker, warp, i, agent, rank, operation.b());
    if (!operation.form.a_in_tensor_memory) {
      note_operand_read(checker, warp, i, agent, rank, operation.a());
    }
    for (const Strip& strip : operation.strips) {
      for_each_lane_range(strip, [&](int lane, int lanes) {
        if (operation.form.a_in_tensor_memory) {
          checker.tensor(warp, i, agent, rank, lane, lanes, operation.a_column, kOperandColumns,
                         false);
        }
        checker.tensor(warp, i, agent, rank, lane, lanes, operation.d_column, strip.columns, true);
      });
    }
    if (operation.form.scales > 0) {
      checker.tensor(warp, i, agent, rank, 0, kTmemLanes, operation.scale_a_column,
                     operation.num_scale_a_columns(), false);
      checker.tensor(warp, i, agent, rank, 0, kTmemLanes, operation.scale_b_column,
                     operation.num_scale_b_columns(), false);
    }
  }
}

std::string shape_name(const Operation& operation) {
  const Form& form = operation.form;
  return text("tcgen05.%s.cg%d%s M%d N%d %s", kKindNames[int(form.kind)], form.cta_group,
              form.weight_stationary ? ".ws" : "", operation.descriptor.rows,
              operation.descriptor.columns, form.a_in_tensor_memory ? "TS" : "SS");
}

// Whether public kernels with known results have run this form.
bool is_anchored(const Operation& operation) {
  const Form& form = operation.form;
  const Descriptor& d = operation.descriptor;
  const bool in_tensor_memory = form.a_in_tensor_memory, pair = form.cta_group == 2;
  const auto& disabled = operation.disabled_lanes;
  if (d.d != AccumulatorFormat::kF32 || d.negate_a || d.negate_b ||
      operation.update.input_scale != 1.0f ||
      std::any_of(disabled.begin(), disabled.end(), [](uint32_t word) { return word != 0; })) {
    return false;
  }
  const bool e4m3 = d.a == ElementFormat::kE4M3 && d.b == ElementFormat::kE4M3;
  switch (form.kind) {
    case Kind::kF16:
      if (form.weight_stationary) return d.rows == 64;
      return !pair || d.rows == 128 || !in_tensor_memory;
    case Kind::kTF32:
      return !pair && !form.weight_stationary && d.rows == 64 && in_tensor_memory && !d.transpose_b;
    case Kind::kF8F6F4:
      if (!e4m3) return false;
      if (form.weight_stationary) return d.rows == 64 && !in_tensor_memory;
      return !pair || (d.rows == 128 && !in_tensor_memory);
    case Kind::kMXF8F6F4:
      return e4m3 && !in_tensor_memory && d.rows == (pair ? 256 : 128);
    default:
      return false;
  }
}

void count(Warp& warp, const Operation& operation) {
  const Descriptor& d = operation.descriptor;
  const std::string shape = shape_name(operation);
  const int rate_bits = is_packed_fp4(operation.form.kind) ? 4 : std::max(8, bits_of(d.a));
  count_matrix_instruction(warp.counters(), shape, TensorCore::kSm100, rate_bits,
                           2ull * uint64_t(d.rows) * uint64_t(d.columns) * uint64_t(d.steps));
  if (is_anchored(operation)) return;
  warp.launch().unanchored.insert(
      text("%s %s x %s -> %s", shape.c_str(), name_of(d.a), name_of(d.b), name_of(d.d)));
}

// --- issue --------------------------------------------------------------------------------------

// Where D or A begins: lane 0, or lane 16 too in layout F.
int first_lane(uint32_t address, bool spread, const char* name) {
  const int lane = tensor_lane(address);
  if (lane != 0 && !(spread && lane == 16)) {
    fail("tcgen05.mma: %s begins at lane %d; expected %s", name, lane, spread ? "0 or 16" : "0");
  }
  return lane;
}

Operation operation_of(Warp& warp, const Instruction& i, int lane) {
  const auto word = [&](int r) { return warp.lanes<uint32_t>(i.r[size_t(r)])[lane]; };
  const auto wide = [&](int r) { return warp.lanes<uint64_t>(i.r[size_t(r)])[lane]; };
  Operation operation;
  operation.form = form_of(i);
  const Form& form = operation.form;
  operation.descriptor = read_descriptor(form, word(3));
  const Descriptor& d = operation.descriptor;
  expect_legal_shape(form, d);
  operation.blocks = cta_group_of(warp, form.cta_group);
  const bool spread = d.rows == 64 && !form.weight_stationary;

  const int d_lane = first_lane(word(0), spread, "D");
  operation.d_column = tensor_column(word(0));
  operation.strips = strips_of(form, d, d_lane);
  if (form.a_in_tensor_memory) {
    if (d.transpose_a) fail("tcgen05.mma: A in tensor memory cannot be transposed");
    if (bits_of(d.a) < 8 && !is_packed_fp4(form.kind)) {
      fail("tcgen05.mma: A of %s in tensor memory is not simulated", name_of(d.a));
    }
    if (first_lane(word(1), spread, "A") != d_lane) {
      fail("tcgen05.mma: A and D begin at different lanes");
    }
    operation.a_column = tensor_column(word(1));
  } else {
    operation.a_descriptor = wide(1);
    expect_legal_layout(operation.a(), "A");
  }
  operation.b_descriptor = wide(2);
  expect_legal_layout(operation.b(), "B");
  if (is_packed_fp4(form.kind) && (d.transpose_a || d.transpose_b)) {
    fail("tcgen05.mma: kind::%s cannot transpose", kKindNames[int(form.kind)]);
  }
  if (form.scales > 0) {
    for (int r : {5, 6}) {
      if (tensor_lane(word(r)) != 0) {
        fail("tcgen05.mma: scales begin at lane %d", tensor_lane(word(r)));
      }
    }
    operation.scale_a_column = tensor_column(word(5));
    operation.scale_b_column = tensor_column(word(6));
  }
  if (i.r[7] && wide(7) != 0) fail("tcgen05.mma.ws: a zero-column mask is not simulated");
  for (size_t m = 0; m < i.list.size(); ++m) {
    operation.disabled_lanes[m] = warp.lanes<uint32_t>(i.list[m])[lane];
  }
  const bool enabled = (warp.predicate(i.r[4]) >> lane & 1) != form.not_enable;
  operation.update = {d.d, enabled, d.negate_a != d.negate_b, d.saturate,
                      bit_cast<float>(uint32_t(127 - i.imm[1]) << 23)};
  return operation;
}

void expect_allocated(const Operation& operation) {
  for (int block = 0; block < operation.blocks.count; ++block) {
    Cta& cta = *operation.blocks.ctas[size_t(block)];
    expect_columns(cta, operation.d_column, operation.strips[0].columns, "tcgen05.mma: D");
    if (operation.form.a_in_tensor_memory) {
      expect_columns(cta, operation.a_column, kOperandColumns, "tcgen05.mma: A");
    }
    if (operation.form.scales > 0) {
      expect_columns(cta, operation.scale_a_column, operation.num_scale_a_columns(),
                     "tcgen05.mma: scales of A");
      expect_columns(cta, operation.scale_b_column, operation.num_scale_b_columns(),
                     "tcgen05.mma: scales of B");
    }
  }
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#tcgen05-mma-instructions-mma
// https://docs.nvidia.com/cuda/parallel-thread-execution/#tcgen05-mma-instructions-mma-ws
Outcome execute_mma(Warp& warp, const Instruction& i, LaneMask lanes) {
  expect_cta_group(warp, form_of(i).cta_group);
  for_lanes(lanes, [&](int lane) {
    const Operation operation = operation_of(warp, i, lane);
    expect_allocated(operation);
    if (Checker* checker = warp.checker()) note_accesses(*checker, warp, i, operation);
    count(warp, operation);
    warp.cluster().async.post_in_order(int(warp.cta->rank),
                                       [operation] { multiply_accumulate(operation); });
  });
  return Outcome::kDone;
}

// --- decoding -----------------------------------------------------------------------------------

// Scales of a row, from .scale_vec or .block.
int take_scales(const Decoder& d, OpcodeParts& parts, Kind kind) {
  if (!parts.take("block_scale")) d.unknown("expected .block_scale");
  const int given =
      parts.take_one_of({"scale_vec::1X", "scale_vec::2X", "scale_vec::4X", "block32", "block16"});
  const bool one = given == 0, two = given == 1, four = given == 2 || given == 4, b32 = given == 3;
  switch (kind) {
    case Kind::kMXF8F6F4:
      if (given < 0 || one || b32) return 1;
      break;
    case Kind::kMXF4:
      if (given < 0 || two || b32) return 2;
      break;
    default:
      if (two || b32) return 2;
      if (four) return 4;
  }
  d.unknown("this number of scales is not legal here");
}

// Hints, which do not change results: whether A, or B with .ws, may stay in the collector buffer.
void take_collector(OpcodeParts& parts, bool weight_stationary) {
  for (const char* operation : {"fill", "use", "lastuse", "discard"}) {
    if (!weight_stationary) {
      parts.take(std::string("collector::a::") + operation);
      continue;
    }
    for (int buffer = 0; buffer < 4; ++buffer) {
      parts.take(text("collector::b%d::%s", buffer, operation));
    }
  }
}

}  // namespace

void decode_tcgen05_mma(Decoder& d, Instruction& i, OpcodeParts& parts) {
  Form form{};
  form.weight_stationary = parts.take("ws");
  form.cta_group = uint8_t(take_cta_group(d, parts));
  const int kind = parts.take_one_of({"kind::f16", "kind::tf32", "kind::f8f6f4", "kind::i8",
                                      "kind::mxf8f6f4", "kind::mxf4", "kind::mxf4nvf4"});
  if (kind < 0) d.unknown();
  form.kind = Kind(kind);
  const bool scaled = is_block_scaled(form.kind);
  if (form.weight_stationary && (scaled || form.cta_group != 1)) d.unknown();
  if (scaled) form.scales = uint8_t(take_scales(d, parts, form.kind));
  take_collector(parts, form.weight_stationary);

  // [d], a | [a], b, idesc {, {lanes}} {, [scale a], [scale b]}, enable {, scale-input-d | zero
  // mask}
  d.expect_operands(5, 7);
  i.r[0] = decode_tensor_address(d, d.operand(0));
  form.a_in_tensor_memory = d.operand(1).kind == ptx::Operand::Kind::kAddress;
  i.r[1] = form.a_in_tensor_memory ? decode_tensor_address(d, d.operand(1)) : d.r64(1);
  i.r[2] = d.r64(2);
  i.r[3] = d.r32(3);
  size_t next = 4;
  if (d.operand(next).kind == ptx::Operand::Kind::kVector) {
    if (scaled || form.weight_stationary) d.unknown("disable-output-lane is not legal here");
    const size_t words = 4 * form.cta_group;
    i.list = decode_registers(d, d.operand(next++), words, "disable-output-lane", false);
  }
  if (scaled) {
    i.r[5] = decode_tensor_address(d, d.operand(next++));
    i.r[6] = decode_tensor_address(d, d.operand(next++));
  }
  form.not_enable = d.operand(next).negated;
  i.r[4] = d.predicate(next++);
  if (next < d.num_operands()) {
    if (form.weight_stationary) {
      i.r[7] = d.r64(next++);
    } else if (form.kind == Kind::kF16 || form.kind == Kind::kTF32) {
      i.imm[1] = d.immediate(next++);
      if (i.imm[1] < 0 || i.imm[1] > 15) d.unknown("scale-input-d: expected 0 to 15");
    }
  }
  if (next != d.num_operands()) d.unknown("too many operands");
  std::memcpy(&i.imm[0], &form, sizeof(form));
  i.counted = InstructionClass::kMatrix;
  i.execute = execute_mma;
}

}  // namespace dsv4::simulator
