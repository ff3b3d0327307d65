// Warp functions as CUDA spells them, for tests/simulator/test_warp.py. out[function][lane].
#include <cstdint>

extern "C" __global__ void intrinsics(const uint32_t* in, uint32_t* out) {
  const uint32_t lane = threadIdx.x, value = in[lane];
  const bool odd = value & 1;
  uint32_t k = 0;
  const auto put = [&](uint32_t result) { out[32 * k++ + lane] = result; };
  put(__shfl_sync(~0u, value, lane * 7 + 3));
  put(__shfl_sync(~0u, value, lane + 5, 8));
  put(__shfl_up_sync(~0u, value, 3));
  put(__shfl_up_sync(~0u, value, 3, 16));
  put(__shfl_down_sync(~0u, value, 5));
  put(__shfl_down_sync(~0u, value, 5, 4));
  put(__shfl_xor_sync(~0u, value, 9));
  put(__shfl_xor_sync(~0u, value, 9, 8));
  put(__ballot_sync(~0u, odd));
  put(__all_sync(~0u, odd) * 4 + __any_sync(~0u, odd) * 2 + __uni_sync(~0u, odd));
  put(__reduce_add_sync(~0u, value));
  put(__reduce_min_sync(~0u, int(value)));
  put(__reduce_max_sync(~0u, value));
  put(__reduce_xor_sync(~0u, value));
  put(__match_any_sync(~0u, value % 5));
  int same;
  put(__match_all_sync(~0u, value, &same) + same);
  put(__match_all_sync(~0u, 7ull << 40, &same) + same);
  put(__activemask());
  // Halves of the warp, each with its own mask, in different branches and then in one.
  if (lane < 16) {
    put(__reduce_add_sync(0xFFFFu, lane));
  } else {
    put(__reduce_add_sync(0xFFFF0000u, 2 * lane));
  }
  put(__reduce_add_sync(lane < 16 ? 0xFFFFu : 0xFFFF0000u, value));
  if (lane % 3 == 0) put(__activemask());
}

// The lanes come to the second half of a party at different times.
extern "C" __global__ void late_lanes(uint32_t* out) {
  __shared__ uint32_t block[32];
  const uint32_t lane = threadIdx.x;
  block[lane] = 0;
  __syncwarp();
  for (uint32_t k = 0; k < lane; ++k) block[lane] += k;
  __syncwarp();
  out[lane] = __shfl_sync(~0u, block[lane], 31 - lane);
  if (lane >= 8) return;  // exited lanes are not waited for
  __syncwarp();
  out[lane + 32] = __ballot_sync(0xFF, lane % 2);
}
