// SPDX-License-Identifier: Apache-2.0
// Marks functions that host code and kernels share.
#pragma once

#if defined(__CUDACC__)
#define DSV4_HOST_DEVICE __host__ __device__
#else
#define DSV4_HOST_DEVICE
#endif
