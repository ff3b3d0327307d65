// SPDX-License-Identifier: Apache-2.0
#include "torch/tensor_argument.h"

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/c/shim.h>
#include <torch/headeronly/util/shim_utils.h>

#include <stdexcept>

// In libtorch_cuda only, so null where torch has no CUDA.
extern "C" __attribute__((weak)) AOTITorchError
aoti_torch_get_current_cuda_stream(int32_t device_index, void** stream);

namespace dsv4::torch_ops {
namespace {

const char* error_kind(StatusCode code) {
  switch (code) {
    case StatusCode::kInvalidValue:
      return "ValueError";
    case StatusCode::kInvalidType:
      return "TypeError";
    default:
      return "RuntimeError";
  }
}

std::string device_name(const Device& device) {
  return device.type == DeviceType::kCpu ? "cpu" : "cuda:" + std::to_string(device.index);
}

}  // namespace

void throw_value_error(const std::string& sentence) {
  throw std::runtime_error("dsv4 ValueError: " + sentence);
}

void throw_type_error(const std::string& sentence) {
  throw std::runtime_error("dsv4 TypeError: " + sentence);
}

void throw_if_failed(const Status& status) {
  if (!status.ok())
    throw std::runtime_error(std::string("dsv4 ") + error_kind(status.code) + ": " +
                             status.message);
}

std::string dtype_name(ScalarType dtype) {
  switch (dtype) {
    case ScalarType::BFloat16:
      return "bfloat16";
    case ScalarType::Float8_e4m3fn:
      return "float8_e4m3fn";
    case ScalarType::Byte:
      return "uint8";
    case ScalarType::Char:
      return "int8";
    case ScalarType::Int:
      return "int32";
    case ScalarType::Long:
      return "int64";
    case ScalarType::Half:
      return "float16";
    case ScalarType::Float:
      return "float32";
    case ScalarType::Double:
      return "float64";
    default:
      return torch::headeronly::toString(dtype);
  }
}

TensorArgument::TensorArgument(const char* name, const Tensor& tensor)
    : name_(name), tensor_(&tensor) {
  int64_t *sizes, *strides;
  int32_t dtype, type;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dim(tensor.get(), &dim_));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_sizes(tensor.get(), &sizes));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_strides(tensor.get(), &strides));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(tensor.get(), &dtype));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(tensor.get(), &type));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_data_ptr(tensor.get(), &data_));
  sizes_ = sizes;
  strides_ = strides;
  dtype_ = static_cast<ScalarType>(dtype);
  if (type != aoti_torch_device_type_cpu()) {
    device_.type = DeviceType::kCuda;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(tensor.get(), &device_.index));
  }
}

int64_t TensorArgument::numel() const {
  int64_t count = 1;
  for (int64_t i = 0; i < dim_; ++i) count *= sizes_[i];
  return count;
}

std::string TensorArgument::shape() const {
  std::string text = "[";
  for (int64_t i = 0; i < dim_; ++i) text += (i ? ", " : "") + std::to_string(sizes_[i]);
  return text + "]";
}

void TensorArgument::expect_dtype(std::initializer_list<ScalarType> wanted) const {
  for (ScalarType dtype : wanted) {
    if (dtype == dtype_) return;
  }
  std::string names;
  for (ScalarType dtype : wanted) {
    names += (names.empty() ? "" : " or ") + dtype_name(dtype);
  }
  throw_value_error(std::string(name_) + ": expected " + names + ", got " + dtype_name(dtype_));
}

void TensorArgument::expect_same_device(const TensorArgument& query) const {
  if (device_.type == query.device_.type && device_.index == query.device_.index) return;
  throw_value_error(std::string(name_) + ": expected on " + device_name(query.device_) + " like " +
                    query.name_ + ", got " + device_name(device_));
}

void TensorArgument::expect_dim(std::initializer_list<int64_t> wanted) const {
  for (int64_t dim : wanted) {
    if (dim == dim_) return;
  }
  std::string text;
  for (int64_t dim : wanted) {
    text += (text.empty() ? "" : " or ") + std::to_string(dim);
  }
  throw_value_error(std::string(name_) + ": expected " + text + " dimensions, got " +
                    std::to_string(dim_) + " (shape " + shape() + ")");
}

void TensorArgument::fail_shape(const std::string& wanted) const {
  throw_value_error(std::string(name_) + ": expected " + wanted + ", got shape " + shape());
}

void TensorArgument::expect_last_dim_contiguous() const {
  if (numel() == 0 || size(-1) == 1 || stride(-1) == 1) return;
  throw_value_error(std::string(name_) + ": expected a contiguous last dimension, got stride " +
                    std::to_string(stride(-1)));
}

void TensorArgument::expect_contiguous() const {
  if (!tensor_->is_contiguous())
    throw_value_error(std::string(name_) + ": expected a contiguous tensor");
}

Tensor new_tensor(const int64_t* sizes, const int64_t* strides, int64_t dim, ScalarType dtype,
                  const Device& device) {
  AtenTensorHandle handle;
  const bool on_cpu = device.type == DeviceType::kCpu;
  TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(
      dim, sizes, strides, static_cast<int32_t>(dtype),
      on_cpu ? aoti_torch_device_type_cpu() : aoti_torch_device_type_cuda(),
      on_cpu ? 0 : device.index, &handle));
  return Tensor(handle);
}

Tensor new_tensor(std::initializer_list<int64_t> sizes, ScalarType dtype, const Device& device) {
  constexpr int64_t kMaxDim = 8;
  int64_t strides[kMaxDim];
  const int64_t dim = int64_t(sizes.size());
  int64_t stride = 1;
  for (int64_t i = dim - 1; i >= 0; --i) {
    strides[i] = stride;
    stride *= sizes.begin()[i] > 0 ? sizes.begin()[i] : 1;
  }
  return new_tensor(sizes.begin(), strides, dim, dtype, device);
}

namespace {

struct TorchTask {
  void (*task)(void*, int64_t);
  void* argument;
};

void run_on_torch(int64_t num_tasks, void (*task)(void*, int64_t), void* argument) {
  TorchTask context{task, argument};
  TORCH_ERROR_CODE_CHECK(torch_parallel_for(
      0, num_tasks, 1,
      [](int64_t begin, int64_t end, void* pointer) {
        const TorchTask& mine = *static_cast<TorchTask*>(pointer);
        for (int64_t i = begin; i < end; ++i) mine.task(mine.argument, i);
      },
      &context));
}

}  // namespace

Executor torch_executor() {
  uint32_t threads = 1;
  TORCH_ERROR_CODE_CHECK(torch_get_num_threads(&threads));
  return {run_on_torch, int32_t(threads)};
}

Stream current_stream(const Device& device) {
  void* stream = nullptr;
  if (device.type == DeviceType::kCuda && aoti_torch_get_current_cuda_stream != nullptr) {
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(device.index, &stream));
  }
  return stream;
}

}  // namespace dsv4::torch_ops
