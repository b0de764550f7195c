#include "c10d/world/target.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/printable.h"
#include "c10d/backend/group_errors.h"
#include "c10d/world/backends.h"
#include "c10d/world/engine_of.h"
#include "c10d/world/world_state.h"
#include "lockstep/c10d/collectives.h"

namespace lockstep {
namespace {

// Called when `group` has no backend for `device`. The error names those that it has.
[[noreturn]] void throw_no_backend(const ProcessGroup& group, c10::DeviceType device, const char* operation) {
  std::vector<std::string> served;
  for (const auto& own : group->getDeviceTypes()) served.push_back(device_name(own.type()));
  throw ArgumentError(
      ErrorCode::kUnsupported,
      fmt::format("{}: group '{}' has no backend for tensors on {}; it has {} for {}: copy them there with .to()",
                  operation, WorldState::of_process().members(group).name, device_name(device), get_backend(group),
                  fmt::join(served, " and ")));
}

// The target without its backend.
Target find_group(const ProcessGroup& group, const char* operation) {
  const ProcessGroup world = WorldState::of_process().default_group(operation);
  const bool is_world = group == nullptr || group == world;
  Target target{is_world ? world : group, nullptr, c10::DeviceType::CPU, is_world};
  if (target.group->hasBackends()) return target;
  const WorldState::Members members = WorldState::of_process().members(target.group);
  throw ArgumentError(ErrorCode::kInvalidArgument,
                      fmt::format("{}: rank {} of the world is no member of group '{}' (ranks {})", operation,
                                  get_rank(), members.name, ranks_text(members.ranks)));
}

void add_backend(Target& target, c10::DeviceType device, const char* operation) {
  try {
    target.backend = target.group->getBackend(device);
  } catch (const c10::Error&) {
    throw_no_backend(target.group, device, operation);
  }
  target.device = device;
}

}  // namespace

// In the world group ranks and global ranks are the same. The backend checks the range.
int Target::group_rank(int rank, const char* operation) const {
  return is_world ? rank : group_rank_of(group, rank, operation);
}

int group_rank_of(const ProcessGroup& group, int rank, const char* operation) {
  const WorldState::Members members = WorldState::of_process().members(group);
  const auto found = std::find(members.ranks.begin(), members.ranks.end(), rank);
  if (found != members.ranks.end()) return static_cast<int>(found - members.ranks.begin());
  throw ArgumentError(
      ErrorCode::kInvalidArgument,
      fmt::format("{}, called on rank {}: rank {} of the world is not in group '{}' (ranks {} of the world); name one "
                  "of these, or another group",
                  operation, get_rank(), rank, members.name, ranks_text(members.ranks)));
}

Target find_target(const ProcessGroup& group, c10::DeviceType device, const char* operation) {
  Target target = find_group(group, operation);
  add_backend(target, device, operation);
  return target;
}

Target find_target(const ProcessGroup& group, const at::Tensor& tensor, const char* operation) {
  if (!tensor.defined()) {
    throw ArgumentError(ErrorCode::kInvalidArgument, fmt::format("{}: the tensor is undefined", operation));
  }
  return find_target(group, tensor.device().type(), operation);
}

Target find_target(const ProcessGroup& group, at::TensorList tensors, const char* operation) {
  return tensors.empty() ? find_host_target(group, operation) : find_target(group, tensors.front(), operation);
}

Target find_host_target(const ProcessGroup& group, const char* operation) {
  Target target = find_group(group, operation);
  const std::vector<c10::Device> devices = target.group->getDeviceTypes();
  const bool has_cpu = std::any_of(devices.begin(), devices.end(), [](const auto& device) { return device.is_cpu(); });
  add_backend(target, has_cpu ? c10::DeviceType::CPU : devices.front().type(), operation);
  return target;
}

at::Tensor gather_numbers(const ProcessGroup& group, const std::vector<std::int64_t>& mine, const char* operation) {
  const Target target = find_host_target(group, operation);
  const at::Device device = target.device == c10::DeviceType::CPU ? at::Device(at::kCPU) : local_device();
  at::Tensor row = at::tensor(mine, at::kLong).to(device);
  at::Tensor all = at::empty({target.group->getSize(), row.numel()}, row.options());
  target->_allgather_base(all, row, make_options<c10d::AllgatherOptions>(kGroupTimeout, Mode::kBlocking, operation))
      ->wait();
  return all.cpu();
}

bool tell_other_ranks(const ProcessGroup& group, const std::exception& error) {
  WorldState& world = WorldState::of_process();
  if (!world.is_open()) return true;
  const ProcessGroup target = group != nullptr ? group : world.default_group("");
  if (!target->hasBackends()) return true;
  ProcessGroupLockstep* only = nullptr;
  for (const auto& device : target->getDeviceTypes()) {
    ProcessGroupLockstep* const engine = engine_of(target, device.type());
    if (engine == nullptr || (only != nullptr && only != engine)) return false;
    only = engine;
  }
  if (only != nullptr) only->refuse(plain_text(error));
  return true;
}

void check_timeout(std::chrono::milliseconds timeout, const char* operation) {
  if (timeout > std::chrono::milliseconds::zero() || timeout == kGroupTimeout) return;
  throw ArgumentError(ErrorCode::kInvalidArgument,
                      fmt::format("{}: the timeout must be positive, found {} ms; leave it out for the group's own",
                                  operation, timeout.count()));
}

void check_group_name(const std::string& name, const char* operation) {
  constexpr std::size_t kMost = 1024;
  if (name.size() <= kMost) return;
  throw ArgumentError(ErrorCode::kInvalidArgument,
                      fmt::format("{}: the group's name has {} bytes, expected at most {}; it begins with '{}'",
                                  operation, name.size(), kMost, printable(name.substr(0, 40))));
}

}  // namespace lockstep
