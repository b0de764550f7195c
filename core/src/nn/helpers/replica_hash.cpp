#include "nn/helpers/replica_hash.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

namespace lockstep::nn_detail {
namespace {

constexpr std::uint64_t kFactor = 0x9e3779b97f4a7c15U;  // odd, so that multiplying loses nothing

// For each `hash` another result for every other `word`, so a change of one word always changes the end.
std::uint64_t mixed_in(std::uint64_t hash, std::uint64_t word) {
  return std::rotl((hash ^ word) * kFactor, 29);
}

double as_double(std::uint64_t hash) {
  hash = (hash ^ (hash >> 32)) * kFactor;
  return static_cast<double>(std::max<std::uint64_t>(1, (hash ^ (hash >> 29)) >> 11));
}

// Four words at a time do not wait for one another: about as fast as memory gives them.
std::uint64_t hash_of_bytes(const char* bytes, std::size_t size) {
  std::array<std::uint64_t, 4> lanes{1, 2, 3, 4};
  std::array<std::uint64_t, 4> words{};
  std::size_t done = 0;
  for (; done + sizeof(words) <= size; done += sizeof(words)) {
    std::memcpy(words.data(), bytes + done, sizeof(words));
    for (std::size_t i = 0; i < 4; ++i) lanes[i] = mixed_in(lanes[i], words[i]);
  }
  words = {};
  if (done < size) std::memcpy(words.data(), bytes + done, size - done);
  std::uint64_t hash = size;
  for (std::size_t i = 0; i < 4; ++i) hash = mixed_in(hash, mixed_in(lanes[i], words[i]));
  return hash;
}

// On a device: the sum of the bits as whole numbers, which a change of one element changes too.
torch::Tensor sum_of_bits(torch::Tensor values) {
  if (values.is_complex()) values = torch::view_as_real(values);
  constexpr std::array<torch::ScalarType, 9> kOfSize{torch::kByte, torch::kByte, torch::kShort,
                                                     torch::kByte, torch::kInt,  torch::kByte,
                                                     torch::kByte, torch::kByte, torch::kLong};
  return values.reshape({-1}).view(kOfSize.at(values.element_size())).sum(torch::kLong);
}

}  // namespace

std::vector<double> hashes_of(const std::vector<NamedParameter>& tensors) {
  const torch::NoGradGuard no_grad;
  std::vector<double> hashes(tensors.size(), 1);
  std::vector<torch::Tensor> sums;
  std::vector<std::size_t> summed;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const torch::Tensor& tensor = tensors[i].tensor;
    if (!tensor.defined() || tensor.layout() != torch::kStrided) continue;
    const torch::Tensor values = tensor.detach().contiguous();
    if (values.is_cpu()) {
      hashes[i] = as_double(hash_of_bytes(static_cast<const char*>(values.const_data_ptr()), values.nbytes()));
    } else {
      sums.push_back(sum_of_bits(values).to(tensors[i].tensor.device()));
      summed.push_back(i);
    }
  }
  for (std::size_t i = 0; i < sums.size(); ++i)
    hashes[summed[i]] = as_double(static_cast<std::uint64_t>(sums[i].item<std::int64_t>()));
  return hashes;
}

double hash_of(const std::vector<double>& hashes) {
  return as_double(hash_of_bytes(reinterpret_cast<const char*>(hashes.data()), hashes.size() * sizeof(double)));
}

std::string who_differs(const std::vector<double>& by_rank) {
  std::vector<std::vector<int>> alike;  // the ranks with the same number
  for (int rank = 0; rank < static_cast<int>(by_rank.size()); ++rank) {
    const auto has_same = [&](const std::vector<int>& ranks) {
      return by_rank[static_cast<std::size_t>(ranks.front())] == by_rank[static_cast<std::size_t>(rank)];
    };
    const auto known = std::find_if(alike.begin(), alike.end(), has_same);
    if (known == alike.end()) {
      alike.push_back({rank});
    } else {
      known->push_back(rank);
    }
  }
  if (alike.size() < 2) return "";
  const auto most =
      std::max_element(alike.begin(), alike.end(), [](const auto& a, const auto& b) { return a.size() < b.size(); });
  if (2 * most->size() > by_rank.size()) {
    std::vector<int> others;
    for (auto ranks = alike.begin(); ranks != alike.end(); ++ranks) {
      if (ranks != most) others.insert(others.end(), ranks->begin(), ranks->end());
    }
    std::sort(others.begin(), others.end());
    return fmt::format("of rank(s) {} is not that of the other {} ranks", fmt::join(others, ", "), most->size());
  }
  std::vector<std::string> texts;
  texts.reserve(alike.size());
  for (const std::vector<int>& ranks : alike) texts.push_back(fmt::format("{}", fmt::join(ranks, ", ")));
  return fmt::format("is not the same on all ranks: {}", fmt::join(texts, " | "));
}

}  // namespace lockstep::nn_detail
