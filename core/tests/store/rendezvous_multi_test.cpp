// Stores and rendezvous between real processes.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "lockstep/store/file_store.h"
#include "lockstep/store/rendezvous.h"
#include "store/deadlines.h"
#include "support/process_ranks.h"
#include "support/scratch_folder.h"

namespace lockstep::comm {
namespace {

using std::chrono::seconds;

TEST(RendezvousMulti, ProcessesMeetByTheirEnvironment) {
  test::run_processes(3, [](int rank) {
    auto group = rendezvous(RendezvousOptions());
    ASSERT_TRUE(group.ok()) << group.status().message();
    EXPECT_EQ(group->rank, rank);
    EXPECT_EQ(group->world_size, 3);
    ASSERT_TRUE(group->store->append("ranks", std::to_string(rank)).ok());
    EXPECT_LE(group->store->add("count", 1).value(), 3);
    EXPECT_TRUE(group->release().ok());
  });
}

TEST(RendezvousMulti, ProcessesMeetByAFile) {
  const test::SharedScratchFolder folder;
  const std::string path = folder.path("meeting");
  test::run_processes(3, [&](int rank) {
    RendezvousOptions options;
    options.init_method = "file://" + path;
    auto group = rendezvous(options);
    ASSERT_TRUE(group.ok()) << group.status().message();
    for (int i = 0; i < 50; ++i) ASSERT_TRUE(group->store->add("count", 1).ok());
    ASSERT_TRUE(group->store->set("done" + std::to_string(rank), "").ok());
    ASSERT_TRUE(group->store->wait(std::vector<std::string>{"done0", "done1", "done2"}, soon()).ok());
    EXPECT_EQ(group->store->add("count", 0).value(), 150);
    EXPECT_TRUE(group->release().ok());
  });
  EXPECT_FALSE(std::filesystem::exists(path));
}

}  // namespace
}  // namespace lockstep::comm
