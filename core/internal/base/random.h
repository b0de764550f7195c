// Random bytes of the kernel, for keys, tokens and names that nobody else can guess.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "lockstep/base/status.h"

namespace lockstep {

// At most 256 bytes, which the kernel gives at once and whole.
Status fill_random(std::span<std::byte> bytes);

// That many bytes, as two hexadecimal digits each.
Result<std::string> random_digits(std::size_t bytes);

}  // namespace lockstep
