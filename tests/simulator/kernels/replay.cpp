// SPDX-License-Identifier: Apache-2.0
// Runs the launches that record_fixtures.py has prepared, on a GPU, and writes what they leave in
// memory. usage: replay FOLDER OUTPUT_FOLDER [FIRST]
//
// FOLDER/launches.txt lists them, FOLDER/inputs.bin holds their bytes in the order of use. After a
// launch that fails, the context is lost: the program then starts itself anew behind it. A record
// of outputs.bin is the launch's number, a byte count (-1: it failed) and so many bytes.
#include <cuda.h>
#include <cuda_runtime.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <string>
#include <vector>

namespace {

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

struct Buffer {
  void* device;
  size_t num_bytes;
};

struct Launch {
  std::string module, kernel;
  unsigned grid, block, cluster, shared, num_arguments;
  std::deque<std::vector<char>> arguments;  // the bytes of each
  std::vector<Buffer> buffers, kept;
};

CUtensorMap encode_map(std::istream& list, void* data) {
  int type, rank, swizzle, fill;
  cuuint64_t sizes[5], strides[5];
  cuuint32_t box[5], steps[5];
  list >> type >> rank;
  for (int i = 0; i < rank; ++i) list >> sizes[i];
  for (int i = 0; i < rank - 1; ++i) list >> strides[i];
  for (int i = 0; i < rank; ++i) list >> box[i];
  for (int i = 0; i < rank; ++i) list >> steps[i];
  list >> swizzle >> fill;
  static const auto encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found;
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                           cudaEnableDefault, &found),
          "cuTensorMapEncodeTiled");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  }();
  alignas(64) CUtensorMap map;
  const CUresult result =
      encode(&map, CUtensorMapDataType(type), cuuint32_t(rank), data, sizes, strides, box, steps,
             CU_TENSOR_MAP_INTERLEAVE_NONE, CUtensorMapSwizzle(swizzle),
             CU_TENSOR_MAP_L2_PROMOTION_NONE, CUtensorMapFloatOOBfill(fill));
  if (result != CUDA_SUCCESS) {
    std::fprintf(stderr, "cuTensorMapEncodeTiled: error %d\n", int(result));
    std::exit(1);
  }
  return map;
}

template <class T>
void append_argument(Launch& launch, const T& value) {
  const char* bytes = reinterpret_cast<const char*>(&value);
  launch.arguments.emplace_back(bytes, bytes + sizeof(T));
}

// Reads one argument: "buffer KEPT BYTES", "map KEPT BYTES numbers...", or "bytes COUNT".
void read_argument(std::istream& list, std::istream& inputs, Launch& launch) {
  std::string kind;
  list >> kind;
  if (kind == "bytes") {
    size_t count;
    list >> count;
    launch.arguments.emplace_back(count);
    inputs.read(launch.arguments.back().data(), std::streamsize(count));
    return;
  }
  bool kept;
  Buffer buffer;
  list >> kept >> buffer.num_bytes;
  std::vector<char> content(buffer.num_bytes);
  inputs.read(content.data(), std::streamsize(content.size()));
  check(cudaMalloc(&buffer.device, buffer.num_bytes), "cudaMalloc");
  check(cudaMemcpy(buffer.device, content.data(), content.size(), cudaMemcpyHostToDevice),
        "cudaMemcpy");
  launch.buffers.push_back(buffer);
  if (kept) launch.kept.push_back(buffer);
  if (kind == "map") {
    append_argument(launch, encode_map(list, buffer.device));
  } else {
    append_argument(launch, buffer.device);
  }
}

cudaError_t run(const std::string& folder, Launch& launch) {
  cudaLibrary_t library;
  cudaKernel_t kernel;
  const std::string file = folder + "/" + launch.module;
  check(cudaLibraryLoadFromFile(&library, file.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0),
        file.c_str());
  check(cudaLibraryGetKernel(&kernel, library, launch.kernel.c_str()), launch.kernel.c_str());
  const void* function = reinterpret_cast<const void*>(kernel);
  check(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             int(launch.shared)),
        "cudaFuncSetAttribute");
  std::vector<void*> pointers;
  for (std::vector<char>& argument : launch.arguments) pointers.push_back(argument.data());
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = launch.cluster;
  cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = launch.grid;
  config.blockDim = launch.block;
  config.dynamicSmemBytes = launch.shared;
  config.attrs = &cluster;
  config.numAttrs = launch.cluster > 1;
  cudaError_t error = cudaLaunchKernelExC(&config, function, pointers.data());
  if (error == cudaSuccess) error = cudaDeviceSynchronize();
  if (error == cudaSuccess) check(cudaLibraryUnload(library), "cudaLibraryUnload");
  return error;
}

void write_facts(const std::string& file) {
  cudaDeviceProp gpu;
  int driver = 0, runtime = 0;
  check(cudaGetDeviceProperties(&gpu, 0), "cudaGetDeviceProperties");
  check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  check(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
  std::ofstream(file) << gpu.name << "\n" << driver << "\n" << runtime << "\n";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  const std::string folder = argv[1], results = argv[2];
  const int first = argc > 3 ? std::atoi(argv[3]) : 0;
  if (first == 0) write_facts(results + "/facts.txt");
  std::ifstream list(folder + "/launches.txt"), inputs(folder + "/inputs.bin", std::ios::binary);
  std::ofstream outputs(results + "/outputs.bin", std::ios::binary | std::ios::app);
  const auto write_number = [&](int64_t value) {
    outputs.write(reinterpret_cast<const char*>(&value), sizeof(value));
  };
  Launch launch;
  for (int number = 0; list >> launch.module >> launch.kernel >> launch.grid >> launch.block >>
                       launch.cluster >> launch.shared >> launch.num_arguments;
       ++number, launch = {}) {
    for (unsigned i = 0; i < launch.num_arguments; ++i) read_argument(list, inputs, launch);
    if (number >= first) {
      const cudaError_t error = run(folder, launch);
      write_number(number);
      if (error != cudaSuccess) {
        std::fprintf(stderr, "launch %d, %s: %s\n", number, launch.kernel.c_str(),
                     cudaGetErrorString(error));
        write_number(-1);
        outputs.close();
        const std::string next = std::to_string(number + 1);
        execl("/proc/self/exe", argv[0], argv[1], argv[2], next.c_str(), nullptr);
        return 1;
      }
      int64_t num_bytes = 0;
      for (const Buffer& buffer : launch.kept) num_bytes += int64_t(buffer.num_bytes);
      write_number(num_bytes);
      for (const Buffer& buffer : launch.kept) {
        std::vector<char> content(buffer.num_bytes);
        check(cudaMemcpy(content.data(), buffer.device, content.size(), cudaMemcpyDeviceToHost),
              "cudaMemcpy");
        outputs.write(content.data(), std::streamsize(content.size()));
      }
      outputs.flush();
    }
    for (const Buffer& buffer : launch.buffers) check(cudaFree(buffer.device), "cudaFree");
  }
}
