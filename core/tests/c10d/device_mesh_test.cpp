// Named dimensions over ranks.
#include "lockstep/c10d/device_mesh.h"

#include <gtest/gtest.h>

#include "c10d/ranks.h"

namespace lockstep::test {
namespace {

using Shape = std::vector<std::int64_t>;
using Names = std::vector<std::string>;

const Names kNames{"dp", "pp", "tp"};

Names first_names(std::size_t count) {
  return {kNames.begin(), kNames.begin() + static_cast<std::ptrdiff_t>(count)};
}

// Every shape of one to three dimensions with `world` ranks.
std::vector<Shape> shapes_of(std::int64_t world) {
  std::vector<Shape> shapes{{world}};
  for (std::int64_t a = 1; a <= world; ++a) {
    if (world % a != 0) continue;
    shapes.push_back({a, world / a});
    for (std::int64_t b = 1; b <= world / a; ++b) {
      if (world / a % b == 0) shapes.push_back({a, b, world / a / b});
    }
  }
  return shapes;
}

// The sum of the members' ranks, by an all-reduce.
std::int64_t sum_in(const ProcessGroup& group) {
  const torch::Tensor tensor = torch::tensor({static_cast<std::int64_t>(get_rank())});
  all_reduce(tensor, {.group = group});
  return tensor.item<std::int64_t>();
}

std::vector<int> ranks_in(const torch::Tensor& tensor) {
  std::vector<int> ranks;
  for (std::int64_t i = 0; i < tensor.numel(); ++i) ranks.push_back(tensor.reshape({-1})[i].item<int>());
  return ranks;
}

// `all` is the whole mesh, and `place` this rank's coordinates: by dividing, not by looking it up.
void check_dims(const DeviceMesh& mesh, const torch::Tensor& all, const std::vector<int>& place) {
  for (int dim = 0; dim < mesh.ndim(); ++dim) {
    torch::Tensor line = all;
    for (int other = mesh.ndim() - 1; other >= 0; --other) {
      if (other != dim) line = line.select(other, place[other]);
    }
    const std::string& name = kNames[dim];
    const ProcessGroup group = mesh.get_group(dim);
    EXPECT_EQ(mesh.get_group(name), group);
    EXPECT_EQ(get_process_group_ranks(group), ranks_in(line)) << mesh.str() << name;
    EXPECT_EQ(get_rank(group), place[dim]);
    EXPECT_EQ(mesh.get_local_rank(dim), place[dim]);
    EXPECT_EQ(mesh.get_local_rank(name), place[dim]);
    EXPECT_EQ(mesh.size(dim), all.size(dim));
    EXPECT_EQ(sum_in(group), line.sum().item<std::int64_t>()) << mesh.str() << name;

    const DeviceMesh part = mesh[name];
    EXPECT_EQ(part.get_group(), group) << "a slice makes no group";
    EXPECT_EQ(part.get_local_rank(), place[dim]);
    EXPECT_EQ(part.get_coordinate(), std::vector<int>{place[dim]});
    expect_equal(part.mesh(), line, "slice " + name);
  }
}

void check_shape(int rank, const Shape& shape) {
  const DeviceMesh mesh = init_device_mesh(torch::kCPU, shape, first_names(shape.size()));
  const torch::Tensor all = torch::arange(get_world_size()).reshape(shape);
  std::vector<int> place(shape.size());
  for (std::size_t dim = shape.size(), rest = rank; dim-- > 0; rest /= shape[dim]) place[dim] = rest % shape[dim];
  EXPECT_EQ(mesh.shape(), shape);
  EXPECT_EQ(mesh.size(), get_world_size());
  EXPECT_EQ(mesh.get_coordinate(), place) << mesh.str();
  EXPECT_EQ(mesh.get_rank(), rank);
  EXPECT_EQ(mesh.get_all_groups().size(), shape.size());
  expect_equal(mesh.mesh(), all, "mesh");
  check_dims(mesh, all, place);
  if (shape.size() < 3) return;

  // Two of three dimensions, in either order, and as one.
  const torch::Tensor plane = all.select(1, place[1]);
  const DeviceMesh outer = mesh[{"dp", "tp"}];
  expect_equal(outer.mesh(), plane, "plane");
  EXPECT_EQ(outer.get_coordinate(), (std::vector<int>{place[0], place[2]}));
  EXPECT_EQ(outer.get_group("tp"), mesh.get_group("tp"));
  const DeviceMesh turned = mesh[{"tp", "dp"}];
  expect_equal(turned.mesh(), plane.t(), "turned plane");
  EXPECT_EQ(turned["dp"].get_group(), mesh.get_group("dp"));
  const DeviceMesh flat = outer.flatten();
  EXPECT_EQ(flat.mesh_dim_names(), Names{"dp_tp"});
  expect_equal(flat.mesh(), plane.reshape({-1}), "flattened plane");
  EXPECT_EQ(get_process_group_ranks(flat.get_group()), ranks_in(plane));
  EXPECT_EQ(flat.get_local_rank(), place[0] * shape[2] + place[2]);
  EXPECT_EQ(sum_in(flat.get_group()), plane.sum().item<std::int64_t>());
  EXPECT_EQ(outer.flatten().get_group(), flat.get_group()) << "the same again makes no group";
  EXPECT_EQ(mesh["dp_tp"].get_group(), flat.get_group());
  EXPECT_EQ(mesh.get_group("dp_tp"), flat.get_group());
  expect_equal(mesh[{"dp_tp", "pp"}].mesh(), all.permute({0, 2, 1}).reshape({-1, shape[1]}), "flattened beside");
}

class DeviceMeshMulti : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, DeviceMeshMulti, testing::Values(1, 2, 3, 4, 6));

TEST_P(DeviceMeshMulti, CoordinatesGroupsAndSlices) {
  run_world(GetParam(), [](int rank) {
    for (const Shape& shape : shapes_of(GetParam())) check_shape(rank, shape);
  });
}

// Groups go with the last handle of the mesh; a slice is one.
void check_lifetime() {
  std::optional<DeviceMesh> slice;
  {
    const DeviceMesh mesh = init_device_mesh(torch::kCPU, {2, 2}, {"dp", "tp"});
    slice = mesh["tp"];
  }
  sum_in(slice->get_group());
  const c10::weak_intrusive_ptr<c10d::ProcessGroup> group(slice->get_group());
  slice.reset();
  EXPECT_TRUE(group.expired());
}

// Ranks in another order, not all of them, and without names.
void check_mesh_of_some_ranks(int rank) {
  const DeviceMesh mesh(torch::kCPU, torch::tensor({{3}, {1}}, torch::kInt));
  EXPECT_EQ(mesh.str(), "DeviceMesh((2, 1), 'cpu')");
  EXPECT_TRUE(mesh.mesh_dim_names().empty());
  EXPECT_EQ(mesh.size(), 2);
  expect_error(ErrorCode::kInvalidArgument, {"slicing", "'dp'", "numbers"}, [&] { mesh["dp"]; });
  if (rank % 2 == 0) {
    EXPECT_EQ(mesh.get_coordinate(), std::nullopt);
    const std::string who = c10::str("rank ", rank, " is not in");
    expect_error(ErrorCode::kInvalidArgument, {"get_group", who}, [&] { mesh.get_group(0); });
    expect_error(ErrorCode::kInvalidArgument, {"get_local_rank", who}, [&] { mesh.get_local_rank(0); });
    return;
  }
  // The group's ranks follow the mesh.
  const int place = rank == 3 ? 0 : 1;
  EXPECT_EQ(mesh.get_coordinate(), (std::vector<int>{place, 0}));
  EXPECT_EQ(mesh.get_local_rank(0), place);
  EXPECT_EQ(get_rank(mesh.get_group(0)), place);
  EXPECT_EQ(get_process_group_ranks(mesh.get_group(0)), (std::vector<int>{3, 1}));
  EXPECT_EQ(sum_in(mesh.get_group(0)), 4);
  EXPECT_EQ(get_process_group_ranks(mesh.get_group(1)), std::vector<int>{rank});
}

void check_group_options() {
  const DeviceMesh mesh =
      init_device_mesh(torch::kCPU, {4, 1}, {"dp", "tp"},
                       {.group_options = {{"dp", {.timeout = std::chrono::seconds(20), .backend = "cpu:gloo"}}}});
  EXPECT_NE(mesh.get_group("dp"), default_group()) << "a group of its own, with its own timeout";
  EXPECT_EQ(mesh.get_group("dp")->getBackend(torch::kCPU)->getBackendOptions()->timeout, std::chrono::seconds(20));
  EXPECT_EQ(init_device_mesh(torch::kCPU, {4}, {"dp"}).get_group(), default_group());
}

void check_bad_meshes() {
  using enum ErrorCode;
  const auto make = [](const Shape& shape, const Names& names) {
    return [=] { init_device_mesh(torch::kCPU, shape, names); };
  };
  expect_error(kInvalidArgument, {"(2, 3)", "4 ranks", "product"}, make({2, 3}, {"dp", "tp"}));
  expect_error(kInvalidArgument, {"(2)", "4 ranks", "DeviceMesh(device, ranks)"}, make({2}, {"dp"}));
  expect_error(kInvalidArgument, {"(4611686018427387904, 4)"}, make({std::int64_t{1} << 62, 4}, {"dp", "tp"}));
  expect_error(kInvalidArgument, {"positive", "(-2, -2)"}, make({-2, -2}, {"dp", "tp"}));
  expect_error(kInvalidArgument, {"()"}, make({}, {}));
  expect_error(kInvalidArgument, {"two dimensions are named 'dp'"}, make({2, 2}, {"dp", "dp"}));
  expect_error(kInvalidArgument, {"2 dimensions", "found 1: [dp]"}, make({2, 2}, {"dp"}));
  expect_error(kInvalidArgument, {"empty"}, make({2, 2}, {"dp", ""}));
  const auto from = [](const torch::Tensor& ranks) { return [=] { DeviceMesh(torch::kCPU, ranks); }; };
  expect_error(kInvalidArgument, {"rank 4", "0 to 3"}, from(torch::tensor({0, 4})));
  expect_error(kInvalidArgument, {"rank 1 is there twice"}, from(torch::tensor({1, 1})));
  expect_error(kInvalidArgument, {"integers", "Float [2]"}, from(torch::zeros({2})));
  expect_error(kInvalidArgument, {"undefined"}, from({}));
  expect_error(kUnsupported, {"no backend", "xpu"}, [] { init_device_mesh(torch::kXPU, {4}, {"dp"}); });
  expect_error(kInvalidArgument, {"group_options", "'cp'", "[dp]"}, [] {
    init_device_mesh(torch::kCPU, {4}, {"dp"}, {.group_options = {{"cp", {}}}});
  });
}

void check_bad_names() {
  using enum ErrorCode;
  const DeviceMesh mesh = init_device_mesh(torch::kCPU, {2, 1, 2}, kNames);
  EXPECT_EQ(mesh.str(), "DeviceMesh((dp=2, pp=1, tp=2), 'cpu')");
  mesh[{"dp", "tp"}].flatten("both");
  expect_error(kInvalidArgument, {"slicing", "'cp'", "[dp, pp, tp, both]"}, [&] { mesh["cp"]; });
  expect_error(kInvalidArgument, {"'pp'", "[dp, tp]"}, [&] { mesh[{"dp", "tp"}]["pp"]; });
  expect_error(kInvalidArgument, {"overlap in 'tp'"}, [&] { mesh[{"tp", "both"}]; });
  expect_error(kInvalidArgument, {"overlap in 'dp'"}, [&] { mesh[{"dp", "dp"}]; });
  expect_error(kInvalidArgument, {"get_group", "3 dimensions"}, [&] { mesh.get_group(); });
  expect_error(kInvalidArgument, {"get_local_rank", "3 dimensions"}, [&] { mesh.get_local_rank(); });
  expect_error(kInvalidArgument, {"size", "0 to 2, not 3"}, [&] { static_cast<void>(mesh.size(3)); });
  expect_error(kInvalidArgument, {"'dp' already"}, [&] { mesh[{"dp", "pp"}].flatten("dp"); });
  expect_error(kInvalidArgument, {"'both'", "another"}, [&] { mesh[{"dp", "pp"}].flatten("both"); });
  EXPECT_EQ(mesh["pp"].flatten("pp").get_group(), mesh.get_group("pp"));
}

// One rank asks for another mesh, or for an impossible one: all ranks learn it, and go on.
void check_disagreement(int rank) {
  const Names names = rank == 2 ? Names{"tp", "dp"} : Names{"dp", "tp"};
  const std::string other = rank == 2 ? "0,1,3" : "2";
  expect_error(ErrorCode::kMismatch, {"rank(s) " + other, "shape (2, 2)"}, [&] {
    init_device_mesh(torch::kCPU, {2, 2}, names);
  });
  expect_error(rank == 1 ? ErrorCode::kInvalidArgument : ErrorCode::kMismatch, {"(3, 2)", "4 ranks"}, [&] {
    init_device_mesh(torch::kCPU, {rank == 1 ? 3 : 2, 2}, {"dp", "tp"});
  });
  DeviceMeshOptions options;
  if (rank == 3) options.group_options["dp"] = {};
  expect_error(ErrorCode::kMismatch, {"rank(s) " + std::string(rank == 3 ? "0-2" : "3")},
               [&] { init_device_mesh(torch::kCPU, {4}, {"dp"}, options); });
  EXPECT_EQ(sum_in(nullptr), 6);
}

TEST(DeviceMeshErrorsMulti, OfFourRanks) {
  run_world(4, [](int rank) {
    check_lifetime();
    check_mesh_of_some_ranks(rank);
    check_group_options();
    check_bad_meshes();
    check_bad_names();
    check_disagreement(rank);
    barrier();
  });
}

TEST(DeviceMesh, NeedsAWorld) {
  expect_error(ErrorCode::kInvalidArgument, {"init_process_group"}, [] { init_device_mesh(torch::kCPU, {1}, {"dp"}); });
}

}  // namespace
}  // namespace lockstep::test
