#include "hook_state.h"

#include <fmt/format.h>

#include <charconv>
#include <optional>
#include <system_error>

#include "c10d/streams.h"
#include "lockstep/base/log.h"

namespace lockstep::nn_detail {
namespace {

constexpr const char* kPrefix = "bucket.";

struct BucketKey {
  std::size_t index = 0;
  std::string name;
};

// Of "bucket.INDEX.NAME"; nothing for other keys.
std::optional<BucketKey> bucket_key(const std::string& key) {
  const std::string prefix = kPrefix;
  if (!key.starts_with(prefix)) return std::nullopt;
  std::size_t index = 0;
  const auto [end, error] = std::from_chars(key.data() + prefix.size(), key.data() + key.size(), index);
  const std::string name(end, key.data() + key.size());
  if (error != std::errc() || !name.starts_with('.')) return std::nullopt;
  return BucketKey{index, name.substr(1)};
}

}  // namespace

torch::Tensor counter(std::int64_t value) {
  return torch::full({}, value, torch::kInt64);
}

std::int64_t read_counter(const NamedTensors& tensors, const std::string& name) {
  const auto found = tensors.find(name);
  TORCH_CHECK_VALUE(found != tensors.end(), "the saved state of a communication hook has no '", name,
                    "'; it seems to be that of another hook");
  TORCH_CHECK_VALUE(found->second.numel() == 1 && found->second.scalar_type() == torch::kInt64,
                    "the saved state of a communication hook: '", name, "' must be a number, found ",
                    found->second.scalar_type(), ' ', found->second.sizes());
  return found->second.item<std::int64_t>();
}

void check_names(const NamedTensors& tensors, const std::set<std::string>& own) {
  for (const auto& [key, tensor] : tensors) {
    const std::optional<BucketKey> of_bucket = bucket_key(key);
    TORCH_CHECK_VALUE(own.contains(of_bucket ? of_bucket->name : key), "the saved state of a communication hook has '",
                      key, "', which this hook does not keep; it seems to be that of another hook");
  }
}

std::string continued(std::int64_t loaded_iteration) {
  return loaded_iteration == 0 ? "" : fmt::format(", continued from pass {}", loaded_iteration);
}

void add_of_bucket(NamedTensors& all, std::size_t index, const std::string& name, const torch::Tensor& tensor) {
  if (tensor.defined()) all[fmt::format("{}{}.{}", kPrefix, index, name)] = tensor;
}

void WaitingBuckets::load(const NamedTensors& tensors) {
  by_bucket_.clear();
  for (const auto& [key, tensor] : tensors) {
    if (const std::optional<BucketKey> of_bucket = bucket_key(key)) {
      by_bucket_[of_bucket->index][of_bucket->name] = tensor;
    }
  }
}

void WaitingBuckets::add_to(NamedTensors& all) const {
  for (const auto& [index, tensors] : by_bucket_) {
    for (const auto& [name, tensor] : tensors) add_of_bucket(all, index, name, tensor);
  }
}

NamedTensors WaitingBuckets::take(GradBucket& bucket) {
  const auto found = by_bucket_.find(bucket.index());
  if (found == by_bucket_.end()) return {};
  NamedTensors tensors = std::move(found->second);
  by_bucket_.erase(found);
  // Made on the program's stream, read on the hook's, and then dropped.
  for (const auto& [name, tensor] : tensors) {
    if (!tensor.is_cpu()) keep_for_stream(tensor, current_stream(tensor.device()));
  }
  const torch::Tensor shapes = BucketContent(bucket).shapes();  // on the CPU; the saved state may be on a device
  if (tensors.contains(kShapes) && torch::equal(tensors.at(kShapes).cpu(), shapes)) return tensors;
  log::warning(
      fmt::format("bucket {} has other parameters than when the state of its communication hook was saved; "
                  "the hook starts without state there",
                  bucket.index()));
  return {};
}

}  // namespace lockstep::nn_detail
