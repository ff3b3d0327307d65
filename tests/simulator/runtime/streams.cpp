// SPDX-License-Identifier: Apache-2.0
// Streams, events, captures and graphs. What a capture allows and how it ends was seen with
// CUDA 13.0 on an H200.
#include <algorithm>
#include <memory>
#include <set>
#include <thread>

#include "runtime/state.h"

namespace dsv4::simulator::cuda {

struct Node {
  std::function<void()> work;
  std::vector<size_t> after;  // earlier nodes
};

struct Capture {
  cudaStream_t origin = nullptr;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id thread;
  bool spoilt = false;
  std::vector<Node> nodes;
  std::set<cudaStream_t> streams;
};

}  // namespace dsv4::simulator::cuda

// The handles of the CUDA API are pointers to structures that it does not define.
struct CUstream_st {
  bool blocking = true;
  int device = 0;
  std::shared_ptr<const dsv4::simulator::GlobalWrites> writes;
  std::shared_ptr<dsv4::simulator::cuda::Capture> capture;
  std::vector<size_t> frontier;  // of the capture: what later work comes after
};
struct CUevent_st {
  std::shared_ptr<dsv4::simulator::cuda::Capture> capture;  // in which it was recorded last
  std::vector<size_t> frontier;
};
struct CUgraph_st {
  std::vector<dsv4::simulator::cuda::Node> nodes;
};
struct CUgraphExec_st {
  std::vector<dsv4::simulator::cuda::Node> nodes;
};

namespace dsv4::simulator::cuda {
namespace {

template <class T>
class Handles {
 public:
  T* add(T value) {
    living_.push_back(std::make_unique<T>(std::move(value)));
    return living_.back().get();
  }
  void expect(const T* handle, const char* what) const {
    if (find(handle) == living_.end())
      refuse(cudaErrorInvalidResourceHandle, "this is no %s", what);
  }
  void remove(const T* handle) { living_.erase(find(handle)); }
  const std::vector<std::unique_ptr<T>>& living() const { return living_; }

