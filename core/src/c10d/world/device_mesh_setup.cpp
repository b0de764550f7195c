#include "c10d/world/device_mesh_setup.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <numeric>
#include <set>

#include "base/fnv1a.h"
#include "c10d/backend/call_checks.h"
#include "c10d/world/backends.h"
#include "c10d/world/target.h"

namespace lockstep::device_mesh {
namespace {

std::int64_t fingerprint(const std::string& text) {
  return static_cast<std::int64_t>(fnv1a(text));
}

bool is_world_in_order(const std::vector<int>& ranks) {
  std::vector<int> world(static_cast<std::size_t>(get_world_size()));
  std::iota(world.begin(), world.end(), 0);
  return ranks == world;
}

}  // namespace

void reject(const std::string& text) {
  throw ArgumentError(ErrorCode::kInvalidArgument, text);
}

void check_names(const std::vector<std::string>& names, std::int64_t dims, const DeviceMeshOptions& options) {
  if (!names.empty() && static_cast<std::int64_t>(names.size()) != dims) {
    reject(fmt::format("device mesh: {} dimensions need as many names, found {}: [{}]", dims, names.size(),
                       fmt::join(names, ", ")));
  }
  std::set<std::string> seen;
  for (const std::string& name : names) {
    if (name.empty()) reject("device mesh: the name of a dimension is empty");
    if (!seen.insert(name).second) {
      reject(fmt::format("device mesh: two dimensions are named '{}' in [{}]; names must differ", name,
                         fmt::join(names, ", ")));
    }
  }
  for (const auto& [name, group] : options.group_options) {
    if (!seen.contains(name)) {
      reject(fmt::format("device mesh: group_options has '{}', but the dimensions are [{}]", name,
                         fmt::join(names, ", ")));
    }
  }
}

at::Tensor check_ranks(const at::Tensor& mesh, int world_size) {
  if (!mesh.defined() || !at::isIntegralType(mesh.scalar_type(), /*includeBool=*/false) || mesh.dim() < 1 ||
      mesh.numel() == 0) {
    reject(fmt::format("device mesh: expected ranks as integers in at least one dimension, found {}",
                       mesh.defined()
                           ? fmt::format("{} [{}]", c10::toString(mesh.scalar_type()), fmt::join(mesh.sizes(), ", "))
                           : "an undefined tensor"));
  }
  const at::Tensor ranks = mesh.detach().to(at::kCPU, at::kLong).contiguous().clone();
  std::set<std::int64_t> seen;
  for (std::int64_t i = 0; i < ranks.numel(); ++i) {
    const std::int64_t rank = ranks.const_data_ptr<std::int64_t>()[i];
    if (rank < 0 || rank >= world_size) {
      reject(fmt::format("device mesh: rank {} is not in the world, 0 to {}", rank, world_size - 1));
    }
    if (!seen.insert(rank).second) reject(fmt::format("device mesh: rank {} is there twice", rank));
  }
  return ranks;
}

std::vector<int> to_ranks(const at::Tensor& line) {
  const at::Tensor flat = line.contiguous();
  const auto* data = flat.const_data_ptr<std::int64_t>();
  return {data, data + flat.numel()};
}

std::string text_of(c10::DeviceType device, const at::Tensor& ranks, const std::vector<std::string>& names,
                    const DeviceMeshOptions& options) {
  std::string text = fmt::format("shape ({}), names [{}], '{}', ranks {}", fmt::join(ranks.sizes(), ", "),
                                 fmt::join(names, ", "), device_name(device), ranks_text(to_ranks(ranks)));
  for (const auto& [name, group] : options.group_options) {
    text += fmt::format(", options for '{}' (backend '{}')", name, group.backend);
  }
  return text;
}

// Ranks that make different meshes would wait for one another in different groups.
void check_agreement(const std::string& mine) {
  const at::Tensor fingerprints = gather_numbers(nullptr, {fingerprint(mine)}, "device mesh");
  std::vector<int> others;
  for (std::int64_t rank = 0; rank < fingerprints.size(0); ++rank) {
    if (fingerprints[rank][0].item<std::int64_t>() != fingerprint(mine)) others.push_back(static_cast<int>(rank));
  }
  if (others.empty()) return;
  throw BackendError(ErrorCode::kMismatch,
                     fmt::format("device mesh: rank(s) {} of the world ask for another mesh than rank {}, which asks "
                                 "for {}, or got an error: all ranks of the world must give the same shape, names "
                                 "and options",
                                 ranks_text(others), get_rank(), mine));
}

void disagree(const std::exception& error) {
  if (tell_other_ranks(nullptr, error)) return;
  try {
    static_cast<void>(gather_numbers(nullptr, {fingerprint(error.what())}, "device mesh"));
  } catch (const std::exception&) {
    // The caller throws the first error.
  }
}

ProcessGroup make_dim_group(const at::Tensor& line, const std::string& name, c10::DeviceType device,
                            const GroupOptions* options) {
  const std::vector<int> ranks = to_ranks(line);
  ProcessGroup group;
  if (options == nullptr && is_world_in_order(ranks)) {
    group = default_group();
  } else {
    GroupOptions own = options == nullptr ? GroupOptions() : *options;
    if (own.name.empty()) own.name = "mesh_" + name;
    own.sort_ranks = false;
    group = new_group(ranks, own);
  }
  find_target(group, device, "device mesh");  // throws when no backend serves the device
  return group;
}

}  // namespace lockstep::device_mesh
