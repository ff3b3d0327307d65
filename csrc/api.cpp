// SPDX-License-Identifier: Apache-2.0
// The public functions: check, find the engine, hand over.
#include "engines.h"
#include "status.h"
#include "validate.h"

namespace dsv4 {
namespace {

template <class Problem>
Status dispatch(const Problem& problem, Stream stream,
                Status (*Engine::*function)(const Problem&, Stream)) {
  DSV4_RETURN_IF_FAILED(validate(problem));
  const Engine* engine;
  DSV4_RETURN_IF_FAILED(find_engine(problem.device, &engine));
  return (engine->*function)(problem, stream);
}

}  // namespace

Status sparse_mla_decode(const DecodeProblem& problem, Stream stream) {
  DSV4_RETURN_IF_FAILED(validate(problem));
  const Engine* engine;
  DSV4_RETURN_IF_FAILED(find_engine(problem.device, &engine));
  if (problem.device.type == DeviceType::kCpu && value_checks_wanted()) {
    DSV4_RETURN_IF_FAILED(validate_values(problem));
  }
  return engine->sparse_mla_decode(problem, stream);
}

Status workspace_size(const DecodeShape& shape, size_t* bytes) {
  DSV4_RETURN_IF_FAILED(validate(shape));
  const Engine* engine;
  DSV4_RETURN_IF_FAILED(find_engine(shape.device, &engine));
  return engine->workspace_size(shape, bytes);
}

Status supports(const DecodeProblem& problem) {
  DSV4_RETURN_IF_FAILED(validate_kind(problem));
  const Engine* engine;
  return find_engine(problem.device, &engine);
}

Status merge_states(const MergeProblem& problem, Stream stream) {
  return dispatch(problem, stream, &Engine::merge_states);
}

Status append_kv_cache(const AppendProblem& problem, Stream stream) {
  return dispatch(problem, stream, &Engine::append_kv_cache);
}

Status pack_kv_cache(const PackProblem& problem, Stream stream) {
  return dispatch(problem, stream, &Engine::pack_kv_cache);
}

Status unpack_kv_cache(const PackProblem& problem, Stream stream) {
  return dispatch(problem, stream, &Engine::unpack_kv_cache);
}

Status hca_metadata(const HcaMetadataProblem& problem, Stream stream) {
  return dispatch(problem, stream, &Engine::hca_metadata);
}

}  // namespace dsv4
