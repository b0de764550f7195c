// Compares text across ranks: what must be the same on all of them.
#pragma once

#include <string>

#include "backend.h"

namespace lockstep::nn_detail {

// Collective. `lines` is this rank's text. If ranks differ, throws on every rank: names the first line that differs,
// and which ranks have what. `what` begins the error: "DistributedDataParallel needs the same model".
void check_same_lines(const Backend& backend, const std::string& lines, const std::string& what);

}  // namespace lockstep::nn_detail
