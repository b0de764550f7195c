#include "store/membership/reconfigure_handle.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "base/number_text.h"
#include "base/printable.h"
#include "store/tcp/socket.h"

namespace lockstep::comm {
namespace {

constexpr std::string_view kMark = "lockstep-handle-1";
constexpr char kSeparator = '|';
constexpr std::size_t kFields = 8;
constexpr std::size_t kCheckBytes = 9;       // a separator, and eight digits
constexpr std::size_t kMostBytes = 4 << 10;  // several times as long as any
constexpr std::size_t kShown = 60;           // of a text that is no handle

std::string without_separator(std::string text) {
  std::replace(text.begin(), text.end(), kSeparator, '_');
  return text;
}

std::string check_of(std::string_view text) {
  const auto sum = ::crc32(0, reinterpret_cast<const Bytef*>(text.data()), static_cast<uInt>(text.size()));
  return fmt::format("{}{:08x}", kSeparator, sum);
}

std::vector<std::string> fields_of(std::string_view text) {
  std::vector<std::string> fields;
  for (;;) {
    const std::size_t end = text.find(kSeparator);
    fields.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) return fields;
    text.remove_prefix(end + 1);
  }
}

Status no_handle(std::string_view text) {
  return {ErrorCode::kInvalidArgument,
          fmt::format("expected a handle of Lockstep, all of what get_reconfigure_handle has returned, found '{}'{}",
                      printable(text.substr(0, kShown)), text.size() > kShown ? "..." : "")};
}

}  // namespace

std::string to_text(const ReconfigureHandle& handle) {
  const std::string text =
      fmt::format("{1}{0}{2}{0}{3}{0}{4}{0}{5}{0}{6}{0}{7}{0}{8}", kSeparator, kMark, without_separator(handle.build),
                  handle.job, handle.id, handle.rank, handle.pid, without_separator(handle.host), handle.store.text());
  return text + check_of(text);
}

Result<ReconfigureHandle> parse_reconfigure_handle(std::string_view text) {
  if (text.size() < kCheckBytes || text.size() > kMostBytes) return no_handle(text);
  const std::string_view body = text.substr(0, text.size() - kCheckBytes);
  if (text.substr(body.size()) != check_of(body)) return no_handle(text);
  const std::vector<std::string> fields = fields_of(body);
  if (fields.size() != kFields || fields[0] != kMark || fields[3].empty()) return no_handle(text);
  const std::optional<int> rank = number_from_text<int>(fields[4]);
  const std::optional<int> pid = number_from_text<int>(fields[5]);
  const Result<Endpoint> store = parse_endpoint(fields[7], "reconfigure handle");
  if (!rank || *rank < 0 || !pid || !store.ok() || store.value().port == 0) return no_handle(text);
  return ReconfigureHandle{fields[1], fields[2], fields[3], *rank, *pid, fields[6], store.value()};
}

Status check_reachable(const std::vector<std::string>& handles) {
  std::vector<ReconfigureHandle> members;
  for (const std::string& text : handles) {
    LOCKSTEP_ASSIGN_OR_RETURN(ReconfigureHandle member, parse_reconfigure_handle(text));
    members.push_back(std::move(member));
  }
  const auto is_with_first = [&](const ReconfigureHandle& one) { return one.host == members.front().host; };
  if (std::all_of(members.begin(), members.end(), is_with_first)) return {};
  for (std::size_t rank = 0; rank < members.size(); ++rank) {
    if (!is_loopback(members[rank].store)) continue;
    return {ErrorCode::kUnavailable,
            fmt::format("other machines cannot reach rank {} (pid {} on host {}) at {}; set MASTER_ADDR to the address "
                        "of a machine of the job that all machines reach",
                        rank, members[rank].pid, members[rank].host, members[rank].store.host)};
  }
  return {};
}

std::string describe(const ReconfigureHandle& handle) {
  return fmt::format("pid {} on host {} (rank {} before)", handle.pid, handle.host, handle.rank);
}

}  // namespace lockstep::comm
