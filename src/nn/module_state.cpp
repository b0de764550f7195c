#include "module_state.h"

#include <fmt/format.h>

#include <map>
#include <sstream>

#include "packed_buffers.h"

namespace lockstep::nn_detail {
namespace {

// Parameters and buffers are sent in blocks of about this size.
constexpr std::size_t kBlockBytes = std::size_t{32} << 20;

std::string shape_of(const torch::Tensor& tensor) {
  std::ostringstream text;
  text << tensor.scalar_type() << ' ' << tensor.sizes();
  // Gradients are summed in the order of memory: all ranks need the same strides (channels-last or not).
  if (!tensor.is_contiguous()) text << " strides " << tensor.strides();
  return text.str();
}

// One line for each parameter and buffer.
std::string describe(const torch::nn::Module& module) {
  std::string text;
  for (const auto& item : module.named_parameters()) {
    text += fmt::format("parameter '{}': {}{}\n", item.key(), shape_of(item.value()),
                        item.value().requires_grad() ? "" : ", frozen");
  }
  for (const auto& item : module.named_buffers())
    text += fmt::format("buffer '{}': {}\n", item.key(), shape_of(item.value()));
  return text;
}

// FNV-1a: the same in every build, unlike std::hash.
std::int64_t fingerprint(const std::string& text) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char byte : text) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
  return static_cast<std::int64_t>(hash);
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
  for (std::size_t line = 0;; ++line) {
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
}

}  // namespace

void check_same_model(const torch::nn::Module& module, const Backend& backend) {
  const std::string mine = describe(module);
  const torch::Tensor all =
      backend
          .all_gather(
              torch::tensor({fingerprint(mine)}, torch::TensorOptions().dtype(torch::kInt64)).to(backend.device()))
          .cpu();
  if ((all == all[0][0]).all().item<bool>()) return;
  std::vector<std::vector<std::string>> by_rank;
  for (const torch::Tensor& text : backend.all_gather_uneven(as_bytes(mine, backend.device())))
    by_rank.push_back(lines_of(text));
  TORCH_CHECK_VALUE(
      false, "rank ", backend.rank(),
      ": DistributedDataParallel needs the same model on every rank, but they differ: ", first_difference(by_rank));
}

void broadcast_state(const torch::nn::Module& module, const Backend& backend, int source) {
  std::vector<NamedParameter> block;
  std::size_t bytes = 0;
  const auto send = [&] {
    PackedBuffers packed(backend, std::exchange(block, {}));
    packed.start(source);
    packed.finish();
    bytes = 0;
  };
  const auto add = [&](const std::string& name, const torch::Tensor& tensor) {
    if (!tensor.defined()) return;
    block.push_back({name, tensor.detach()});
    bytes += tensor.nbytes();
    if (bytes >= kBlockBytes) send();
  };
  for (const auto& item : module.named_parameters()) add(item.key(), item.value());
  for (const auto& item : module.named_buffers()) add(item.key(), item.value());
  send();
}

}  // namespace lockstep::nn_detail
