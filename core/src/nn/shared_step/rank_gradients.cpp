#include "rank_gradients.h"

#include <span>
#include <unordered_set>

#include "lockstep/base/mutex.h"
#include "lockstep/c10d/errors.h"
#include "lockstep/c10d/process_group_lockstep.h"
#include "lockstep/reduce/reduce.h"

namespace lockstep::nn_detail {
namespace {

comm::DataType type_with_mean(const SharedParameter& parameter) {
  switch (parameter.dtype) {
    case torch::kFloat: return comm::DataType::kFloat32;
    case torch::kDouble: return comm::DataType::kFloat64;
    case torch::kHalf: return comm::DataType::kFloat16;
    case torch::kBFloat16: return comm::DataType::kBFloat16;
    default:
      TORCH_CHECK_VALUE(false, "SharedStep: ", parameter.name(), " is ", parameter.dtype,
                        "; average_gradients is for float, double, float16 and bfloat16. Leave it off");
  }
}

struct AllOwnGradients {
  Mutex mutex;
  std::unordered_multiset<const void*> of LOCKSTEP_GUARDED_BY(mutex);  // by TensorImpl
};

AllOwnGradients& all_own_gradients() {
  static AllOwnGradients& all = *new AllOwnGradients;  // optimizers may be static objects
  return all;
}

}  // namespace

bool keeps_own_gradient(const torch::Tensor& parameter) {
  AllOwnGradients& all = all_own_gradients();
  MutexLock lock(all.mutex);
  return all.of.count(parameter.unsafeGetTensorImpl()) > 0;
}

RankGradients::RankGradients(const DeviceBackend& backend, const SharedParameters& parameters, std::byte* memory)
    : backend_(backend),
      parameters_(parameters),
      places_(reinterpret_cast<std::uint64_t*>(memory)),
      copies_(parameters.size()),
      gradients_(parameters.size() * static_cast<std::size_t>(backend.world_size())) {
  for (std::size_t i = 0; i < parameters.size(); ++i) (void)type_with_mean(parameters[i]);
  for (std::size_t i = 0; i < parameters.size(); ++i) listed_.push_back(parameters[i].tensor);
  AllOwnGradients& all = all_own_gradients();
  MutexLock lock(all.mutex);
  for (const torch::Tensor& parameter : listed_) all.of.insert(parameter.unsafeGetTensorImpl());
}

RankGradients::~RankGradients() {
  AllOwnGradients& all = all_own_gradients();
  MutexLock lock(all.mutex);
  for (const torch::Tensor& parameter : listed_) all.of.erase(all.of.find(parameter.unsafeGetTensorImpl()));
}

void RankGradients::publish(std::vector<torch::Tensor>& gradients) {
  const auto arena = process_arena();
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    torch::Tensor& gradient = gradients[i];
    if (!gradient.defined() || gradient.numel() == 0) continue;
    if (!arena->contains(gradient.const_data_ptr(), gradient.nbytes())) {
      if (!copies_[i].defined()) copies_[i] = backend_.allocate(gradient.numel(), gradient.scalar_type());
      gradient = copies_[i].copy_(gradient);
    }
    place(backend_.rank(), i) = arena->offset_of(gradient.const_data_ptr());
  }
}

void RankGradients::reach(const std::vector<torch::Tensor>& gradients) {
  const auto ranks = static_cast<std::size_t>(backend_.world_size());
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].defined() || gradients[i].numel() == 0) continue;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const std::byte*& found = gradients_[i * ranks + rank];
      if (static_cast<int>(rank) == backend_.rank()) {
        found = static_cast<const std::byte*>(gradients[i].const_data_ptr());
        continue;
      }
      auto memory = parameters_.block().memory_of(static_cast<int>(rank), place(static_cast<int>(rank), i));
      if (!memory.ok()) throw_status(memory.status(), "SharedStep, reading gradients of another rank");
      found = *memory;
    }
  }
}

void RankGradients::places(std::size_t parameter, std::int64_t begin, std::vector<const float*>& to) const {
  const auto ranks = static_cast<std::size_t>(backend_.world_size());
  to.clear();
  for (std::size_t rank = 0; rank < ranks; ++rank)
    to.push_back(reinterpret_cast<const float*>(gradients_[parameter * ranks + rank]) + begin);
}

void RankGradients::mean(std::size_t parameter, std::int64_t begin, std::int64_t size, void* to) const {
  const SharedParameter& one = parameters_[parameter];
  const auto ranks = static_cast<std::size_t>(backend_.world_size());
  const std::size_t offset = static_cast<std::size_t>(begin) * c10::elementSize(one.dtype);
  thread_local std::vector<const std::byte*> inputs;
  inputs.assign(gradients_.begin() + static_cast<std::ptrdiff_t>(parameter * ranks),
                gradients_.begin() + static_cast<std::ptrdiff_t>((parameter + 1) * ranks));
  for (const std::byte*& input : inputs) input += offset;
  auto* const output = static_cast<std::byte*>(to);
  comm::reduce({.type = type_with_mean(one), .op = comm::ReduceOp::kAvg}, inputs, std::span(&output, 1),
               static_cast<std::size_t>(size));
}

}  // namespace lockstep::nn_detail
