#include "launch/nodes/host_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/host.h"

namespace lockstep::launch {
namespace {

Result<Host> parse_host(std::string_view entry) {
  const Status wrong(ErrorCode::kInvalidArgument,
                     fmt::format("--hosts: '{}': expected NAME or NAME:WORKERS, as in a,b:4", entry));
  const std::size_t colon = entry.rfind(':');
  Host host{std::string(entry.substr(0, colon))};
  if (host.name.empty() || host.name.front() == '-') return wrong;  // not an option of ssh
  if (colon == std::string_view::npos) return host;
  const std::string_view number = entry.substr(colon + 1);
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), host.workers);
  if (error != std::errc() || end != number.data() + number.size() || host.workers < 1) return wrong;
  return host;
}

}  // namespace

Result<std::vector<Host>> parse_hosts(std::string_view text) {
  std::vector<Host> hosts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    LOCKSTEP_ASSIGN_OR_RETURN(Host host, parse_host(text.substr(begin, end - begin)));
    const bool twice =
        std::any_of(hosts.begin(), hosts.end(), [&](const Host& other) { return other.name == host.name; });
    if (twice) {
      return Status(ErrorCode::kInvalidArgument,
                    fmt::format("--hosts: '{}' is there twice; {}:2 means two workers there", host.name, host.name));
    }
    hosts.push_back(std::move(host));
    begin = end + 1;
  }
  return hosts;
}

bool is_this_machine(std::string_view name) {
  return name == "localhost" || name.starts_with("127.") || name == host_name();
}

std::vector<std::string> split_words(std::string_view text) {
  std::vector<std::string> words;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(' ', begin), text.size());
    if (end > begin) words.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

std::vector<std::string> without_options(const std::vector<std::string>& words, const std::vector<std::string>& names) {
  std::vector<std::string> rest;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::size_t equals = words[i].find('=');
    std::string name = words[i].substr(0, equals);
    if (name.starts_with("--")) std::replace(name.begin() + 2, name.end(), '_', '-');
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      rest.push_back(words[i]);
    } else if (equals == std::string::npos) {
      ++i;  // its value
    }
  }
  return rest;
}

std::string quote_for_shell(const std::vector<std::string>& words) {
  std::string line;
  for (const std::string& word : words) {
    if (!line.empty()) line += ' ';
    line += '\'';
    for (const char letter : word) line += letter == '\'' ? std::string("'\\''") : std::string(1, letter);
    line += '\'';
  }
  return line;
}

}  // namespace lockstep::launch
