// The mean over ranks of a gradient that is sparse in rows, such as an Embedding's.
#pragma once

#include "lockstep/nn/reducer.h"
#include "nn/device_backend.h"

namespace lockstep::nn_detail {

// This rank's part: `gradient`, coalesced. A dense one becomes sparse, an undefined one has no rows. Throws where it is
// sparse in another way.
torch::Tensor own_rows(const NamedParameter& parameter, const torch::Tensor& gradient, int rank);

// Collective. All ranks pass what own_rows() gave them for the same parameter.
torch::Tensor mean_of_rows(const torch::Tensor& own, const torch::Tensor& parameter, const DeviceBackend& backend);

}  // namespace lockstep::nn_detail
