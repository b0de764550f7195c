// FNV-1a: a hash that is the same in every build and on every machine, unlike std::hash. For fingerprints that ranks
// compare. It is no protection: two texts with the same hash are easily made.
#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep {

class Fnv1a {
 public:
  void add_word(std::uint64_t word) { value_ = (value_ ^ word) * 1099511628211U; }
  void add_bytes(std::string_view bytes) {
    for (const char byte : bytes) add_word(static_cast<unsigned char>(byte));
  }
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 14695981039346656037U;
};

inline std::uint64_t fnv1a(std::string_view bytes) {
  Fnv1a hash;
  hash.add_bytes(bytes);
  return hash.value();
}

}  // namespace lockstep
