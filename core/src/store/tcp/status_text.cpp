#include "store/tcp/status_text.h"

#include <fmt/format.h>

#include <charconv>

namespace lockstep::comm {

std::string to_text(const Status& status) {
  return fmt::format("{} {}", static_cast<int>(status.code()), status.message());
}

Status status_from(std::string_view text) {
  int code = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), code);
  if (error != std::errc() || code < 0 || code > static_cast<int>(ErrorCode::kInternal)) {
    return {ErrorCode::kCorrupt, fmt::format("an outcome in the store is damaged: '{}'", text)};
  }
  const auto message = text.substr(static_cast<std::size_t>(end - text.data()));
  return {static_cast<ErrorCode>(code), std::string(message.substr(message.empty() ? 0 : 1))};
}

}  // namespace lockstep::comm
