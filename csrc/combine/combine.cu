// SPDX-License-Identifier: Apache-2.0
// Merging partial results of one softmax. combine.h says what, README.md beside it how and why.
#include <cuda_bf16.h>

#include <cinttypes>
#include <cstring>

#include "combine/combine.h"
#include "cuda/launch.h"
#include "cuda/vector_access.cuh"
#include "dsv4/kv_format.h"
#include "ptx/grid_dependency.cuh"
#include "status.h"

namespace dsv4::combine {
namespace {

constexpr float kLn2 = 0.693147180559945309f;
constexpr float kLog2e = 1.44269504088896341f;
constexpr float kInfinity = __builtin_inff();

// A block does kDims dims of one (row, head). Its threads are kGroups groups, each of which adds up
// every kGroups-th part, 4 dims a thread. kInFlight parts are loaded before the first is used.
template <int kDims_, int kGroups_, int kInFlight_>
struct Layout {
  static constexpr int kDims = kDims_;
  static constexpr int kGroups = kGroups_;
  static constexpr int kInFlight = kInFlight_;
  static constexpr int kDimBlocks = kHeadDim / kDims;
  static constexpr int kThreadDims = 4;
  static constexpr int kGroupThreads = kDims / kThreadDims;
  static constexpr int kThreads = kGroups * kGroupThreads;
  static_assert(kGroupThreads % 32 == 0, "a warp works on one part at a time");
};

// --- where parts lie ---

// Four values that follow each other, loaded at once if the alignment allows.
template <class Element, int kAlignment>
struct alignas(kAlignment) Four {
  Element values[4];
};

__device__ float to_float(float x) { return x; }
__device__ float to_float(uint16_t bf16_bits) { return __uint_as_float(uint32_t(bf16_bits) << 16); }

template <int kAlignment, class Element>
__device__ float4 load_four(const Element* from) {
  const auto four = *reinterpret_cast<const Four<Element, kAlignment>*>(from);
  return {to_float(four.values[0]), to_float(four.values[1]), to_float(four.values[2]),
          to_float(four.values[3])};
}

// States of merge_states.
template <class Element, int kAlignment>
struct States {
  const Element* data;
  const float* lse_data;
  int num_states;
  int64_t out_state_stride, out_row_stride, out_head_stride;
  int64_t lse_state_stride, lse_row_stride, lse_head_stride;

  // Those of one (row, head).
  struct Parts {
    const Element* data;
    const float* lse_data;
    int64_t out_stride, lse_stride;
    uint32_t row;
    int count;

    __device__ bool finished() const { return false; }
    __device__ float lse(int i) const { return lse_data[i * lse_stride]; }
    __device__ float4 out(int i, int dim) const {
      return load_four<kAlignment>(data + i * out_stride + dim);
    }
  };

  __device__ Parts parts(uint32_t row, uint32_t head) const {
    return {data + row * out_row_stride + head * out_head_stride,
            lse_data + row * lse_row_stride + head * lse_head_stride,
            out_state_stride,
            lse_state_stride,
            row,
            num_states};
  }
};

// What a split decode left. The kernel's rows are all rows; with kByBlock, of each block the group
// of rows that it began last. No other row of it is cut.
template <bool kByBlock>
struct Splits {
  SplitResults results;
  uint32_t rows, q_len;
  int64_t heads;

  struct Parts {
    const float* data;
    const float* lse_data;
    int64_t heads_per_place;
    RowParts of_row;
    uint32_t row;
    int count;

    __device__ bool finished() const { return count == 1; }
    __device__ float lse(int i) const { return lse_data[part_place(of_row, i) * heads_per_place]; }
    __device__ float4 out(int i, int dim) const {
      return load_four<16>(data + part_place(of_row, i) * heads_per_place * kHeadDim + dim);
    }
  };

  // The last row that a block up to this one has begun; blocks begin them in order. All lanes of a
  // warp look together.
  __device__ uint32_t last_row_begun(int32_t block) const {
    const uint32_t lane = threadIdx.x % 32;
    uint32_t first = 0, count = rows;
    while (count > 1) {
      const uint32_t step = (count + 31) / 32;
      const uint32_t offset = lane * step;
      const bool begun = offset < count && results.rows[first + offset].first <= block;
      const uint32_t found = (__popc(__ballot_sync(0xffffffffu, begun)) - 1) * step;
      first += found;
      count = min(step, count - found);
    }
    return first;
  }

