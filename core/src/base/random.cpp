#include "base/random.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/random.h>

#include <cerrno>
#include <vector>

namespace lockstep {

Status fill_random(std::span<std::byte> bytes) {
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    return Status::from_errno("cannot draw random bytes", errno);
  return {};
}

Result<std::string> random_digits(std::size_t bytes) {
  std::vector<unsigned char> drawn(bytes);
  LOCKSTEP_RETURN_IF_ERROR(fill_random(std::as_writable_bytes(std::span(drawn))));
  return fmt::format("{:02x}", fmt::join(drawn, ""));
}

}  // namespace lockstep
