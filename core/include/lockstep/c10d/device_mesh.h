// Named dimensions over ranks, as torch.distributed.device_mesh has them: for programs whose ranks share work in
// several ways at once, such as replicas of a model (dp) that each span some ranks (tp).
//
//   DeviceMesh mesh = init_device_mesh(torch::kCPU, {2, 3}, {"dp", "tp"});   // ranks [[0, 1, 2], [3, 4, 5]]
//   all_reduce(gradient, {.group = mesh.get_group("dp")});                   // with the rank 3 further on
//   DataLoader loader(dataset, {.batch_size = 64, .group = mesh.get_group("dp")});
//   DeviceMesh tp = mesh["tp"];                                              // rank 4: [3, 4, 5]
//
// A rank has one process group for each dimension: the ranks whose other coordinates are its own. They are made with
// the mesh. Group ranks follow the mesh, so this process's group rank is its coordinate, also where the ranks of a mesh
// of your own are not in ascending order (PyTorch: preserve_rank_order=True). The group of a dimension that has all
// ranks of the world, in their order, is the world itself.
//
// A mesh is a handle: copies and slices are cheap and share the groups, which go with the last of them. It does not
// make the world: call init_process_group first. Everything throws ArgumentError (kInvalidArgument) for names, numbers
// and shapes that do not fit, and what new_group throws. Making and flattening a mesh makes groups: these calls must
// not overlap with others that do, nor with other calls on the same mesh. The rest may be called from several threads.
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
  // For the groups of single dimensions, by name: backend, its options, timeout (PyTorch's backend_override). Other
  // dimensions have the world's. Names that the mesh does not have are an error.
  std::map<std::string, GroupOptions> group_options = {};
};

class DeviceMesh {
 public:
  // `mesh`: ranks of the world, integers of any shape of at least one dimension, each rank at most once. They need not
  // be all ranks. `mesh_dim_names`: one for each dimension, different from one another; or none at all, and then
  // dimensions have numbers only. Collective over the world: all ranks of it give the same mesh, names and dimensions
  // with group_options of the same backend, also those that are not in the mesh. When they do not, every rank gets an
  // error that names those that differ.
  DeviceMesh(c10::DeviceType device_type, const at::Tensor& mesh, std::vector<std::string> mesh_dim_names = {},
             const DeviceMeshOptions& options = {});

  // The dimensions of these names alone, in this order: the part of the mesh that this rank is in. A mesh that was not
  // sliced also knows the names that flatten() has made. No communication.
  DeviceMesh operator[](const std::string& mesh_dim_name) const;
  DeviceMesh operator[](std::initializer_list<std::string> mesh_dim_names) const;  // mesh[{"dp", "tp"}]
  DeviceMesh operator[](int) const = delete;                                       // dimensions are sliced by name

  // One dimension instead of all of this mesh, in row-major order, with a group of its own. "": the names joined by
  // "_", as in "dp_tp". Collective over the ranks of this mesh. The same flattening under the same name again returns
  // the first one, and makes no group. A mesh of one dimension flattened under its own name is itself.
  DeviceMesh flatten(const std::string& mesh_dim_name = {}, const GroupOptions& options = {}) const;

  // The group of this rank along one dimension. Without a dimension: that of a mesh that has only one.
  ProcessGroup get_group() const;
  ProcessGroup get_group(int mesh_dim) const;
  ProcessGroup get_group(const std::string& mesh_dim_name) const;
  std::vector<ProcessGroup> get_all_groups() const;

  // This rank's number along one dimension, which is its group rank there.
  int get_local_rank() const;
  int get_local_rank(int mesh_dim) const;
  int get_local_rank(const std::string& mesh_dim_name) const;
  // These numbers for all dimensions; nothing on a rank that is not in the mesh.
  std::optional<std::vector<int>> get_coordinate() const;
  // This process's rank in the world.
  int get_rank() const;

  int ndim() const { return static_cast<int>(dims_.size()); }
  std::vector<std::int64_t> shape() const;
  int size() const;  // number of ranks
  int size(int mesh_dim) const;
  int size(const std::string& mesh_dim_name) const;
  // The ranks of the world, int64 [shape()]. Of a slice only ranks that are in the mesh know them.
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