  __device__ Parts parts(uint32_t i, uint32_t head) const {
    const auto group_rows = static_cast<uint32_t>(results.group_rows);
    const auto block = static_cast<int32_t>(i / group_rows);
    const uint32_t row = kByBlock ? last_row_begun(block) - i % group_rows : i;
    RowParts found = {block, 1};
    if (!kByBlock || row < rows) found = results.rows[row];
    if (kByBlock && found.first != block) found.count = 1;  // no row of this block
    const int64_t first = row % q_len % group_rows * heads + head;
    return {results.out + first * kHeadDim,
            results.lse + first,
            group_rows * heads,
            found,
            row,
            found.count};
  }
};

// --- sums ---

// A sum of weighted parts, relative to the largest lse:
//   sum = sum_i exp(lse_i - max)
//   out = 2^-h sum_i exp(lse_i - max) out_i, h by headroom_exponent
// What no part has touched is all zero, with max = -inf.
struct Sum {
  float max = -kInfinity;
  float sum = 0.0f;
  float4 out = {};

  // The number to subtract from an lse; finite also where max is not.
  __device__ float base() const { return max == -kInfinity ? 0.0f : max; }
  __device__ void scale_out(float factor) {
    out.x *= factor, out.y *= factor, out.z *= factor, out.w *= factor;
  }
  __device__ void add(float weight, const float4& part) {
    out.x += weight * part.x, out.y += weight * part.y;
    out.z += weight * part.z, out.w += weight * part.w;
  }
};

__device__ float power_of_two(int exponent) {
  return __uint_as_float(uint32_t(127 + exponent) << 23);
}

// Exponent h of the headroom 2^-h, with which as many parts of the largest floats do not overflow.
__device__ int headroom_exponent(int num_parts) {
  return num_parts > 1 ? 32 - __clz(num_parts - 1) : 0;
}

// A part whose lse is infinite, of either sign, holds no slot.
__device__ bool holds_slots(float lse) { return fabsf(lse) != kInfinity; }

// exp of a difference of two lse, whose unit `to_log2` says.
__device__ float exp_of(float difference, float to_log2) { return exp2f(difference * to_log2); }

// Every kGroups-th part from `first` on. NaN reaches the result: it holds slots, and fmaxf leaves
// it to the weights.
template <class Layout, class Parts>
__device__ Sum add_parts(const Parts& parts, int first, int dim, float to_log2) {
  constexpr int kInFlight = Layout::kInFlight;
  const float headroom = power_of_two(-headroom_exponent(parts.count));
  Sum total;
  for (int begin = first; begin < parts.count; begin += kInFlight * Layout::kGroups) {
    float lse[kInFlight];
    float4 out[kInFlight];
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) {
      const int i = begin + j * Layout::kGroups;
      lse[j] = -kInfinity;
      if (i < parts.count) {
        lse[j] = parts.lse(i);
        out[j] = parts.out(i, dim);
      }
    }
    const float max_before = total.max;
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) {
      if (holds_slots(lse[j])) total.max = fmaxf(total.max, lse[j]);
    }
    const float base = total.base();
    const float rescale = exp_of(max_before - base, to_log2);
    total.sum *= rescale;
    total.scale_out(rescale);
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) {
      const float weight = exp_of(lse[j] - base, to_log2);
      if (holds_slots(lse[j])) {
        total.sum += weight;
        total.add(weight * headroom, out[j]);
      }
    }
  }
  return total;
}

// The sum of all groups, in the threads of group 0.
template <class Layout>
__device__ Sum add_groups(const Sum& own, int group, int thread, float to_log2) {
  __shared__ float max[Layout::kGroups], sum[Layout::kGroups];
  __shared__ float4 out[Layout::kGroups][Layout::kGroupThreads];
  out[group][thread] = own.out;
  if (thread == 0) {
    max[group] = own.max;
    sum[group] = own.sum;
  }
  __syncthreads();
  Sum total;
  if (group != 0) return total;
#pragma unroll
  for (int g = 0; g < Layout::kGroups; ++g) total.max = fmaxf(total.max, max[g]);
#pragma unroll
  for (int g = 0; g < Layout::kGroups; ++g) {
    const float weight = exp_of(max[g] - total.base(), to_log2);
    total.sum += weight * sum[g];
    total.add(weight, out[g][thread]);
  }
  return total;
}

// --- the end of a row ---

// What becomes of the sums.
struct Ending {
  uint32_t q_len;
  uint32_t heads;
  const float* sinks;  // null: none
  bool apply_sinks;    // to out
  Scale scale2;
  DType dtype;  // of out
  RowView<void*> out;
  RowView<float*> lse;
  LseOptions lse_options;
  bool parts_base2;  // the unit of the parts' lse is log2, not ln
};

// What it says of one (row, head), read before the parts so that it is there when they are.
struct HeadEnding {
  float sink;  // in the unit of the parts' lse
  float scale2;

