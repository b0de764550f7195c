// Coordinates, groups and slices of meshes: those of Python's init_device_mesh.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <fstream>
#include <sstream>

#include "lockstep/c10d/device_mesh.h"
#include "support/process_ranks.h"
#include "support/python/python.h"
#include "support/scratch_folder.h"

namespace lockstep {
namespace {

using Shape = std::vector<std::int64_t>;

constexpr int kWorld = 6;
const std::vector<std::string> kNames{"dp", "pp", "tp"};

std::vector<Shape> shapes() {
  return {{6}, {2, 3}, {3, 2}, {6, 1}, {1, 2, 3}, {3, 1, 2}, {2, 3, 1}};
}

template <typename Values>
std::string joined(const Values& values, const char* separator = ",") {
  std::ostringstream text;
  for (std::size_t i = 0; i < values.size(); ++i) text << (i == 0 ? "" : separator) << values[i];
  return text.str();
}

std::string ranks_of(const DeviceMesh& mesh) {
  const torch::Tensor flat = mesh.mesh().reshape({-1});
  return joined(std::vector<std::int64_t>(flat.const_data_ptr<std::int64_t>(),
                                          flat.const_data_ptr<std::int64_t>() + flat.numel()));
}

void describe(const DeviceMesh& mesh, const std::string& name, std::ostream& out) {
  out << name << ' ' << mesh.get_local_rank(name) << " of " << mesh.size(name) << ": "
      << joined(get_process_group_ranks(mesh.get_group(name))) << '\n';
}

// The lines of device_mesh.py.
void describe_all(int rank, const Shape& shape, std::ostream& out) {
  const std::vector<std::string> names(kNames.begin(), kNames.begin() + static_cast<std::ptrdiff_t>(shape.size()));
  const DeviceMesh mesh = init_device_mesh(torch::kCPU, shape, names);
  out << "rank " << rank << " at " << joined(*mesh.get_coordinate()) << " of " << joined(mesh.shape()) << '\n';
  for (const std::string& name : names) {
    describe(mesh, name, out);
    out << "slice " << ranks_of(mesh[name]) << " at " << joined(*mesh[name].get_coordinate()) << '\n';
  }
  if (shape.size() < 3) return;
  for (const auto& [first, second] : {std::pair{0, 1}, {0, 2}, {1, 2}}) {
    const DeviceMesh part = mesh[{names[first], names[second]}];
    out << "slice " << ranks_of(part) << " at " << joined(*part.get_coordinate()) << " of " << joined(part.shape())
        << '\n';
    describe(part.flatten(), names[first] + "_" + names[second], out);
  }
}

TEST(DeviceMeshParity, EveryRankSeesWhatPythonsSees) {
  const test::SharedScratchFolder folder;
  const auto path = [&](int rank) { return folder.path("rank" + std::to_string(rank)); };
  test::run_processes(kWorld, [&](int rank) {
    const ProcessGroupGuard world;
    std::ofstream file(path(rank));
    for (const Shape& shape : shapes()) describe_all(rank, shape, file);
  });
  std::ostringstream ours;
  for (int rank = 0; rank < kWorld; ++rank) ours << std::ifstream(path(rank)).rdbuf();
  std::vector<std::string> arguments{std::to_string(kWorld)};
  for (const Shape& shape : shapes()) arguments.push_back(joined(shape, "x"));
  EXPECT_EQ(ours.str(), test::run_python("device_mesh.py", arguments));
}

}  // namespace
}  // namespace lockstep
