// IntegerMean: means of integers between machines. Machines exchange sums, which would overflow 8, 16 or 32 bits.
// Therefore such an operation works on copies of 64 bits.
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

  // Copies the inputs. `sizes` are in bytes; they are changed to the sizes of the copies.
  IntegerMean(const Request& request, std::span<SizeEntry> sizes);

  // The same operation on the copies.
  const Request& request() const { return widened_; }
  // After the operation: converts the results to the outputs of `request`.
  void finish(const Request& request) const;

 private:
  Request widened_;
  std::vector<std::int64_t> inputs_;
  std::vector<std::int64_t> output_;
};

}  // namespace lockstep::comm
