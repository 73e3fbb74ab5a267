// Matmuls of 16-bit weights in which every result is one chain of tensor-core sums over k, in order, whatever the
// number of rows (compute capability 9.0). A row's bits therefore depend on that row alone.
#pragma once

#include "kernels/cuda/launch.h"

namespace sluice::cuda {

// Whether matmuls of weights of this type are computed so on this device.
bool has_chains(const Launch&, DType weights);
// A matmul of one matrix or of experts. x has the type of the weights, in dense rows of a multiple of 64, or is rounded
// to it here. Returns false, having done nothing, for other problems; the answer does not depend on the rows.
bool matmul_by_chains(const Launch&, const MatmulProblem&);

}  // namespace sluice::cuda
