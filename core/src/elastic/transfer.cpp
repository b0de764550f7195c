#include "transfer.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "lockstep/c10d/objects.h"

namespace lockstep::elastic_detail {
namespace {

// Name, dtype, shape.
using Entry = std::tuple<std::string, std::int64_t, std::vector<std::int64_t>>;

// What is in a part, without the tensors' values.
using Contents = std::pair<std::map<std::string, std::string>, std::vector<Entry>>;

}  // namespace

void send_state(const std::vector<checkpoint::Checkpoint>& parts, int to) {
  std::vector<Contents> contents;
  std::vector<torch::Tensor> tensors;
  for (const checkpoint::Checkpoint& part : parts) {
    Contents& one = contents.emplace_back(part.content().metadata, std::vector<Entry>());
    for (const auto& [name, tensor] : part.content().tensors) {
      one.second.emplace_back(name, static_cast<std::int64_t>(tensor.scalar_type()), tensor.sizes().vec());
      if (tensor.numel() > 0) tensors.push_back(tensor.detach().cpu().contiguous());
    }
  }
  send_object(contents, to);
  for (const torch::Tensor& tensor : tensors) send(tensor, to);
}

std::vector<checkpoint::Checkpoint> receive_state(int from) {
  std::vector<Contents> contents;
  recv_object(contents, from);
  std::vector<checkpoint::Checkpoint> parts;
  for (Contents& one : contents) {
    checkpoint::TensorFile file;
    file.metadata = std::move(one.first);
    for (const auto& [name, dtype, sizes] : one.second) {
      const torch::Tensor tensor = torch::empty(sizes, static_cast<torch::ScalarType>(dtype));
      if (tensor.numel() > 0) recv(tensor, from);
      file.tensors.emplace(name, tensor);
    }
    parts.push_back(checkpoint::Checkpoint::of(std::move(file), fmt::format("the state of rank {}", from)));
  }
  return parts;
}

}  // namespace lockstep::elastic_detail
