#include "same_on_all_ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "base/fnv1a.h"

namespace lockstep::nn_detail {
namespace {

std::int64_t fingerprint(const std::string& text) {
  return static_cast<std::int64_t>(fnv1a(text));
}

torch::Tensor as_bytes(const std::string& text, torch::Device device) {
  const auto size = static_cast<std::int64_t>(text.size());
  return torch::from_blob(const_cast<char*>(text.data()), {size}, torch::kByte).clone().to(device);
}

std::vector<std::string> lines_of(const torch::Tensor& bytes) {
  const torch::Tensor local = bytes.cpu().contiguous();
  std::istringstream text(std::string(reinterpret_cast<const char*>(local.const_data_ptr()), local.numel()));
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

// "parameter 'fc.weight': float [10, 5] on rank(s) 0, 2; parameter 'fc.weight': float [10, 6] on rank(s) 1"
std::string first_difference(const std::vector<std::vector<std::string>>& by_rank) {
  std::size_t longest = 0;
  for (const auto& lines : by_rank) longest = std::max(longest, lines.size());
  for (std::size_t line = 0; line < longest; ++line) {
    std::map<std::string, std::string> ranks;
    for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
      const std::string what = line < by_rank[rank].size() ? by_rank[rank][line] : "nothing more";
      ranks[what] += fmt::format("{}{}", ranks[what].empty() ? "" : ", ", rank);
    }
    if (ranks.size() == 1) continue;
    std::string text;
    for (const auto& [what, who] : ranks)
      text += fmt::format("{}{} on rank(s) {}", text.empty() ? "" : "; ", what, who);
    return text;
  }
  return "in the ends of lines";
}

}  // namespace

void check_same_lines(const Backend& backend, const std::string& lines, const std::string& what) {
  const auto options = torch::TensorOptions().dtype(torch::kInt64);
  const torch::Tensor all = backend.all_gather(torch::tensor({fingerprint(lines)}, options).to(backend.device())).cpu();
  if ((all == all[0][0]).all().item<bool>()) return;
  std::vector<std::vector<std::string>> by_rank;
  for (const torch::Tensor& text : backend.all_gather_uneven(as_bytes(lines, backend.device())))
    by_rank.push_back(lines_of(text));
  TORCH_CHECK_VALUE(false, "rank ", backend.rank(), ": ", what,
                    " on every rank, but they differ: ", first_difference(by_rank));
}

}  // namespace lockstep::nn_detail
