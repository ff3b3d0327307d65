// SPDX-License-Identifier: Apache-2.0
// Who decodes which statement. One file a family; each function there carries a link to its section
// of the PTX ISA. A statement that no family knows is an error.
#pragma once

#include "program.h"

namespace dsv4::simulator {

void decode_integer(Decoder&,
                    Instruction&);  // integer.cpp: add.s32 .. prmt, logic, shifts, setp, selp
void decode_float(Decoder&, Instruction&);    // float.cpp: f16, bf16, f32, f32x2, f64 arithmetic
void decode_convert(Decoder&, Instruction&);  // convert.cpp: cvt
void decode_move(Decoder&, Instruction&);     // move.cpp: mov, cvta, mapa, isspacep, createpolicy
void decode_load_store(Decoder&, Instruction&);  // load_store.cpp: ld, st, ldu, prefetch, discard
void decode_atomic(Decoder&, Instruction&);      // atomic.cpp: atom, red
void decode_warp(Decoder&,
                 Instruction&);  // warp.cpp: shfl, vote, elect, redux, match, activemask, bar.warp
void decode_barrier(Decoder&,
                    Instruction&);  // barrier.cpp: bar, barrier, barrier.cluster, fence, membar
void decode_mbarrier(Decoder&, Instruction&);  // mbarrier.cpp
void decode_cp_async(Decoder&, Instruction&);  // cp_async.cpp: cp.async (not bulk)
void decode_bulk_copy(
    Decoder&, Instruction&);  // bulk_copy.cpp: cp.async.bulk, cp.reduce.async.bulk, st.async
void decode_tensor_copy(Decoder&,
                        Instruction&);         // tensor_copy.cpp: cp.async.bulk.tensor, tensor maps
void decode_wgmma(Decoder&, Instruction&);     // wgmma.cpp
void decode_mma_sync(Decoder&, Instruction&);  // mma_sync.cpp
void decode_matrix_move(Decoder&, Instruction&);  // matrix_move.cpp: ldmatrix, stmatrix, movmatrix
void decode_tcgen05(Decoder&, Instruction&);      // tcgen05.cpp
void decode_cluster_launch(
    Decoder&, Instruction&);  // cluster_launch.cpp: clusterlaunchcontrol, griddepcontrol
void decode_hint(Decoder&, Instruction&);  // hint.cpp: setmaxnreg, nanosleep, pmevent, trap, call

// The family of a statement; errors if there is none.
Decode family_of(const ptx::Statement& statement);

}  // namespace dsv4::simulator
