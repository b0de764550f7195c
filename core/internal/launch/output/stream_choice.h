// Which output streams of which workers an option selects, in torchrun's notation for --redirects and --tee.
#pragma once

#include <map>
#include <string_view>

#include "lockstep/base/status.h"

namespace lockstep::launch {

enum class Streams { kNone = 0, kOut = 1, kErr = 2, kBoth = 3 };

constexpr bool includes(Streams streams, Streams one) {
  return (static_cast<int>(streams) & static_cast<int>(one)) != 0;
}

struct StreamChoice {
  Streams everyone = Streams::kNone;
  std::map<int, Streams> by_local_rank = {};

  Streams of(int local_rank) const;
  bool any() const;
};

// "0" none, "1" stdout, "2" stderr, "3" both, for all workers; or "0:1,1:3" for single local ranks (the others: none).
Result<StreamChoice> parse_stream_choice(std::string_view text);

}  // namespace lockstep::launch
