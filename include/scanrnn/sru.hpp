// SPDX-License-Identifier: Apache-2.0
// Fused cells: pre-activations in, outputs out. Gates are recomputed in backward; beside the inputs
// forward keeps the state at every 32nd step, and only if asked to.
//
// Dtypes: f16, bf16, f32, f64; layouts, sequences, workspace and errors as in scan.hpp.
#pragma once

#include "scanrnn/cells.hpp"
#include "scanrnn/error.hpp"
#include "scanrnn/types.hpp"

namespace scanrnn {

/// The simple recurrent unit; equations in core/cells/sru.hpp.
struct SruForward {
  ConstArray<3> u;            ///< (B,T,D) candidate
  ConstArray<3> forget;       ///< (B,T,D) forget gate, before bias and sigmoid
  ConstArray<3> reset;        ///< (B,T,D) reset gate, before bias and sigmoid
  ConstArray<3> skip;         ///< (B,T,D) highway input, optional: 0
  ConstArray<1> bias_forget;  ///< (D), optional: 0
  ConstArray<1> bias_reset;   ///< (D), optional: 0
  ConstArray<2> c0;           ///< (N,D), optional: 0
  Array<3> h;                 ///< (B,T,D), written
  Array<2> final_state;       ///< (N,D), optional, written: c after each sequence's last step
  Array<2> checkpoints;  ///< (checkpoint_rows, D) contiguous accumulation dtype, optional, written
  Sequences sequences;
  Activation activation = Activation::identity;
};

struct SruBackward {
  ConstArray<3> u, forget, reset, skip;   ///< as in forward
  ConstArray<1> bias_forget, bias_reset;  ///< as in forward
  ConstArray<2> c0;                       ///< as in forward
  ConstArray<2> checkpoints;              ///< what forward wrote
  ConstArray<3> dh;                       ///< (B,T,D), optional: 0
  ConstArray<2> dfinal;                   ///< (N,D), optional: 0
  Array<3> du, dforget, dreset, dskip;    ///< (B,T,D), each optional, written
  Array<1> dbias_forget, dbias_reset;     ///< (D), each optional, written
  Array<2> dc0;                           ///< (N,D), optional, written
  Sequences sequences;
  Activation activation = Activation::identity;
};

std::size_t sru_forward_workspace_bytes(const SruForward& call, const Target& target = {});
std::size_t sru_backward_workspace_bytes(const SruBackward& call, const Target& target = {});
void sru_forward(const SruForward& call, Workspace workspace, const Target& target = {});
void sru_backward(const SruBackward& call, Workspace workspace, const Target& target = {});

}  // namespace scanrnn