 private:
  typename std::vector<std::unique_ptr<T>>::const_iterator find(const T* handle) const {
    return std::find_if(living_.begin(), living_.end(),
                        [&](const auto& one) { return one.get() == handle; });
  }
  std::vector<std::unique_ptr<T>> living_;
};

struct Objects {
  Handles<CUstream_st> streams;
  Handles<CUevent_st> events;
  Handles<CUgraph_st> graphs;
  Handles<CUgraphExec_st> executables;
  CUstream_st legacy, per_thread;
};
Objects& objects() {
  static Objects* const instance = new Objects;
  return *instance;
}

bool is_legacy(cudaStream_t stream) { return stream == nullptr || stream == cudaStreamLegacy; }

CUstream_st& stream_of(cudaStream_t handle) {
  if (is_legacy(handle)) return objects().legacy;
  if (handle == cudaStreamPerThread) return objects().per_thread;
  objects().streams.expect(handle, "stream");
  return *handle;
}

bool is_captured(const CUstream_st& stream) { return stream.capture != nullptr; }

void expect_not_spoilt(const Capture& capture) {
  if (capture.spoilt) {
    refuse(cudaErrorStreamCaptureInvalidated, "the capture of this stream has been invalidated");
  }
}

// Work in the legacy stream would have to wait for a captured stream.
void expect_legacy_stream_free() {
  for (const auto& stream : objects().streams.living()) {
    if (!is_captured(*stream) || !stream->blocking || stream->capture->spoilt) continue;
    if (stream->capture->mode == cudaStreamCaptureModeRelaxed) continue;
    stream->capture->spoilt = true;
    refuse(cudaErrorStreamCaptureImplicit,
           "the legacy stream depends on a captured stream that is not cudaStreamNonBlocking");
  }
}

void end_capture(Capture& capture) {
  for (cudaStream_t stream : capture.streams) {
    stream->capture.reset();
    stream->frontier.clear();
  }
  capture.streams.clear();
}

// Every node has to come before the end of the stream in which the capture began.
bool is_joined(const Capture& capture) {
  std::vector<bool> before(capture.nodes.size());
  for (size_t node : capture.origin->frontier) before[node] = true;
  for (size_t node = capture.nodes.size(); node-- > 0;) {
    if (!before[node]) return false;
    for (size_t earlier : capture.nodes[node].after) before[earlier] = true;
  }
  return true;
}

void join(std::vector<size_t>& frontier, const std::vector<size_t>& other) {
  for (size_t node : other) {
    if (std::find(frontier.begin(), frontier.end(), node) == frontier.end())
      frontier.push_back(node);
  }
}

void run_nodes(const std::vector<Node>& nodes) {
  for (const Node& node : nodes) node.work();
}

CUevent_st& event_of(cudaEvent_t event) {
  objects().events.expect(event, "event");
  return *event;
}

// An event that was recorded in a capture is no event of the program's own time.
void expect_own_time(CUevent_st& event) {
  if (event.capture == nullptr) return;
  if (event.capture->streams.empty()) {
    refuse(cudaErrorInvalidValue, "the event was last recorded in a capture that has ended");
  }
  event.capture->spoilt = true;
  refuse(cudaErrorCapturedEvent, "the event was last recorded in a captured stream");
}

}  // namespace

void submit(cudaStream_t handle, std::function<void()> work) {
  CUstream_st& stream = stream_of(handle);
  if (!is_captured(stream)) {
    if (is_legacy(handle)) expect_legacy_stream_free();
    work();
    return;
  }
  expect_not_spoilt(*stream.capture);
  stream.capture->nodes.push_back({std::move(work), stream.frontier});
  stream.frontier = {stream.capture->nodes.size() - 1};
}

void expect_stream_of_current_device(cudaStream_t handle) {
  const CUstream_st& stream = stream_of(handle);
  const bool of_any_device = &stream == &objects().legacy || &stream == &objects().per_thread;
  if (!of_any_device && stream.device != thread_state().device) {
    refuse(cudaErrorInvalidResourceHandle, "a stream of device %d, but device %d is current",
           stream.device, thread_state().device);
  }
}

void spoil_capture(cudaStream_t handle) {
  CUstream_st& stream = stream_of(handle);
  if (is_captured(stream)) stream.capture->spoilt = true;
}

void expect_not_captured(cudaStream_t handle, const char* function) {
  const CUstream_st& stream = stream_of(handle);
  if (!is_captured(stream)) return;
  stream.capture->spoilt = true;
  refuse(cudaErrorNotSupported, "the capture of %s is not simulated", function);
}

std::shared_ptr<const GlobalWrites>& last_writes(cudaStream_t handle) {
  return stream_of(handle).writes;
}

void expect_no_capture(const char* function) {
  bool allowed = true;
  for (const auto& stream : objects().streams.living()) {
    if (!is_captured(*stream) || stream->capture->spoilt) continue;
    const cudaStreamCaptureMode mode = stream->capture->mode;
    if (mode == cudaStreamCaptureModeRelaxed) continue;
    if (mode == cudaStreamCaptureModeThreadLocal &&
        stream->capture->thread != std::this_thread::get_id()) {
      continue;
    }
    stream->capture->spoilt = true;
    allowed = false;
  }
  if (!allowed) {
    refuse(cudaErrorStreamCaptureUnsupported, "%s may not be called while a stream is captured",
           function);
  }
}

}  // namespace dsv4::simulator::cuda

using namespace dsv4::simulator::cuda;

extern "C" {

// --- streams -------------------------------------------------------------------------------------

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return api([&] {
    expect_not_null(stream, "stream");
    if (flags > cudaStreamNonBlocking) refuse(cudaErrorInvalidValue, "stream flags %u", flags);
    *stream =
        objects().streams.add({flags != cudaStreamNonBlocking, thread_state().device, {}, {}, {}});
  });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithPriority(stream, cudaStreamDefault, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return api([&] {
    CUstream_st& s = stream_of(stream);
    objects().streams.expect(stream, "stream that can be destroyed");
    if (is_captured(s)) {
      s.capture->spoilt = true;
      s.capture->streams.erase(stream);
    }
    objects().streams.remove(stream);
  });
}

cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned* flags) {
  return api([&] {
    expect_not_null(flags, "flags");
    *flags = stream_of(stream).blocking ? cudaStreamDefault : cudaStreamNonBlocking;
  });
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return api([&] {
    CUstream_st& s = stream_of(stream);
    expect_no_capture("cudaStreamSynchronize");
    if (!is_captured(s)) return;
    s.capture->spoilt = true;
    refuse(cudaErrorStreamCaptureUnsupported, "a captured stream cannot be waited for");
  });
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return api([&] {
    CUstream_st& s = stream_of(stream);
    expect_no_capture("cudaStreamQuery");
    if (!is_captured(s)) return;
    s.capture->spoilt = true;
    refuse(cudaErrorStreamCaptureUnsupported, "a captured stream cannot be asked");
  });
}

