#include "transfer.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "base/fnv1a.h"
#include "lockstep/c10d/objects.h"
#include "nn/helpers/replica_hash.h"

namespace lockstep::elastic_detail {
namespace {

// Tensors of fewer bytes go with the names, because a message of its own takes longer.
constexpr std::size_t kSmall = 16384;

// A tensor of a part.
struct Entry {
  std::string name;
  std::int64_t dtype = 0;
  std::vector<std::int64_t> sizes = {};
  std::vector<std::int64_t> strides = {};  // of a dense tensor
  std::string bytes = {};                  // of a small tensor; a large one is a message after the contents
  std::int64_t same_as = -1;               // the number of an entry that is the same memory

  bool is_message() const { return same_as < 0 && bytes.empty(); }
};
auto fields(Entry& entry) {
  return std::tie(entry.name, entry.dtype, entry.sizes, entry.strides, entry.bytes, entry.same_as);
}

struct Contents {
  std::map<std::string, std::string> values = {};
  std::vector<Entry> entries = {};
};
auto fields(Contents& contents) {
  return std::tie(contents.values, contents.entries);
}

checkpoint::Checkpoint saved(const Part& part) {
  checkpoint::Checkpoint state;
  if (part.model != nullptr) {
    state.add_model(*part.model);
  } else if (part.optimizer != nullptr) {
    state.add_optimizer(*part.optimizer);
  } else {
    part.save(state);
  }
  return state;
}

torch::Tensor memory_of(const torch::Tensor& dense) {
  return torch::from_blob(dense.mutable_data_ptr(), {static_cast<std::int64_t>(dense.nbytes())}, torch::kByte);
}

bool is_dense_on_cpu(const torch::Tensor& tensor) {
  return tensor.is_cpu() && tensor.is_non_overlapping_and_dense() && !tensor.is_conj() && !tensor.is_neg();
}

// The contents of a part, and the tensors that follow as messages.
Contents contents_of(const checkpoint::Checkpoint& state, std::vector<torch::Tensor>& messages) {
  Contents contents{.values = state.content().metadata};
  std::map<std::tuple<const void*, std::int64_t, std::vector<std::int64_t>, std::vector<std::int64_t>>, std::int64_t>
      known;
  for (const auto& [name, tensor] : state.content().tensors) {
    torch::Tensor dense = tensor.detach().cpu();
    if (!is_dense_on_cpu(dense)) dense = dense.resolve_conj().resolve_neg().contiguous();
    Entry entry{name, static_cast<std::int64_t>(dense.scalar_type()), dense.sizes().vec(), dense.strides().vec()};
    const auto number = static_cast<std::int64_t>(contents.entries.size());
    const auto [first, is_new] = known.try_emplace(
        std::tuple(tensor.const_data_ptr(), entry.dtype, entry.sizes, tensor.strides().vec()), number);
    if (!is_new) {
      entry.same_as = first->second;
    } else if (dense.nbytes() >= kSmall) {
      messages.push_back(dense);
    } else {
      // One byte more: an empty tensor is no message either.
      entry.bytes.assign(static_cast<const char*>(dense.const_data_ptr()), dense.nbytes());
      entry.bytes.push_back('\0');
    }
    contents.entries.push_back(std::move(entry));
  }
  return contents;
}

// Puts the value of an entry into `tensor`, by way of other memory if it is laid out in another way than the sender's.
void take(const Entry& entry, const torch::Tensor& tensor, int from) {
  const bool fits = is_dense_on_cpu(tensor) && tensor.strides() == torch::IntArrayRef(entry.strides) &&
                    static_cast<std::int64_t>(tensor.scalar_type()) == entry.dtype;
  const torch::Tensor memory =
      fits ? tensor : torch::empty_strided(entry.sizes, entry.strides, static_cast<torch::ScalarType>(entry.dtype));
  if (entry.is_message()) {
    recv(memory_of(memory), from);
  } else {
    std::memcpy(memory.mutable_data_ptr(), entry.bytes.data(), memory.nbytes());
  }
  if (!fits) {
    tensor.copy_(memory);
  } else if (!tensor.is_inference()) {
    tensor.unsafeGetTensorImpl()->bump_version();
  }
}

// Takes all entries into the tensors of the same names.
void take_all(const Contents& contents, const std::map<std::string, torch::Tensor>& own, int from) {
  const torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> taken;
  for (const Entry& entry : contents.entries) {
    const torch::Tensor& tensor = taken.emplace_back(own.at(entry.name).detach());
    if (entry.same_as < 0) {
      take(entry, tensor, from);
    } else if (const torch::Tensor& first = taken[static_cast<std::size_t>(entry.same_as)];
               first.const_data_ptr() != tensor.const_data_ptr()) {
      tensor.copy_(first);
    }
  }
}

void require_same_names(const Contents& contents, const std::map<std::string, torch::Tensor>& own, int from) {
  bool same = contents.entries.size() == own.size();
  for (const Entry& entry : contents.entries) {
    const auto found = own.find(entry.name);
    same = same && found != own.end() && found->second.sizes() == torch::IntArrayRef(entry.sizes);
  }
  TORCH_CHECK_VALUE(same, "ElasticTraining: a model has other parameters or buffers on this rank than on rank ", from,
                    ", or with other shapes: make the same model on all ranks");
}

// A tensor for each entry: of zeros without memory, where a value follows that needs none.
checkpoint::Checkpoint as_checkpoint(const Contents& contents, bool with_values, int from) {
  checkpoint::TensorFile file;
  file.metadata = contents.values;
  for (const Entry& entry : contents.entries) {
    const auto dtype = static_cast<torch::ScalarType>(entry.dtype);
    file.tensors.emplace(entry.name, with_values ? torch::empty_strided(entry.sizes, entry.strides, dtype)
                                                 : torch::zeros({}, dtype).expand(entry.sizes));
  }
  if (with_values) take_all(contents, file.tensors, from);
  return checkpoint::Checkpoint::of(std::move(file), fmt::format("the state of rank {}", from));
}

}  // namespace

double hash_of_state(const std::vector<Part>& parts) {
  std::string values;
  std::vector<NamedParameter> tensors;
  for (const Part& part : parts) {
    if (part.is_programs) continue;
    const checkpoint::Checkpoint state = saved(part);
    for (const auto& [name, value] : state.content().metadata) values += fmt::format("{}: {}\n", name, value);
    for (const auto& [name, tensor] : state.content().tensors) {
      values += name + "\n";
      tensors.push_back({name, tensor});
    }
  }
  std::vector<double> hashes = nn_detail::hashes_of(tensors);
  hashes.push_back(static_cast<double>(fnv1a(values) >> 11));
  return nn_detail::hash_of(hashes);
}

void send_state(const std::vector<Part>& parts, int to) {
  std::vector<Contents> contents;
  std::vector<torch::Tensor> messages;
  contents.reserve(parts.size());
  for (const Part& part : parts) contents.push_back(contents_of(saved(part), messages));
  send_object(contents, to);
  for (const torch::Tensor& message : messages) send(memory_of(message), to);
}

void receive_state(const std::vector<Part>& parts, int from) {
  std::vector<Contents> contents;
  recv_object(contents, from);
  TORCH_CHECK_VALUE(parts.size() == contents.size(), "ElasticTraining: this rank has added ", parts.size(),
                    " models, optimizers and other states, and another rank ", contents.size(),
                    ": add the same on all ranks, in the same order");
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const Part& part = parts[i];
    if (part.model != nullptr) {
      const checkpoint::Checkpoint own = saved(part);
      require_same_names(contents[i], own.content().tensors, from);
      take_all(contents[i], own.content().tensors, from);
    } else if (part.optimizer != nullptr) {
      // Makes the state that this rank has not yet, whose values come afterwards.
      as_checkpoint(contents[i], /*with_values=*/false, from).restore_optimizer(*part.optimizer);
      take_all(contents[i], saved(part).content().tensors, from);
    } else {
      part.restore(as_checkpoint(contents[i], /*with_values=*/true, from));
    }
  }
}

}  // namespace lockstep::elastic_detail
