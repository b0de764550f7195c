// What the launcher knows of GPUs, from the driver: free memory, the choice among them, leases.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>

#include "site/devices.h"
#include "support/device.h"
#include "support/process.h"
#include "support/scratch_folder.h"

namespace lockstep::test {
namespace {

std::vector<site::Gpu> gpus() {
  auto found = site::list_gpus();
  EXPECT_TRUE(found.ok()) << found.status().message();
  if (!found.ok()) return {};
  EXPECT_FALSE(found->driver.empty());
  return std::move(found->gpus);
}

TEST(Gpus, AreListedAsTheDriverSeesThem) {
  const auto all = gpus();
  ASSERT_FALSE(all.empty());
  for (const site::Gpu& gpu : all) {
    EXPECT_TRUE(gpu.health.ok()) << gpu.health.message();
    EXPECT_TRUE(gpu.uuid.starts_with("GPU-")) << gpu.uuid;
    EXPECT_FALSE(gpu.name.empty());
    EXPECT_GT(gpu.total_bytes, std::uint64_t{1} << 30);
    EXPECT_LE(gpu.free_bytes, gpu.total_bytes);
  }
  EXPECT_GT(site::count_visible_gpus(), 0);
}

// Other programs on the GPU would change it too.
TEST(GpuMemoryAlone, IsFreeUntilItIsTaken) {
  use_test_device();
  const torch::Device device = test_device(0);
  torch::ones({1}, device).item<float>();  // what CUDA takes for itself
  const auto before = site::visible_gpus(gpus(), site::visible_devices_variable());
  ASSERT_FALSE(before.empty());
  constexpr std::int64_t kBytes = std::int64_t{1} << 30;
  const torch::Tensor taken = torch::zeros({kBytes}, torch::TensorOptions(torch::kByte).device(device));
  EXPECT_EQ(taken.sum().item<std::int64_t>(), 0);
  const auto after = site::visible_gpus(gpus(), site::visible_devices_variable());
  EXPECT_LE(after.at(0).free_bytes + kBytes, before.at(0).free_bytes);
}

TEST(GpuLeases, GiveEachGpuToOneJob) {
  const ScratchFolder folder;
  const site::LeaseFolder leases(folder.path());
  const auto visible = site::visible_gpus(gpus(), site::visible_devices_variable());
  const int count = static_cast<int>(visible.size());
  const site::DeviceRequest request{.kind = site::DeviceRequest::Kind::kAuto, .numbers = {}, .count = count};
  auto taken = site::take_devices(request, visible, leases);
  ASSERT_TRUE(taken.ok()) << taken.status().message();
  EXPECT_EQ(taken->gpus.size(), visible.size());
  for (std::size_t i = 1; i < taken->gpus.size(); ++i)
    EXPECT_GE(taken->gpus[i - 1].free_bytes, taken->gpus[i].free_bytes) << "the one with the most free memory first";
  const Status refused = site::take_devices(request, visible, leases).status();
  EXPECT_EQ(refused.code(), ErrorCode::kUnavailable) << refused.message();
  EXPECT_NE(refused.message().find("process"), std::string::npos) << refused.message();
}

TEST(GpuLeases, ComeToTheProgramThatTheLauncherStarts) {
  const ScratchFolder folder;
  const auto launcher = std::filesystem::canonical("/proc/self/exe").parent_path() / "lockstep";
  Process job({launcher, "run", "--standalone", "--nproc-per-node", "1", "--devices", "auto:1", "sh", "-c",
               "echo $CUDA_VISIBLE_DEVICES"},
              {.environment = {"LOCKSTEP_LEASES=" + folder.path().native()}});
  const Finished finished = job.finish();
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_NE(finished.out.find("GPU-"), std::string::npos) << finished.out << finished.err;
}

}  // namespace
}  // namespace lockstep::test
