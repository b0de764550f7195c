#include "state_copies.h"

#include <torch/optim.h>
#include <torch/serialize.h>

#include <optional>
#include <sstream>
#include <vector>

namespace lockstep::nn_detail {
namespace {

std::size_t bytes_of(const torch::Tensor& tensor) {
  return tensor.defined() ? tensor.nbytes() : 0;
}

// The tensors of a state of LibTorch's kinds but LBFGS, which cannot be sharded; nothing for other kinds.
std::optional<std::vector<torch::Tensor*>> tensors_of(torch::optim::OptimizerParamState& state) {
  namespace optim = torch::optim;
  using Tensors = std::vector<torch::Tensor*>;
  if (auto* sgd = dynamic_cast<optim::SGDParamState*>(&state)) return Tensors{&sgd->momentum_buffer()};
  if (auto* adam = dynamic_cast<optim::AdamParamState*>(&state)) {
    return Tensors{&adam->exp_avg(), &adam->exp_avg_sq(), &adam->max_exp_avg_sq()};
  }
  if (auto* adam = dynamic_cast<optim::AdamWParamState*>(&state)) {
    return Tensors{&adam->exp_avg(), &adam->exp_avg_sq(), &adam->max_exp_avg_sq()};
  }
  if (auto* rms = dynamic_cast<optim::RMSpropParamState*>(&state)) {
    return Tensors{&rms->square_avg(), &rms->momentum_buffer(), &rms->grad_avg()};
  }
  if (auto* adagrad = dynamic_cast<optim::AdagradParamState*>(&state)) return Tensors{&adagrad->sum()};
  return std::nullopt;
}

std::string written(const torch::optim::OptimizerParamState& state) {
  torch::serialize::OutputArchive archive;
  state.serialize(archive);
  std::ostringstream stream;
  archive.save_to(stream);
  return stream.str();
}

torch::serialize::InputArchive opened(const std::string& bytes, std::optional<torch::Device> device = std::nullopt) {
  torch::serialize::InputArchive archive;
  std::istringstream stream(bytes);
  archive.load_from(stream, device);
  return archive;
}

// For kinds of state that LibTorch does not have: counts the bytes that its serialize() writes.
std::size_t bytes_when_written(const torch::optim::OptimizerParamState& state) {
  torch::serialize::InputArchive archive = opened(written(state));
  std::size_t bytes = 0;
  for (const std::string& key : archive.keys()) {
    c10::IValue value;
    if (archive.try_read(key, value) && value.isTensor()) bytes += bytes_of(value.toTensor());
  }
  return bytes;
}

std::size_t bytes_of(torch::optim::OptimizerParamState& state) {
  const auto tensors = tensors_of(state);
  if (!tensors) return bytes_when_written(state);
  std::size_t bytes = 0;
  for (const torch::Tensor* tensor : *tensors) bytes += bytes_of(*tensor);
  return bytes;
}

}  // namespace

std::size_t state_bytes(const torch::optim::Optimizer& optimizer) {
  std::size_t bytes = 0;
  for (const auto& [parameter, state] : optimizer.state()) bytes += bytes_of(*state);
  return bytes;
}

std::string optimizer_bytes(const torch::optim::Optimizer& optimizer) {
  std::ostringstream stream;
  torch::save(optimizer, stream);
  return stream.str();
}

void read_optimizer(const std::string& bytes, torch::optim::Optimizer& optimizer, torch::Device device) {
  std::istringstream stream(bytes);
  torch::load(optimizer, stream, device);
}

std::unique_ptr<torch::optim::OptimizerParamState> copy_state(const torch::optim::OptimizerParamState& state,
                                                              torch::Device device) {
  auto copy = state.clone();  // of the same type, but it shares the tensors
  torch::serialize::InputArchive archive = opened(written(state), device);
  copy->serialize(archive);
  return copy;
}

void convert_state(torch::optim::OptimizerParamState& state, const torch::Tensor& parameter) {
  for (torch::Tensor* tensor : tensors_of(state).value_or(std::vector<torch::Tensor*>())) {
    if (tensor->defined() && tensor->is_complex() == parameter.is_complex())
      *tensor = tensor->to(parameter.scalar_type());
  }
}

}  // namespace lockstep::nn_detail
