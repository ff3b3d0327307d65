// SPDX-License-Identifier: Apache-2.0
// A tensor handed to an op, with its name: reads its shape once and words what is wrong with it.
#pragma once

#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <cstdint>
#include <initializer_list>
#include <string>

#include "dsv4/dsv4.h"

namespace dsv4::torch_ops {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// Every error leaves an op as std::runtime_error "dsv4 <kind>: <sentence>", because that is the one
// type that crosses the stable ABI; the Python package turns it into the exception that the kind
// names.
[[noreturn]] void throw_value_error(const std::string& sentence);
[[noreturn]] void throw_type_error(const std::string& sentence);
void throw_if_failed(const Status& status);

std::string dtype_name(ScalarType dtype);

class TensorArgument {
 public:
  TensorArgument(const char* name, const Tensor& tensor);

  const char* name() const { return name_; }
  int64_t dim() const { return dim_; }
  int64_t size(int64_t i) const { return sizes_[i < 0 ? i + dim_ : i]; }
  int64_t stride(int64_t i) const { return strides_[i < 0 ? i + dim_ : i]; }
  int64_t numel() const;
  ScalarType dtype() const { return dtype_; }
  Device device() const { return device_; }
  void* data() const { return data_; }
  template <class T>
  T* data_as() const {
    return static_cast<T*>(data_);
  }
  std::string shape() const;  // "[8, 1, 64, 512]"

  void expect_dtype(std::initializer_list<ScalarType> wanted) const;
  void expect_same_device(const TensorArgument& query) const;
  void expect_dim(std::initializer_list<int64_t> wanted) const;
  // `wanted` returns in words what `ok` means, such as "shape [8, 1, 64, 512]"; called on failure
  // only.
  template <class Words>
  void expect(bool ok, Words&& wanted) const {
    if (!ok) fail_shape(wanted());
  }
  void expect_last_dim_contiguous() const;
  void expect_contiguous() const;

 private:
  [[noreturn]] void fail_shape(const std::string& wanted) const;

  const char* name_;
  const Tensor* tensor_;
  const int64_t* sizes_;
  const int64_t* strides_;
  int64_t dim_;
  ScalarType dtype_;
  Device device_;
  void* data_;
};

// A new tensor on the device of another one.
Tensor new_tensor(std::initializer_list<int64_t> sizes, ScalarType dtype, const Device& device);
Tensor new_tensor(const int64_t* sizes, const int64_t* strides, int64_t dim, ScalarType dtype,
                  const Device& device);

// torch's threads for the CPU engine, so that torch.set_num_threads holds.
Executor torch_executor();

// The current stream of a CUDA device, null on the CPU.
Stream current_stream(const Device& device);

}  // namespace dsv4::torch_ops
