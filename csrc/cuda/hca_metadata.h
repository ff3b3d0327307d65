// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "dsv4/dsv4.h"

namespace dsv4::cuda {

// Combined token rows -> tables of the HCA form, without a read on the host.
Status hca_metadata(const HcaMetadataProblem& problem, Stream stream);

}  // namespace dsv4::cuda
