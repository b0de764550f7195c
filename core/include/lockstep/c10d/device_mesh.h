// Named dimensions over ranks, as in torch.distributed.device_mesh. For programs whose ranks share work in several ways
// at once, such as replicas of a model ("dp") each of which spans some ranks ("tp").
//
//   DeviceMesh mesh = init_device_mesh(torch::kCPU, {2, 3}, {"dp", "tp"});   // ranks [[0, 1, 2], [3, 4, 5]]
//   all_reduce(gradient, {.group = mesh.get_group("dp")});                   // of rank r and the rank 3 from it
//   DataLoader loader(dataset, {.batch_size = 64, .group = mesh.get_group("dp")});
//   DeviceMesh tp = mesh["tp"];                                              // rank 4: [3, 4, 5]
//
// A rank has one process group for each dimension: the ranks that have the same other coordinates. The groups are made
// with the mesh. Group ranks follow the mesh, so this process's group rank is its coordinate, even if the ranks of the
// mesh are not in ascending order (PyTorch: preserve_rank_order=True). The group of a dimension that has all
// ranks of the world, in their order, is the world itself.
//
// A mesh is a handle: copies and slices are cheap and share the groups, which end with the last handle. A mesh does
// not make the world: call init_process_group first. Everything throws ArgumentError (kInvalidArgument) for names,
// numbers and shapes that do not fit, and what new_group throws. Making and flattening a mesh makes groups: these calls
// must not overlap with other calls that make groups, nor with other calls on the same mesh. All other functions may be
// called from several threads.
#pragma once

#include <ATen/ATen.h>

#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/c10d/process_groups.h"

namespace lockstep {

struct DeviceMeshOptions {
  // Backend, its options and timeout for the groups of single dimensions, by name (PyTorch's backend_override). The
  // groups of other dimensions have the world's. A name that the mesh does not have is an error.
  std::map<std::string, GroupOptions> group_options = {};
};

class DeviceMesh {
 public:
  // `mesh`: ranks of the world, integers, at least one dimension. A rank is in it at most once; not all ranks need be
  // in it. `mesh_dim_names`: a different name for each dimension, or none at all: then dimensions have numbers only.
  // Collective over the world. All ranks of the world, also ranks outside the mesh, give the same mesh, the same names
  // and the same backends in group_options. If they do not, every rank gets an error that names the ranks that differ.
  DeviceMesh(c10::DeviceType device_type, const at::Tensor& mesh, std::vector<std::string> mesh_dim_names = {},
             const DeviceMeshOptions& options = {});

  // The part of the mesh that this rank is in and that has these dimensions alone, in this order. A mesh that was not
  // sliced also knows the names that flatten() has made. No communication.
  DeviceMesh operator[](const std::string& mesh_dim_name) const;
  DeviceMesh operator[](std::initializer_list<std::string> mesh_dim_names) const;  // mesh[{"dp", "tp"}]
  DeviceMesh operator[](int) const = delete;                                       // dimensions are sliced by name

  // Returns the ranks of this mesh in one dimension, in row-major order, with a group of its own. An empty name stands
  // for the names joined by "_", as in "dp_tp". Collective over the ranks of this mesh. To flatten the same dimensions
  // again under the same name returns the first result, and makes no group. A mesh of one dimension flattened under its
  // own name is itself.
  DeviceMesh flatten(const std::string& mesh_dim_name = {}, const GroupOptions& options = {}) const;

  // The group of this rank along one dimension. A mesh with only one dimension needs no argument.
  ProcessGroup get_group() const;
  ProcessGroup get_group(int mesh_dim) const;
  ProcessGroup get_group(const std::string& mesh_dim_name) const;
  std::vector<ProcessGroup> get_all_groups() const;

  // This rank's coordinate in one dimension, which is its group rank in that dimension's group.
  int get_local_rank() const;
  int get_local_rank(int mesh_dim) const;
  int get_local_rank(const std::string& mesh_dim_name) const;
  // This rank's coordinates in all dimensions; nothing on a rank outside the mesh.
  std::optional<std::vector<int>> get_coordinate() const;
  // This process's rank in the world.
  int get_rank() const;

  int ndim() const { return static_cast<int>(dims_.size()); }
  std::vector<std::int64_t> shape() const;
  int size() const;  // number of ranks
  int size(int mesh_dim) const;
  int size(const std::string& mesh_dim_name) const;
  // The mesh's ranks of the world, int64 [shape()]. For a slice, only ranks inside the mesh know them.
  at::Tensor mesh() const;
  std::vector<std::string> mesh_dim_names() const;  // empty: it has none
  c10::DeviceType device_type() const;
  // "DeviceMesh((dp=2, tp=3), 'cpu')".
  std::string str() const;

 private:
  // One or more dimensions of the root mesh, as one.
  struct Dim {
    std::string name;
    std::vector<int> root_dims;
    ProcessGroup group;  // null on a rank that is not in the mesh
  };
  struct Root;

  DeviceMesh(std::shared_ptr<Root> root, std::vector<Dim> dims) : root_(std::move(root)), dims_(std::move(dims)) {}
  DeviceMesh slice(const std::vector<std::string>& names) const;
  bool is_root() const;
  const Dim& dim(int mesh_dim, const char* caller) const;
  const Dim& dim(const std::string& name, const char* caller) const;
  const Dim& only_dim(const char* caller) const;
  const Dim* find_flattened(const std::string& name) const;
  int size_of(const Dim& dim) const;
  int coordinate_on(const Dim& dim, const char* caller) const;
  ProcessGroup group_of(const Dim& dim, const char* caller) const;
  std::string dims_text() const;

  std::shared_ptr<Root> root_;
  std::vector<Dim> dims_;
};

// A mesh of all ranks of the world in row-major order: the last dimension has neighbouring ranks. `mesh_shape`:
// positive sizes whose product is the world size. (A mesh of fewer ranks, which PyTorch makes silently, has to be asked
// for with the constructor.) Otherwise as the constructor.
DeviceMesh init_device_mesh(c10::DeviceType device_type, at::IntArrayRef mesh_shape,
                            std::vector<std::string> mesh_dim_names = {}, const DeviceMeshOptions& options = {});

}  // namespace lockstep
