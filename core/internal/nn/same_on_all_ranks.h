// Compares text across ranks: what must be the same on all of them.
#pragma once

#include <functional>
#include <string>

#include "device_backend.h"

namespace lockstep::nn_detail {

// Collective. `own_lines()` returns this rank's text. It throws if this rank cannot take part, because its own
// arguments are wrong: others cannot see that, and would wait for it. If ranks differ, throws on every rank: names the
// first line that differs, and which ranks have what. If some cannot take part, these throw their own exception again,
// and the others one that has its text and their ranks. `what` begins the error: "DistributedDataParallel needs the
// same model". A group of one rank compares nothing.
void check_same_lines(const DeviceBackend& backend, const std::function<std::string()>& own_lines,
                      const std::string& what);

}  // namespace lockstep::nn_detail
