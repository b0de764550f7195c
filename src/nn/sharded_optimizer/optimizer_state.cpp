#include "optimizer_state.h"

#include <torch/optim.h>
#include <torch/serialize.h>

#include <optional>
#include <sstream>

namespace lockstep::nn_detail {
namespace {

std::size_t bytes_of(std::initializer_list<torch::Tensor> tensors) {
  std::size_t bytes = 0;
  for (const torch::Tensor& tensor : tensors) bytes += tensor.defined() ? tensor.nbytes() : 0;
  return bytes;
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
    if (archive.try_read(key, value) && value.isTensor()) bytes += bytes_of({value.toTensor()});
  }
  return bytes;
}

std::size_t bytes_of(const torch::optim::OptimizerParamState& state) {
  namespace optim = torch::optim;
  if (const auto* sgd = dynamic_cast<const optim::SGDParamState*>(&state)) return bytes_of({sgd->momentum_buffer()});
  if (const auto* adam = dynamic_cast<const optim::AdamParamState*>(&state)) {
    return bytes_of({adam->exp_avg(), adam->exp_avg_sq(), adam->max_exp_avg_sq()});
  }
  if (const auto* adam = dynamic_cast<const optim::AdamWParamState*>(&state)) {
    return bytes_of({adam->exp_avg(), adam->exp_avg_sq(), adam->max_exp_avg_sq()});
  }
  if (const auto* rms = dynamic_cast<const optim::RMSpropParamState*>(&state)) {
    return bytes_of({rms->square_avg(), rms->momentum_buffer(), rms->grad_avg()});
  }
  if (const auto* adagrad = dynamic_cast<const optim::AdagradParamState*>(&state)) return bytes_of({adagrad->sum()});
  return bytes_when_written(state);
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

}  // namespace lockstep::nn_detail
