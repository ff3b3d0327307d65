// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "torch/ops.h"

namespace dsv4::torch_ops {
namespace {

// Dimensions [first, last) must lie so that one stride walks all of them; returns that stride.
int64_t flat_stride(const TensorArgument& tensor, int64_t first, int64_t last) {
  if (tensor.numel() == 0) return 0;
  int64_t stride = 0, expected = 0;
  for (int64_t i = last - 1; i >= first; --i) {
    if (tensor.size(i) == 1) continue;
    if (stride == 0) {
      stride = expected = tensor.stride(i);
    } else if (tensor.stride(i) != expected) {
      throw_value_error(std::string(tensor.name()) +
                        ": expected row dimensions that follow each other without gaps");
    }
    expected *= tensor.size(i);
  }
  return stride;
}

Tensor new_contiguous(const TensorArgument& like, int64_t first_dim, ScalarType dtype) {
  std::vector<int64_t> sizes, strides;
  for (int64_t i = first_dim; i < like.dim(); ++i) sizes.push_back(like.size(i));
  strides.assign(sizes.size(), 1);
  for (size_t i = sizes.size() - 1; i-- > 0;)
    strides[i] = strides[i + 1] * std::max<int64_t>(sizes[i + 1], 1);
  return new_tensor(sizes.data(), strides.data(), int64_t(sizes.size()), dtype, like.device());
}

}  // namespace

std::tuple<Tensor, Tensor> merge_states(const Tensor& outs, const Tensor& lses,
                                        const OptionalTensor& sinks, double bmm2_scale,
                                        const OptionalTensor& bmm2_scale_tensor,
                                        const std::string& lse_base, bool lse_sink,
                                        bool lse_empty_positive) {
  const TensorArgument states("outs", outs), sums("lses", lses);
  states.expect_dtype({ScalarType::BFloat16, ScalarType::Float});
  states.expect(states.dim() >= 3 && states.size(-1) == kHeadDim,
                [&] { return "[num_states, rows..., heads, " + std::to_string(kHeadDim) + "]"; });
  states.expect(states.size(0) > 0, [&] { return "at least one state"; });
  states.expect_last_dim_contiguous();
  sums.expect_dtype({ScalarType::Float});
  sums.expect_same_device(states);
  bool fits = sums.dim() == states.dim() - 1;
  for (int64_t i = 0; fits && i < sums.dim(); ++i) fits = sums.size(i) == states.size(i);
  sums.expect(fits,
              [&] { return "the shape of outs without its last dimension, " + states.shape(); });

  const int64_t head_dim = sums.dim() - 1;
  MergeProblem problem;
  problem.device = states.device();
  problem.num_states = states.size(0);
  problem.rows = 1;
  for (int64_t i = 1; i < head_dim; ++i) problem.rows *= states.size(i);
  problem.heads = states.size(-2);
  problem.dtype = states.dtype() == ScalarType::BFloat16 ? DType::kBFloat16 : DType::kFloat32;
  problem.partial_out = states.data();
  problem.out_state_stride = states.stride(0);
  problem.out_row_stride = flat_stride(states, 1, head_dim);
  problem.out_head_stride = states.stride(head_dim);
  problem.partial_lse = sums.data_as<const float>();
  problem.lse_state_stride = sums.stride(0);
  problem.lse_row_stride = flat_stride(sums, 1, head_dim);
  problem.lse_head_stride = sums.stride(head_dim);
  problem.sinks = sinks_data(sinks, problem.heads, states);
  problem.scale2 = make_scale("bmm2_scale", bmm2_scale, bmm2_scale_tensor, states);
  problem.lse_options = make_lse_options(lse_base, lse_sink, lse_empty_positive);
  problem.executor = torch_executor();

  Tensor out = new_contiguous(states, 1, states.dtype());
  Tensor lse = new_contiguous(sums, 1, ScalarType::Float);
  problem.out = out.data_ptr();
  problem.lse = static_cast<float*>(lse.data_ptr());
  throw_if_failed(dsv4::merge_states(problem, current_stream(problem.device)));
  return {out, lse};
}

}  // namespace dsv4::torch_ops