cudaError_t cudaDeviceSynchronize() {
  return api([&] { expect_no_capture("cudaDeviceSynchronize"); });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  return api([&] {
    CUstream_st& s = stream_of(stream);
    const CUevent_st& e = event_of(event);
    if (e.capture == nullptr) {
      if (!is_captured(s)) return;
      s.capture->spoilt = true;
      refuse(cudaErrorStreamCaptureIsolation,
             "a captured stream waits for work outside of its capture");
    }
    if (e.capture->streams.empty()) {
      refuse(cudaErrorInvalidValue, "the event was last recorded in a capture that has ended");
    }
    expect_not_spoilt(*e.capture);
    if (is_captured(s) && s.capture != e.capture) {
      s.capture->spoilt = e.capture->spoilt = true;
      refuse(cudaErrorStreamCaptureMerge,
             "a captured stream waits for an event of another capture");
    }
    s.capture = e.capture;
    s.capture->streams.insert(&s);
    join(s.frontier, e.frontier);
  });
}

// --- events --------------------------------------------------------------------------------------

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return api([&] {
    expect_not_null(event, "event");
    *event = objects().events.add({});
  });
}

cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return api([&] {
    event_of(event);
    objects().events.remove(event);
  });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return api([&] {
    CUevent_st& e = event_of(event);
    const CUstream_st& s = stream_of(stream);
    if (is_captured(s)) expect_not_spoilt(*s.capture);
    e.capture = s.capture;
    e.frontier = s.frontier;
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return api([&] {
    expect_own_time(event_of(event));
    expect_no_capture("cudaEventSynchronize");
  });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return api([&] {
    expect_own_time(event_of(event));
    expect_no_capture("cudaEventQuery");
  });
}

// --- captures ------------------------------------------------------------------------------------

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return api([&] {
    CUstream_st& s = stream_of(stream);
    if (is_legacy(stream)) {
      refuse(cudaErrorStreamCaptureUnsupported, "the legacy stream cannot be captured");
    }
    if (is_captured(s)) refuse(cudaErrorIllegalState, "the stream is already captured");
    s.capture = std::make_shared<Capture>();
    s.capture->origin = &s;
    s.capture->mode = mode;
    s.capture->thread = std::this_thread::get_id();
    s.capture->streams = {&s};
    s.frontier.clear();
  });
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  return api([&] {
    CUstream_st& s = stream_of(stream);
    expect_not_null(graph, "graph");
    *graph = nullptr;
    if (!is_captured(s)) refuse(cudaErrorIllegalState, "the stream is not captured");
    const std::shared_ptr<Capture> capture = s.capture;
    if (capture->origin != &s) {
      capture->spoilt = true;
      refuse(cudaErrorStreamCaptureUnmatched, "the capture began in another stream");
    }
    const bool joined = capture->spoilt || is_joined(*capture);
    end_capture(*capture);
    expect_not_spoilt(*capture);
    if (!joined) {
      refuse(
          cudaErrorStreamCaptureUnjoined,
          "work of another stream was captured, but the capture's own stream never waits for it");
    }
    *graph = objects().graphs.add({capture->nodes});
  });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  return api([&] {
    expect_not_null(status, "status");
    const CUstream_st& s = stream_of(stream);
    *status = !is_captured(s)     ? cudaStreamCaptureStatusNone
              : s.capture->spoilt ? cudaStreamCaptureStatusInvalidated
                                  : cudaStreamCaptureStatusActive;
  });
}

// --- graphs --------------------------------------------------------------------------------------

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long) {
  return api([&] {
    expect_not_null(executable, "executable graph");
    objects().graphs.expect(graph, "graph");
    *executable = objects().executables.add({graph->nodes});
  });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  return api([&] {
    objects().executables.expect(executable, "executable graph");
    submit(stream, [nodes = executable->nodes] { run_nodes(nodes); });
  });
}

// Only how many there are: nodes have no handles here.
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* num_nodes) {
  return api([&] {
    objects().graphs.expect(graph, "graph");
    expect_not_null(num_nodes, "number of nodes");
    if (nodes != nullptr) refuse(cudaErrorNotSupported, "handles of graph nodes are not simulated");
    *num_nodes = graph->nodes.size();
  });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return api([&] {
    objects().graphs.expect(graph, "graph");
    objects().graphs.remove(graph);
  });
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  return api([&] {
    objects().executables.expect(executable, "executable graph");
    objects().executables.remove(executable);
  });
}

}  // extern "C"