  __device__ HeadEnding(const Ending& ending, uint32_t head)
      : sink(ending.sinks != nullptr ? ending.sinks[head] : -kInfinity),
        scale2(ending.scale2.pointer != nullptr ? *ending.scale2.pointer : ending.scale2.value) {
    if (ending.parts_base2) sink *= kLog2e;
  }
};

// out of a (row, head): divided by the sum of all weights, that of the sink among them.
__device__ float4 final_out(const Ending& ending, const HeadEnding& head_ending, Sum total,
                            int num_parts, float to_log2) {
  if (total.sum == 0.0f) return {};  // the largest part weighs 1: none held a slot
  float weights = total.sum;
  if (ending.apply_sinks) weights += exp_of(head_ending.sink - total.base(), to_log2);
  total.scale_out(__fdividef(1.0f, weights));
  total.scale_out(power_of_two(headroom_exponent(num_parts)));
  total.scale_out(head_ending.scale2);
  return total.out;
}

// ln or log2 of exp(lse) + exp(sink).
__device__ float with_sink(float lse, float sink, float to_log2) {
  const float high = lse > sink ? lse : sink, low = lse > sink ? sink : lse;
  // An infinite sink leaves nothing to add: +inf is the sum, -inf does not count.
  if (high == kInfinity) return high;
  return high + log1pf(exp_of(low - high, to_log2)) * (kLog2e / to_log2);
}

// lse of a (row, head) as the caller wants it.
__device__ float final_lse(const Ending& ending, const HeadEnding& head_ending, const Sum& total,
                           float to_log2) {
  const LseOptions& options = ending.lse_options;
  if (total.sum == 0.0f) return options.empty_is_positive ? kInfinity : -kInfinity;
  float lse = total.base() + log2f(total.sum) * (ending.parts_base2 ? 1.0f : kLn2);
  if (options.include_sink && ending.sinks != nullptr) {
    lse = with_sink(lse, head_ending.sink, to_log2);
  }
  if (options.base2 == ending.parts_base2) return lse;
  return lse * (options.base2 ? kLog2e : kLn2);
}

template <class Pointer>
__device__ int64_t head_offset(const RowView<Pointer>& view, uint32_t q_len, uint32_t row,
                               uint32_t head) {
  return row / q_len * view.batch_stride + row % q_len * view.row_stride + head * view.head_stride;
}

__device__ void store_out(DType dtype, const float4& x, void* out, int64_t element) {
  if (dtype == DType::kBFloat16) {
    const __nv_bfloat162 pairs[] = {__floats2bfloat162_rn(x.x, x.y),
                                    __floats2bfloat162_rn(x.z, x.w)};
    uint32_t words[2];
    std::memcpy(words, pairs, sizeof(words));
    cuda::store_words(words, static_cast<uint16_t*>(out) + element);
  } else {
    uint32_t words[4];
    std::memcpy(words, &x, sizeof(words));
    cuda::store_words(words, static_cast<float*>(out) + element);
  }
}

// --- kernel ---

template <class Layout, class Source>
__global__ void __launch_bounds__(Layout::kThreads)
    combine(const Source source, const Ending ending) {
  ptx::wait_for_grids_ahead();
  const uint32_t item = blockIdx.x / Layout::kDimBlocks;
  const uint32_t head = item % ending.heads;
  const auto parts = source.parts(item / ending.heads, head);
  if (parts.finished()) return;

  const HeadEnding head_ending(ending, head);
  const int group = threadIdx.x / Layout::kGroupThreads;
  const int thread = threadIdx.x % Layout::kGroupThreads;
  const int dim = blockIdx.x % Layout::kDimBlocks * Layout::kDims + thread * Layout::kThreadDims;
  const float to_log2 = ending.parts_base2 ? 1.0f : kLog2e;
  Sum total = add_parts<Layout>(parts, group, dim, to_log2);
  if constexpr (Layout::kGroups > 1) {
    total = add_groups<Layout>(total, group, thread, to_log2);
    if (group != 0) return;
  }
  store_out(ending.dtype, final_out(ending, head_ending, total, parts.count, to_log2),
            ending.out.data, head_offset(ending.out, ending.q_len, parts.row, head) + dim);
  if (dim == 0 && ending.lse.data != nullptr) {
    ending.lse.data[head_offset(ending.lse, ending.q_len, parts.row, head)] =
        final_lse(ending, head_ending, total, to_log2);
  }
}

template <class Layout, class Source>
Status launch_combine(const char* name, const Device& device, const Source& source,
                      const Ending& ending, int64_t rows, Stream stream, bool starts_early) {
  const int64_t blocks = rows * ending.heads * Layout::kDimBlocks;
  cuda::LaunchConfig config;
  DSV4_RETURN_IF_FAILED(cuda::along_x(name, device, stream, blocks, Layout::kThreads, &config));
  config.enable_pdl = starts_early;
  return cuda::launch<combine<Layout, Source>>(config, source, ending);
}

