// The share of the data that a rank gets, for every way to make its process group.
#include "lockstep/data/share.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "lockstep/base/log.h"
#include "lockstep/c10d/device_mesh.h"
#include "lockstep/c10d/distributed.h"
#include "lockstep/data/data_loader.h"
#include "lockstep/data/errors.h"
#include "lockstep/store/file_store.h"
#include "support/expect_error.h"
#include "support/held_port.h"
#include "support/process_ranks.h"
#include "support/scratch_folder.h"

namespace lockstep::data {
namespace {

class CountedNumbers : public Dataset {
 public:
  explicit CountedNumbers(std::int64_t size) : size_(size) {}
  std::int64_t size() const override { return size_; }
  Example get(std::int64_t index) const override { return {torch::tensor(index), torch::tensor(index)}; }

 private:
  std::int64_t size_;
};

void forget_launcher() {
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE",
                           "MASTER_ADDR", "MASTER_PORT", "LOCKSTEP_STORE"}) {
    ::unsetenv(name);
  }
}

std::vector<std::int64_t> epoch_of(DataLoader& loader) {
  std::vector<std::int64_t> seen;
  for (auto& batch : loader) {
    for (std::int64_t i = 0; i < batch.data.numel(); ++i) seen.push_back(batch.data[i].item<std::int64_t>());
  }
  return seen;
}

// All ranks together have each sample of the dataset once.
void expect_each_sample_once(const std::vector<std::int64_t>& mine, std::int64_t size) {
  torch::Tensor counts = torch::zeros({size}, torch::kLong);
  for (const std::int64_t index : mine) counts[index] += 1;
  all_reduce(counts);
  EXPECT_TRUE(torch::equal(counts, torch::ones({size}, torch::kLong))) << counts;
}

constexpr std::int64_t kSamples = 25;

void expect_right_shares(int rank, int world) {
  ASSERT_EQ(get_rank(), rank);
  for (const int workers : {0, 1}) {
    DataLoader loader(CountedNumbers(kSamples),
                      {.batch_size = 3, .shuffle = true, .exact = true, .num_workers = workers});
    expect_each_sample_once(epoch_of(loader), kSamples);
  }
  expect_each_sample_once(DistributedSampler(kSamples, {.exact = true}).indices(), kSamples);
  const Share share = share_of_process();
  EXPECT_EQ(share.rank, rank);
  EXPECT_EQ(share.world_size, world);
  EXPECT_EQ(share.local_rank, rank);
  EXPECT_EQ(share.local_world_size, world);
  EXPECT_EQ(share.nodes, 1);
  // Global batches of 2 * world + 1 samples: rank 0 has one more than the others.
  DataLoader of_machine(CountedNumbers(100), {.machine_batch_size = 2 * world + 1});
  EXPECT_EQ(of_machine.batch_size(), rank == 0 ? 3 : 2);
  // An explicit share is used as it is.
  DataLoader whole(CountedNumbers(kSamples), {.rank = 0, .world_size = 1});
  EXPECT_EQ(epoch_of(whole).size(), static_cast<std::size_t>(kSamples));
}

struct Way {
  const char* name;
  std::function<InitOptions(int rank, int world, const test::SharedScratchFolder&, int port)> options;
};

std::vector<Way> ways() {
  return {
      {"explicit rank",
       [](int rank, int world, const auto&, int port) {
         ::setenv("MASTER_ADDR", "127.0.0.1", 1);
         ::setenv("MASTER_PORT", std::to_string(port).c_str(), 1);
         return InitOptions{.rank = rank, .world_size = world};
       }},
      // The master listens on all interfaces; ranks that connect to this address reach their own machine.
      {"the unspecified address",
       [](int rank, int world, const auto&, int port) {
         ::setenv("MASTER_ADDR", "0.0.0.0", 1);
         ::setenv("MASTER_PORT", std::to_string(port).c_str(), 1);
         ::setenv("RANK", std::to_string(rank).c_str(), 1);
         ::setenv("WORLD_SIZE", std::to_string(world).c_str(), 1);
         return InitOptions{};
       }},
      {"tcp",
       [](int rank, int world, const auto&, int port) {
         return InitOptions{
             .init_method = "tcp://127.0.0.1:" + std::to_string(port), .rank = rank, .world_size = world};
       }},
      {"file",
       [](int rank, int world, const auto& folder, int) {
         return InitOptions{.init_method = "file://" + folder.path("world"), .rank = rank, .world_size = world};
       }},
      {"store",
       [](int rank, int world, const auto& folder, int) {
         auto store = comm::FileStore::open(folder.path("store"));
         if (!store.ok()) throw std::runtime_error(store.status().message());
         return InitOptions{.rank = rank, .world_size = world, .store = std::move(store).value()};
       }},
  };
}

class DataShareMulti : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, DataShareMulti, testing::Values(1, 3));

// The same port in all ranks.
int shared_port(const test::SharedScratchFolder& folder, const test::HeldPort& held) {
  const std::string path = folder.path("port");
  if (!std::filesystem::exists(path)) std::ofstream(path) << held.number();
  int port = 0;
  std::ifstream(path) >> port;
  return port;
}

