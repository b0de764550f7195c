// Random generators in checkpoints: the states of all ranks in one tensor, uint8 [ranks, bytes of a state].
#include <ATen/Context.h>
#include <c10/core/DeviceType.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <mutex>
#include <vector>

#include "base/fnv1a.h"
#include "checkpoint/file/error_context.h"
#include "lockstep/base/log.h"
#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/launch/world.h"

namespace lockstep::checkpoint {
namespace {

// "generator.cpu", "generator.cuda"
std::string name_for(torch::DeviceType type) {
  return "generator." + c10::DeviceTypeName(type, /*lower_case=*/true);
}

at::Generator generator_of(torch::Device device) {
  try {
    return at::globalContext().defaultGenerator(device);
  } catch (const c10::Error& error) {
    throw CheckpointError(ErrorCode::kUnsupported, fmt::format("device {} has no random generator here: {}",
                                                               device.str(), error.what_without_backtrace()));
  }
}

// This process among the ranks of its job.
launch::World find_world() {
  if (const std::optional<launch::World> joined = launch::joined_world()) return *joined;
  Result<launch::World> world = launch::resolve_world();
  if (world.ok()) return std::move(world).value();
  throw CheckpointError(ErrorCode::kInvalidArgument,
                        fmt::format("cannot tell whose random generator to restore: {}", world.status().message()));
}

bool is_state(const at::Tensor& tensor, std::int64_t bytes) {
  return tensor.defined() && tensor.scalar_type() == at::kByte && tensor.dim() == 1 && tensor.is_cpu() &&
         tensor.numel() == bytes;
}

// A seed for a rank that the checkpoint does not have: FNV-1a over the first state and the rank, then the last step of
// SplitMix64, which spreads neighbouring ranks.
std::uint64_t seed_for(const at::Tensor& first_state, int rank) {
  Fnv1a state;
  const auto* bytes = first_state.const_data_ptr<std::uint8_t>();
  for (std::int64_t i = 0; i < first_state.numel(); ++i) state.add_word(bytes[i]);
  state.add_word(static_cast<std::uint64_t>(rank));
  std::uint64_t hash = state.value();
  hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9U;
  hash = (hash ^ (hash >> 27)) * 0x94d049bb133111ebU;
  return hash ^ (hash >> 31);
}

void set_state(at::Generator& generator, const at::Tensor& state) {
  try {
    generator.set_state(state);
  } catch (const c10::Error& error) {
    throw CheckpointError(ErrorCode::kCorrupt, fmt::format("its state of the random generator is not valid: {}",
                                                           error.what_without_backtrace()));
  }
}

void report_other_ranks(const launch::World& world, std::int64_t saved) {
  if (world.rank == 0 && world.world_size < saved) {
    log::info(
        fmt::format("the checkpoint has the random generators of {} ranks, this world {} ranks: those of the "
                    "others are not used",
                    saved, world.world_size));
  }
  if (world.rank != saved) return;
  log::warning(fmt::format(
      "the checkpoint has the random generators of {} rank(s), this world {} ranks: rank {} and those after "
      "it go on with new ones. A checkpoint has those of all ranks when add_generators() is given them",
      saved, world.world_size, world.rank));
}

}  // namespace

at::Tensor generator_state(torch::Device device) {
  at::Generator generator = generator_of(device);
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

void Checkpoint::add_generators(std::span<const at::Tensor> states, torch::DeviceType type) {
  if (states.empty()) {
    throw CheckpointError(ErrorCode::kInvalidArgument,
                          "add_generators: no states were given. gather_object(generator_state(), dst), which every "
                          "rank calls, returns them on rank dst alone: the one that saves");
  }
  // The process that saves need not have such a device: then all must be like the first.
  const bool on_cpu = type == torch::kCPU;
  const std::int64_t bytes = on_cpu ? generator_state().numel() : states[0].defined() ? states[0].numel() : 0;
  for (std::size_t rank = 0; rank < states.size(); ++rank) {
    if (is_state(states[rank], bytes)) continue;
    throw CheckpointError(
        ErrorCode::kInvalidArgument,
        fmt::format("add_generators: the tensor of rank {} is no generator state; generator_state() makes them", rank));
  }
  file_.tensors[name_for(type)] = at::stack(at::TensorList(states.data(), states.size()));
}

void Checkpoint::restore_generator(torch::Device device) const {
  in_context(origin_, [&] {
    const auto found = file_.tensors.find(name_for(device.type()));
    if (found == file_.tensors.end()) {
      throw CheckpointError(ErrorCode::kNotFound, device.is_cpu()
                                                      ? "it holds no state of the random generator"
                                                      : fmt::format("it holds no {}", name_for(device.type())));
    }
    const at::Tensor& states = found->second;
    const std::int64_t bytes = generator_state(device).numel();
    if (states.dim() != 2 || states.size(0) == 0 || !is_state(states[0], bytes)) {
      throw CheckpointError(ErrorCode::kCorrupt,
                            fmt::format("its states of the random generator are not valid: expected bytes [ranks, {}], "
                                        "found {} [{}]",
                                        bytes, c10::toString(states.scalar_type()), fmt::join(states.sizes(), ", ")));
    }
    const launch::World world = find_world();
    at::Generator generator = generator_of(device);
    const std::lock_guard<std::mutex> lock(generator.mutex());
    if (world.rank < states.size(0)) {
      set_state(generator, states[world.rank].clone());
    } else {
      generator.set_current_seed(seed_for(states[0], world.rank));
    }
    report_other_ranks(world, states.size(0));
  });
}

}  // namespace lockstep::checkpoint
