#include "nn/same_on_all_ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <map>
#include <sstream>

#include "base/fnv1a.h"

namespace lockstep::nn_detail {
namespace {

// In front of the text of a rank that cannot take part; no line begins with it.
constexpr char kRefusal = '\x15';

std::int64_t fingerprint(const std::string& text) {
  return static_cast<std::int64_t>(fnv1a(text));
}

torch::Tensor as_bytes(const std::string& text, torch::Device device) {
  const auto size = static_cast<std::int64_t>(text.size());
  return torch::from_blob(const_cast<char*>(text.data()), {size}, torch::kByte).clone().to(device);
}

std::string as_text(const torch::Tensor& bytes) {
  const torch::Tensor local = bytes.cpu().contiguous();
  return {static_cast<const char*>(local.const_data_ptr()), static_cast<std::size_t>(local.numel())};
}

std::vector<std::string> lines_of(const std::string& all) {
  std::istringstream text(all);
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

std::string add_rank(const std::string& ranks, std::size_t rank) {
  return fmt::format("{}{}{}", ranks, ranks.empty() ? "" : ", ", rank);
}

// "parameter 'fc.weight': float [10, 5] on rank(s) 0, 2; parameter 'fc.weight': float [10, 6] on rank(s) 1"
std::string first_difference(const std::vector<std::vector<std::string>>& by_rank) {
  std::size_t longest = 0;
  for (const auto& lines : by_rank) longest = std::max(longest, lines.size());
  for (std::size_t line = 0; line < longest; ++line) {
    std::map<std::string, std::string> ranks;
    for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
      const std::string what = line < by_rank[rank].size() ? by_rank[rank][line] : "nothing more";
      ranks[what] = add_rank(ranks[what], rank);
    }
    if (ranks.size() == 1) continue;
    std::string text;
    for (const auto& [what, who] : ranks)
      text += fmt::format("{}{} on rank(s) {}", text.empty() ? "" : "; ", what, who);
    return text;
  }
  return "in the ends of lines";
}

// "rank(s) 1, 2 cannot take part: bucket_cap_mb must be positive, got 0"; empty if all can.
std::string refusals(const std::vector<std::string>& by_rank) {
  std::map<std::string, std::string> ranks;
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    if (!by_rank[rank].starts_with(kRefusal)) continue;
    std::string& who = ranks[by_rank[rank].substr(1)];
    who = add_rank(who, rank);
  }
  std::string text;
  for (const auto& [why, who] : ranks)
    text += fmt::format("{}rank(s) {} cannot take part: {}", text.empty() ? "" : "; ", who, why);
  return text;
}

std::string differences(const std::vector<std::string>& by_rank) {
  if (std::string refused = refusals(by_rank); !refused.empty()) return refused;
  std::vector<std::vector<std::string>> lines;
  lines.reserve(by_rank.size());
  for (const std::string& text : by_rank) lines.push_back(lines_of(text));
  return "they differ: " + first_difference(lines);
}

void compare(const DeviceBackend& backend, const std::string& mine, const std::string& what) {
  const auto options = torch::TensorOptions().dtype(torch::kInt64);
  const torch::Tensor all = backend.all_gather(torch::tensor({fingerprint(mine)}, options).to(backend.device())).cpu();
  if ((all == all[0][0]).all().item<bool>()) return;
  std::vector<std::string> by_rank;
  for (const torch::Tensor& text : backend.all_gather_uneven(as_bytes(mine, backend.device())))
    by_rank.push_back(as_text(text));
  if (mine.starts_with(kRefusal)) return;
  TORCH_CHECK_VALUE(false, "rank ", backend.rank(), ": ", what, " on every rank, but ", differences(by_rank));
}

}  // namespace

void check_same_lines(const DeviceBackend& backend, const std::function<std::string()>& own_lines,
                      const std::string& what) {
  if (backend.world_size() == 1) return static_cast<void>(own_lines());
  std::exception_ptr refused;
  std::string mine;
  try {
    mine = own_lines();
  } catch (const c10::Error& error) {
    refused = std::current_exception();
    mine = kRefusal + std::string(error.what_without_backtrace());
  } catch (const std::exception& error) {
    refused = std::current_exception();
    mine = kRefusal + std::string(error.what());
  }
  compare(backend, mine, what);
  if (refused) std::rethrow_exception(refused);
}

}  // namespace lockstep::nn_detail
