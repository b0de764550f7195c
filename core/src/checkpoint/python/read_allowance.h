// Memory that reading may take beyond a multiple of the bytes that are read. The parts of one checkpoint share it: with
// one for each part, a short folder of many parts could ask for any amount.
#pragma once

#include <cstdint>

namespace lockstep::checkpoint {

struct ReadAllowance {
  std::uint64_t pickled = std::uint64_t{256} << 20;  // of the values of pickles
  std::uint64_t inflated = std::uint64_t{64} << 20;  // of zip entries
};

}  // namespace lockstep::checkpoint
