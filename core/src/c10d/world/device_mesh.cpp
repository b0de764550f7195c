#include "lockstep/c10d/device_mesh.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "c10d/world/backends.h"
#include "c10d/world/device_mesh_setup.h"

namespace lockstep {

using device_mesh::reject;

// What a mesh shares with its slices.
struct DeviceMesh::Root {
  c10::DeviceType device_type = c10::DeviceType::CPU;
  at::Tensor ranks = {};  // int64, contiguous, on the CPU
  std::optional<std::vector<int>> coordinate = {};
  std::vector<Dim> dims = {};
  std::map<std::string, Dim> flattened = {};

  // The ranks along `kept` dimensions, in this order, through this rank: its coordinates fix the others.
  at::Tensor part(const std::vector<int>& kept) const {
    std::vector<std::int64_t> order(kept.begin(), kept.end());
    at::Tensor result = ranks;
    for (int dim = static_cast<int>(ranks.dim()) - 1; dim >= 0; --dim) {
      if (std::find(kept.begin(), kept.end(), dim) != kept.end()) continue;
      result = result.select(dim, (*coordinate)[static_cast<std::size_t>(dim)]);
      for (std::int64_t& other : order) other -= other > dim ? 1 : 0;
    }
    return result.permute(order);
  }
};

DeviceMesh::DeviceMesh(c10::DeviceType device_type, const at::Tensor& mesh, std::vector<std::string> mesh_dim_names,
                       const DeviceMeshOptions& options)
    : root_(std::make_shared<Root>()) {
  root_->device_type = device_type;
  // A rank whose own arguments are wrong tells the others, which wait in check_agreement.
  root_->ranks = device_mesh::prepare_mesh([&] {
    at::Tensor ranks = device_mesh::check_ranks(mesh, get_world_size());
    device_mesh::check_names(mesh_dim_names, ranks.dim(), options);
    return ranks;
  });
  const at::Tensor& ranks = root_->ranks;
  device_mesh::check_agreement(device_mesh::text_of(device_type, ranks, mesh_dim_names, options));
  const at::Tensor mine = (ranks == get_rank()).nonzero();
  if (mine.size(0) == 1) root_->coordinate = device_mesh::to_ranks(mine[0]);
  for (int dim = 0; dim < ranks.dim(); ++dim) {
    const bool has_name = !mesh_dim_names.empty();
    const std::string name = has_name ? mesh_dim_names[static_cast<std::size_t>(dim)] : fmt::format("dim_{}", dim);
    const auto own = options.group_options.find(name);
    const GroupOptions* group_options = has_name && own != options.group_options.end() ? &own->second : nullptr;
    ProcessGroup group;
    if (root_->coordinate) group = device_mesh::make_dim_group(root_->part({dim}), name, device_type, group_options);
    root_->dims.push_back({has_name ? name : "", {dim}, std::move(group)});
  }
  dims_ = root_->dims;
}

DeviceMesh DeviceMesh::operator[](const std::string& mesh_dim_name) const {
  return slice({mesh_dim_name});
}

DeviceMesh DeviceMesh::operator[](std::initializer_list<std::string> mesh_dim_names) const {
  return slice(mesh_dim_names);
}

DeviceMesh DeviceMesh::slice(const std::vector<std::string>& names) const {
  if (names.empty()) reject(fmt::format("slicing {}: no names were given", str()));
  std::vector<Dim> dims;
  std::set<int> used;
  for (const std::string& name : names) {
    dims.push_back(dim(name, "slicing"));
    for (const int root_dim : dims.back().root_dims) {
      if (used.insert(root_dim).second) continue;
      reject(fmt::format("slicing {}: the dimensions [{}] overlap in '{}'", str(), fmt::join(names, ", "),
                         root_->dims[static_cast<std::size_t>(root_dim)].name));
    }
  }
  return {root_, std::move(dims)};
}

DeviceMesh DeviceMesh::flatten(const std::string& mesh_dim_name, const GroupOptions& options) const {
  if (dims_.front().name.empty()) reject("flattening " + str() + ": its dimensions have no names");
  const std::string name = mesh_dim_name.empty() ? fmt::format("{}", fmt::join(mesh_dim_names(), "_")) : mesh_dim_name;
  if (ndim() == 1 && name == dims_.front().name) return *this;
  for (const Dim& dim : root_->dims) {
    if (dim.name == name) reject(fmt::format("flattening {}: the mesh has a dimension '{}' already", str(), name));
  }
  Dim flat{name, {}, nullptr};
  for (const Dim& dim : dims_) {
    flat.root_dims.insert(flat.root_dims.end(), dim.root_dims.begin(), dim.root_dims.end());
  }
  if (const auto found = root_->flattened.find(name); found != root_->flattened.end()) {
    if (found->second.root_dims == flat.root_dims) return {root_, {found->second}};
    reject(fmt::format("flattening {}: '{}' is the name of another flattened part of this mesh", str(), name));
  }
  if (root_->coordinate) {
    const bool is_plain = options.backend.empty() && options.backend_options == nullptr && options.name.empty() &&
                          options.timeout == GroupOptions().timeout;
    flat.group = device_mesh::make_dim_group(root_->part(flat.root_dims).reshape({-1}), name, root_->device_type,
                                             is_plain ? nullptr : &options);
  }
  root_->flattened.emplace(name, flat);
  return {root_, {flat}};
}

ProcessGroup DeviceMesh::get_group() const {
  return group_of(only_dim("get_group"), "get_group");
}
ProcessGroup DeviceMesh::get_group(int mesh_dim) const {
  return group_of(dim(mesh_dim, "get_group"), "get_group");
}
ProcessGroup DeviceMesh::get_group(const std::string& mesh_dim_name) const {
  return group_of(dim(mesh_dim_name, "get_group"), "get_group");
}

std::vector<ProcessGroup> DeviceMesh::get_all_groups() const {
  std::vector<ProcessGroup> groups;
  groups.reserve(dims_.size());
  for (const Dim& dim : dims_) groups.push_back(group_of(dim, "get_all_groups"));
  return groups;
}

int DeviceMesh::get_local_rank() const {
  return coordinate_on(only_dim("get_local_rank"), "get_local_rank");
}
int DeviceMesh::get_local_rank(int mesh_dim) const {
  return coordinate_on(dim(mesh_dim, "get_local_rank"), "get_local_rank");
}
int DeviceMesh::get_local_rank(const std::string& mesh_dim_name) const {
  return coordinate_on(dim(mesh_dim_name, "get_local_rank"), "get_local_rank");
}

std::optional<std::vector<int>> DeviceMesh::get_coordinate() const {
  if (!root_->coordinate) return std::nullopt;
  std::vector<int> result;
  result.reserve(dims_.size());
  for (const Dim& dim : dims_) result.push_back(coordinate_on(dim, "get_coordinate"));
  return result;
}

int DeviceMesh::get_rank() const {
  return lockstep::get_rank();
}

std::vector<std::int64_t> DeviceMesh::shape() const {
  std::vector<std::int64_t> result;
  result.reserve(dims_.size());
  for (const Dim& dim : dims_) result.push_back(size_of(dim));
  return result;
}

int DeviceMesh::size() const {
  int product = 1;
  for (const Dim& dim : dims_) product *= size_of(dim);
  return product;
}
int DeviceMesh::size(int mesh_dim) const {
  return size_of(dim(mesh_dim, "size"));
}
int DeviceMesh::size(const std::string& mesh_dim_name) const {
  return size_of(dim(mesh_dim_name, "size"));
}

at::Tensor DeviceMesh::mesh() const {
  std::vector<int> kept;
  for (const Dim& dim : dims_) kept.insert(kept.end(), dim.root_dims.begin(), dim.root_dims.end());
  if (!root_->coordinate && kept.size() < root_->dims.size()) {
    reject(fmt::format("mesh: rank {} is in no part of {}, so it does not know which ranks the part would have",
                       lockstep::get_rank(), str()));
  }
  return root_->part(kept).reshape(shape()).clone();
}

std::vector<std::string> DeviceMesh::mesh_dim_names() const {
  std::vector<std::string> names;
  for (const Dim& dim : dims_) {
    if (!dim.name.empty()) names.push_back(dim.name);
  }
  return names;
}

c10::DeviceType DeviceMesh::device_type() const {
  return root_->device_type;
}

std::string DeviceMesh::str() const {
  return fmt::format("DeviceMesh(({}), '{}')", dims_text(), device_name(root_->device_type));
}

std::string DeviceMesh::dims_text() const {
  std::vector<std::string> parts;
  parts.reserve(dims_.size());
  for (const Dim& dim : dims_) {
    parts.push_back(dim.name.empty() ? fmt::format("{}", size_of(dim)) : fmt::format("{}={}", dim.name, size_of(dim)));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

bool DeviceMesh::is_root() const {
  return dims_.size() == root_->dims.size() && std::equal(dims_.begin(), dims_.end(), root_->dims.begin(),
                                                          [](const Dim& a, const Dim& b) { return a.name == b.name; });
}

const DeviceMesh::Dim& DeviceMesh::dim(int mesh_dim, const char* caller) const {
  if (mesh_dim >= 0 && mesh_dim < ndim()) return dims_[static_cast<std::size_t>(mesh_dim)];
  reject(fmt::format("{}: {} has dimensions 0 to {}, not {}", caller, str(), ndim() - 1, mesh_dim));
}

const DeviceMesh::Dim& DeviceMesh::dim(const std::string& name, const char* caller) const {
  for (const Dim& dim : dims_) {
    if (!name.empty() && dim.name == name) return dim;
  }
  if (const Dim* flat = find_flattened(name)) return *flat;
  std::vector<std::string> known = mesh_dim_names();
  if (is_root()) {
    for (const auto& [other, dim] : root_->flattened) known.push_back(other);
  }
  reject(fmt::format("{}: {} has no dimension '{}'; {}", caller, str(), name,
                     known.empty() ? "its dimensions have numbers, no names"
                                   : fmt::format("its dimensions are [{}]", fmt::join(known, ", "))));
}

const DeviceMesh::Dim* DeviceMesh::find_flattened(const std::string& name) const {
  if (!is_root()) return nullptr;
  const auto found = root_->flattened.find(name);
  return found == root_->flattened.end() ? nullptr : &found->second;
}

const DeviceMesh::Dim& DeviceMesh::only_dim(const char* caller) const {
  if (ndim() == 1) return dims_.front();
  reject(fmt::format("{}: {} has {} dimensions; say which", caller, str(), ndim()));
}

int DeviceMesh::size_of(const Dim& dim) const {
  std::int64_t product = 1;
  for (const int root_dim : dim.root_dims) product *= root_->ranks.size(root_dim);
  return static_cast<int>(product);
}

int DeviceMesh::coordinate_on(const Dim& dim, const char* caller) const {
  if (!root_->coordinate) reject(fmt::format("{}: rank {} is not in {}", caller, lockstep::get_rank(), str()));
  std::int64_t number = 0;
  for (const int root_dim : dim.root_dims) {
    number = number * root_->ranks.size(root_dim) + (*root_->coordinate)[static_cast<std::size_t>(root_dim)];
  }
  return static_cast<int>(number);
}

ProcessGroup DeviceMesh::group_of(const Dim& dim, const char* caller) const {
  if (dim.group == nullptr) reject(fmt::format("{}: rank {} is not in {}", caller, lockstep::get_rank(), str()));
  return dim.group;
}

DeviceMesh init_device_mesh(c10::DeviceType device_type, at::IntArrayRef mesh_shape,
                            std::vector<std::string> mesh_dim_names, const DeviceMeshOptions& options) {
  const at::Tensor ranks = device_mesh::prepare_mesh([&] {
    const int world = get_world_size();
    std::int64_t product = 1;
    for (const std::int64_t size : mesh_shape) {
      if (size < 1) {
        reject(fmt::format("init_device_mesh: sizes of dimensions must be positive, found ({})",
                           fmt::join(mesh_shape, ", ")));
      }
      // Each size is at most `world` here, unless the product is wrong anyway: no overflow.
      product = size > world || product > world ? std::int64_t{world} + 1 : product * size;
    }
    if (mesh_shape.empty() || product != world) {
      reject(
          fmt::format("init_device_mesh: the shape ({}) does not have the {} ranks of the world; the product of its "
                      "dimensions must be the world size. A mesh of some of the ranks is DeviceMesh(device, ranks)",
                      fmt::join(mesh_shape, ", "), world));
    }
    return at::arange(world, at::kLong).reshape(mesh_shape);
  });
  return DeviceMesh(device_type, ranks, std::move(mesh_dim_names), options);
}

}  // namespace lockstep