TEST_P(DataShareMulti, IsTheProcessGroupsHoweverItWasMade) {
  const int world = GetParam();
  for (const Way& way : ways()) {
    SCOPED_TRACE(way.name);
    const test::SharedScratchFolder folder;
    const test::HeldPort held;
    const int port = shared_port(folder, held);
    test::run_processes(world, [&](int rank) {
      forget_launcher();
      // The group numbers the ranks in reverse order of the launcher: the group's numbers count.
      const int mine = world - 1 - rank;
      const ProcessGroupGuard group("", way.options(mine, world, folder, port));
      expect_right_shares(mine, world);
    });
  }
}

// Two replicas of a model, each on two ranks: the ranks of a replica have the same data.
TEST(GivenGroupsMulti, DecideTheShare) {
  test::run_processes(4, [](int rank) {
    const ProcessGroupGuard world;
    const DeviceMesh mesh = init_device_mesh(torch::kCPU, {2, 2}, {"dp", "tp"});
    const ProcessGroup dp = mesh.get_group("dp");
    const std::vector<std::int64_t> expected =
        DistributedSampler(kSamples, {.num_replicas = 2, .rank = rank / 2, .seed = 3}).indices();
    const DistributedSampler sampler(kSamples, {.seed = 3, .group = dp});
    EXPECT_EQ(sampler.indices(), expected);
    DataLoader loader(CountedNumbers(kSamples), {.batch_size = 4, .shuffle = true, .seed = 3, .group = dp});
    EXPECT_EQ(epoch_of(loader), expected);
    DataLoader with_workers(CountedNumbers(kSamples), {.machine_workers = 8, .group = dp});
    EXPECT_EQ(with_workers.workers(), 2) << "the machine has four processes, whatever the group";

    const auto expect_refused = [](std::initializer_list<std::string> pieces, const std::function<void()>& make) {
      test::expect_error<DataError>(ErrorCode::kInvalidArgument, pieces, make);
    };
    expect_refused({"group or rank 0 of 2"},
                   [&] { DistributedSampler(kSamples, {.num_replicas = 2, .rank = 0, .group = dp}); });
    expect_refused({"machine_batch_size", "group"},
                   [&] { DataLoader(CountedNumbers(kSamples), {.machine_batch_size = 8, .group = dp}); });
    const ProcessGroup low = new_group({0, 1}, {.name = "low"});
    if (rank > 1) expect_refused({"no member of the group"}, [&] { DistributedSampler(kSamples, {.group = low}); });
    barrier();
  });
}

// What is logged at level info, and above.
std::string logged_by(const std::function<void()>& action) {
  std::string lines;
  log::set_output([&lines](std::string_view line) { lines += line; });
  action();
  log::set_output({});
  return lines;
}

TEST(LoggedSharesMulti, AreOneLineWhenAllIsWell) {
  ::setenv("LOCKSTEP_LOG_LEVEL", "info", 1);
  test::run_processes(2, [](int rank) {
    const auto make = [] { DataLoader(CountedNumbers(kSamples), {.batch_size = 5}); };
    const auto line = [&](const std::string& share) {
      return fmt::format("info: a sampler or loader of {} samples takes the share of {}\n", kSamples, share);
    };
    const auto expect_logged = [&](const std::string& share) {
      const std::string lines = logged_by(make);
      if (share.empty()) {
        EXPECT_EQ(lines, "");
      } else {
        EXPECT_TRUE(lines.ends_with(line(share))) << lines;
        EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 1) << lines;
      }
    };
    expect_logged(rank == 0 ? "rank 0 of 2: of launcher variables" : "");
    {
      const ProcessGroupGuard group;
      expect_logged(rank == 0 ? "rank 0 of 2: of the process group" : "");
    }
    // The mistake: every rank says that it is the first.
    for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}) ::unsetenv(name);
    expect_logged("rank 0 of 1: no process group");
  });
  ::unsetenv("LOCKSTEP_LOG_LEVEL");
}

TEST(LateGroupsMulti, AreNoticedByLoadersThatWereMadeBefore) {
  test::run_processes(2, [](int rank) {
    const auto of_group = [](int group_rank) {
      ::setenv("RANK", std::to_string(group_rank).c_str(), 1);
      ::setenv("WORLD_SIZE", "2", 1);
    };
    ::unsetenv("RANK");
    ::unsetenv("WORLD_SIZE");
    ::unsetenv("LOCAL_RANK");
    ::unsetenv("LOCAL_WORLD_SIZE");
    DataLoader early(CountedNumbers(kSamples), {.batch_size = 5});
    EXPECT_EQ(epoch_of(early).size(), static_cast<std::size_t>(kSamples)) << "alone it is the whole";
    const DistributedSampler sampler(kSamples);
    DataLoader told(CountedNumbers(kSamples), {.rank = rank, .world_size = 2});
    of_group(rank);
    {
      const ProcessGroupGuard group;
      for (const auto& use : std::vector<std::function<void()>>{[&] { epoch_of(early); }, [&] { sampler.indices(); }}) {
        test::expect_error<DataError>(
            ErrorCode::kMismatch, {"rank 0 of 1", fmt::format("rank {} of 2", rank), "after init_process_group"}, use);
      }
      EXPECT_EQ(epoch_of(told).size(), 13U);
    }
    EXPECT_EQ(epoch_of(early).size(), static_cast<std::size_t>(kSamples)) << "the group is gone";
  });
}

}  // namespace
}  // namespace lockstep::data
