#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "base/host.h"
#include "base/number_text.h"
#include "launch/nodes/hosts_job.h"

namespace lockstep::launch {
namespace {

Status wrong(std::string_view entry, std::string_view expected) {
  return Status(ErrorCode::kInvalidArgument, fmt::format("--hosts: '{}': expected {}", entry, expected));
}

constexpr std::string_view kForms = "NAME or NAME:WORKERS, as in a,b:4,[fd00::2]:4";

// The address in its usual form; nullopt: it is no IPv6 address. A zone ("%eth0") stays.
std::optional<std::string> as_ipv6(std::string_view text) {
  const std::size_t percent = std::min(text.find('%'), text.size());
  in6_addr number{};
  std::array<char, INET6_ADDRSTRLEN> usual{};
  if (inet_pton(AF_INET6, std::string(text.substr(0, percent)).c_str(), &number) != 1) return std::nullopt;
  if (inet_ntop(AF_INET6, &number, usual.data(), usual.size()) == nullptr) return std::nullopt;
  if (percent + 1 == text.size()) return std::nullopt;  // a zone without a name
  return usual.data() + std::string(text.substr(percent));
}

Result<int> parse_workers(std::string_view number, std::string_view entry) {
  const std::optional<int> workers = number_from_text<int>(number);
  if (workers && *workers >= 1) return *workers;
  return wrong(entry, fmt::format("a number of workers from 1 after the ':', found '{}'; {}", number, kForms));
}

// What is behind "user@": "[fd00::2]", "[fd00::2]:4".
Result<Host> parse_in_brackets(std::string_view place, std::string_view entry) {
  const std::size_t closing = place.find(']');
  if (closing == std::string_view::npos) return wrong(entry, "']' behind the IPv6 address, as in [fd00::2]:4");
  const auto address = as_ipv6(place.substr(1, closing - 1));
  if (!address) return wrong(entry, "an IPv6 address in the brackets; names and IPv4 addresses have none: b:4");
  Host host{*address};
  const std::string_view rest = place.substr(closing + 1);
  if (rest.empty()) return host;
  if (rest.front() != ':') return wrong(entry, "nothing or ':' and a number behind ']', as in [fd00::2]:4");
  LOCKSTEP_ASSIGN_OR_RETURN(host.workers, parse_workers(rest.substr(1), entry));
  return host;
}

Result<Host> parse_place(std::string_view place, std::string_view entry) {
  if (place.starts_with('[')) return parse_in_brackets(place, entry);
  const std::size_t colon = place.find(':');
  Host host{std::string(place.substr(0, colon))};
  if (colon != place.rfind(':')) {
    const auto address = as_ipv6(place);
    if (!address) return wrong(entry, "an IPv6 address, in brackets if a number follows, as in [fd00::2]:4");
    host.name = *address;
    return host;
  }
  if (host.name.empty()) return wrong(entry, kForms);
  if (colon == std::string_view::npos) return host;
  LOCKSTEP_ASSIGN_OR_RETURN(host.workers, parse_workers(place.substr(colon + 1), entry));
  return host;
}

Result<Host> parse_host(std::string_view entry) {
  if (entry.starts_with('-')) return wrong(entry, kForms);  // not an option of ssh
  const std::size_t at = entry.rfind('@');
  const std::size_t user = at == std::string_view::npos ? 0 : at + 1;
  LOCKSTEP_ASSIGN_OR_RETURN(Host host, parse_place(entry.substr(user), entry));
  host.name = std::string(entry.substr(0, user)) + host.name;
  if (host.name.find_first_of("[] \t") != std::string::npos || user == 1) return wrong(entry, kForms);
  return host;
}

// "b:2", "user@[fd00::2]:2".
std::string with_two_workers(std::string_view name) {
  const std::size_t user = name.rfind('@') + 1;  // 0: it has no '@'
  const std::string_view place = name.substr(user);
  if (place.find(':') == std::string_view::npos) return fmt::format("{}:2", name);
  return fmt::format("{}[{}]:2", name.substr(0, user), place);
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
      return Status(ErrorCode::kInvalidArgument, fmt::format("--hosts: '{}' is there twice; {} means two workers there",
                                                             host.name, with_two_workers(host.name)));
    }
    hosts.push_back(std::move(host));
    begin = end + 1;
  }
  return hosts;
}

bool is_this_machine(std::string_view name) {
  if (name == "localhost" || name.starts_with("127.") || name == "::1" || name == host_name()) return true;
  auto addresses = addresses_of_machine();
  return addresses.ok() && std::find(addresses->begin(), addresses->end(), name) != addresses->end();
}

Result<std::vector<std::string>> split_words(std::string_view text) {
  std::vector<std::string> words;
  std::optional<std::string> word;
  char quote = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char letter = text[i];
    const bool escapes = letter == '\\' && quote != '\'' && i + 1 < text.size() &&
                         (quote == 0 || text[i + 1] == '"' || text[i + 1] == '\\');
    if (quote == 0 && (letter == ' ' || letter == '\t' || letter == '\n')) {
      if (word) words.push_back(*std::exchange(word, std::nullopt));
    } else if (quote == 0 ? letter == '\'' || letter == '"' : letter == quote) {
      quote = quote == 0 ? letter : '\0';
      if (!word) word.emplace();
    } else {
      if (!word) word.emplace();
      *word += escapes ? text[++i] : letter;
    }
  }
  if (quote != 0) {
    return Status(ErrorCode::kInvalidArgument, fmt::format("--ssh '{}': expected another {} at its end", text, quote));
  }
  if (word) words.push_back(*word);
  return words;
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
