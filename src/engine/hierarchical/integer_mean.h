// Means of integers between machines. Machines tell one another sums, and in 8, 16 or 32 bits these would wrap: such an
// operation works on copies in 64 bits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "call.h"
#include "engine/core/request.h"

namespace lockstep::comm {

class IntegerMean {
 public:
  static bool is_needed(const Request& request);

  // Copies the inputs. `sizes` are those of the elements in bytes, and become those of the copies.
  IntegerMean(const Request& request, std::span<SizeEntry> sizes);

  // The same operation on the copies.
  const Request& request() const { return widened_; }
  // Once it is done: from the copies to the results that `request` asks for.
  void finish(const Request& request) const;

 private:
  Request widened_;
  std::vector<std::int64_t> inputs_;
  std::vector<std::int64_t> output_;
};

}  // namespace lockstep::comm
