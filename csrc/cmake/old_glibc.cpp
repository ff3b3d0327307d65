// SPDX-License-Identifier: Apache-2.0
// Part of builds with DSV4_MANYLINUX only. libstdc++ reads this variable of glibc 2.32 to skip
// atomics in processes with one thread; defined here, binaries need no such glibc, and always use
// atomics.
extern "C" __attribute__((visibility("hidden"))) char __libc_single_threaded = 0;