// Named by the number of parts that a group of threads has in flight at once.
using UpTo4 = Layout<512, 1, 4>;
using UpTo8 = Layout<512, 2, 4>;
using UpTo16 = Layout<512, 4, 4>;
using UpTo64 = Layout<128, 16, 4>;  // four blocks a head

template <class Element, int kAlignment>
Status launch_merge(const MergeProblem& problem, Stream stream) {
  const States<Element, kAlignment> states{static_cast<const Element*>(problem.partial_out),
                                           problem.partial_lse,
                                           int(problem.num_states),
                                           problem.out_state_stride,
                                           problem.out_row_stride,
                                           problem.out_head_stride,
                                           problem.lse_state_stride,
                                           problem.lse_row_stride,
                                           problem.lse_head_stride};
  Ending ending{};
  ending.q_len = 1;
  ending.heads = uint32_t(problem.heads);
  ending.sinks = problem.sinks;
  ending.apply_sinks = true;
  ending.scale2 = problem.scale2;
  ending.dtype = problem.dtype;
  ending.out = {problem.out, problem.heads * kHeadDim, 0, kHeadDim};
  ending.lse = {problem.lse, problem.heads, 0, 1};
  ending.lse_options = problem.lse_options;
  ending.parts_base2 = problem.lse_options.base2;
  // By the number of states alone, so that a row's bits do not depend on the other rows.
  const auto launch_layout = problem.num_states <= 2 * UpTo4::kInFlight
                                 ? launch_combine<UpTo4, States<Element, kAlignment>>
                                 : launch_combine<UpTo16, States<Element, kAlignment>>;
  return launch_layout("merge_states", problem.device, states, ending, problem.rows, stream, false);
}

template <class Element>
Status launch_merge(const MergeProblem& problem, Stream stream) {
  constexpr int kFour = 4 * sizeof(Element);
  const uint64_t strides =
      uint64_t(problem.out_state_stride | problem.out_row_stride | problem.out_head_stride);
  const bool aligned =
      reinterpret_cast<uintptr_t>(problem.partial_out) % kFour == 0 && strides % 4 == 0;
  return aligned ? launch_merge<Element, kFour>(problem, stream)
                 : launch_merge<Element, sizeof(Element)>(problem, stream);
}

}  // namespace

Status merge_states(const MergeProblem& problem, Stream stream) {
  if (problem.num_states > INT32_MAX) {
    DSV4_FAIL(kUnsupported, "num_states: expected at most %d, got %" PRId64, INT32_MAX,
              problem.num_states);
  }
  if (problem.rows == 0 || problem.heads == 0) return {};
  const cuda::DeviceGuard guard(problem.device);
  DSV4_RETURN_IF_FAILED(guard.status());
  return problem.dtype == DType::kBFloat16 ? launch_merge<uint16_t>(problem, stream)
                                           : launch_merge<float>(problem, stream);
}

Status combine_splits(const DecodeProblem& problem, const SplitResults& results, Stream stream,
                      double parts_per_row, bool starts_early) {
  const int64_t rows = problem.batch * problem.q_len;
  if (rows == 0 || problem.heads == 0) return {};
  const cuda::DeviceGuard guard(problem.device);
  DSV4_RETURN_IF_FAILED(guard.status());
  Ending ending{};
  ending.q_len = uint32_t(problem.q_len);
  ending.heads = uint32_t(problem.heads);
  ending.sinks = problem.sinks;
  ending.apply_sinks = !problem.defer_sinks;
  ending.scale2 = problem.scale2;
  ending.dtype = DType::kBFloat16;
  ending.out = problem.out;
  ending.lse = problem.lse;
  ending.lse_options = problem.lse_options;
  ending.parts_base2 = true;
  const uint32_t q_len = ending.q_len;
  const int64_t last_rows = int64_t(results.num_blocks) * results.group_rows;
  if (2 * last_rows <= rows) {
    const Splits<true> splits{results, uint32_t(rows), q_len, problem.heads};
    return launch_combine<UpTo4>("combine_splits", problem.device, splits, ending, last_rows,
                                 stream, starts_early);
  }
  const Splits<false> splits{results, uint32_t(rows), q_len, problem.heads};
  auto* launch_layout = launch_combine<UpTo4, Splits<false>>;
  if (parts_per_row > 6) launch_layout = launch_combine<UpTo8, Splits<false>>;
  if (parts_per_row > 12) launch_layout = launch_combine<UpTo16, Splits<false>>;
  if (parts_per_row > 24) launch_layout = launch_combine<UpTo64, Splits<false>>;
  return launch_layout("combine_splits", problem.device, splits, ending, rows, stream,
                       starts_early);
}

}  // namespace dsv4::combine
