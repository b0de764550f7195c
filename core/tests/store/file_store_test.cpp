// The file store beyond what all stores have in common: stale, damaged and foreign files, several processes.
#include "lockstep/store/file_store.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include "lockstep/base/fd.h"
#include "store/deadlines.h"
#include "store/file/file_lock.h"
#include "support/full_disk.h"
#include "support/read_file.h"
#include "support/scratch_folder.h"

namespace lockstep::comm {
namespace {

void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

class FileStoreTest : public testing::Test {
 protected:
  const test::ScratchFolder folder_;
  const std::string path_ = folder_.path("store");
};

TEST_F(FileStoreTest, TheLastToCloseRemovesTheFile) {
  auto first = FileStore::open(path_).value();
  auto second = FileStore::open(path_).value();
  ASSERT_TRUE(first->set("key", "1").ok());
  first.reset();
  EXPECT_TRUE(std::filesystem::exists(path_));
  EXPECT_EQ(second->get("key", now()).value(), "1");
  second.reset();
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(FileStoreTest, AFileOfAnEarlierRunIsEmptied) {
  {
    auto store = FileStore::open(path_).value();
    ASSERT_TRUE(store->set("key", "old").ok());
    std::filesystem::copy_file(path_, folder_.path("copy"));
  }
  std::filesystem::rename(folder_.path("copy"), path_);  // as if its processes had been killed
  auto store = FileStore::open(path_).value();
  EXPECT_EQ(store->num_keys().value(), 0);
  write_file(folder_.path("torn"), "LKST");  // killed while it began
  EXPECT_TRUE(FileStore::open(folder_.path("torn")).ok());
}

TEST_F(FileStoreTest, AForeignFileIsRefusedAndKept) {
  write_file(path_, "my precious notes");
  const auto store = FileStore::open(path_);
  EXPECT_EQ(store.status().code(), ErrorCode::kCorrupt);
  EXPECT_NE(store.status().message().find(path_ + " at offset 0"), std::string::npos) << store.status().message();
  EXPECT_EQ(test::read_file(path_), "my precious notes");
}

TEST_F(FileStoreTest, DamageIsNamedWithPathAndOffset) {
  auto writer = FileStore::open(path_).value();
  ASSERT_TRUE(writer->set("first", "1").ok());
  const auto offset = std::filesystem::file_size(path_);
  ASSERT_TRUE(writer->set("second", "22").ok());
  const std::string good = test::read_file(path_);
  struct {
    std::string name, bytes;
  } const cases[] = {
      {"checksum", std::string(good).replace(good.size() - 1, 1, "x")},
      {"length", std::string(good).replace(offset + 8, 4, "\xff\xff\xff\xff")},
  };
  for (const auto& test : cases) {
    write_file(path_, test.bytes);
    const auto reader = FileStore::open(path_);  // joins, because `writer` has it open
    ASSERT_TRUE(reader.ok()) << reader.status().message();
    const auto status = reader.value()->num_keys().status();
    EXPECT_EQ(status.code(), ErrorCode::kCorrupt) << test.name;
    const std::string where = "store file " + path_ + " at offset " + std::to_string(offset);
    EXPECT_NE(status.message().find(where), std::string::npos) << test.name << ": " << status.message();
  }
}

// Every byte at which a writer may have been killed.
TEST_F(FileStoreTest, TheRestOfAKilledWritersRecordIsCutOff) {
  std::string good, longer;
  {
    const auto store = FileStore::open(path_).value();
    ASSERT_TRUE(store->set("first", "1").ok());
    good = test::read_file(path_);
    ASSERT_TRUE(store->append("first", "234").ok());
    longer = test::read_file(path_);
  }
  for (std::size_t size = good.size(); size < longer.size(); ++size) {
    const auto reader = FileStore::open(path_).value();
    const auto waiter = FileStore::open(path_).value();
    write_file(path_, longer.substr(0, size));
    EXPECT_EQ(reader->get("first", now()).value(), "1") << size;
    ASSERT_TRUE(reader->append("first", "x").ok()) << size;
    EXPECT_EQ(waiter->get("first", now()).value(), "1x") << size;
    write_file(path_, good);
  }
}

// The store when there is no room (a file limit, a small tmpfs): writes that fit still work.
void expect_whole_when_full(const std::string& path, const std::string& reason,
                            const std::function<void()>& make_room) {
  const auto writer = FileStore::open(path).value();
  const auto other = FileStore::open(path).value();
  ASSERT_TRUE(writer->set("small", "before").ok());
  const auto size = std::filesystem::file_size(path);
  for (const auto& store : {writer, other}) {
    const Status refused = store->set("large", std::string(1 << 20, 'x'));
    EXPECT_EQ(refused.code(), ErrorCode::kIo);
    EXPECT_NE(refused.message().find(path), std::string::npos) << refused.message();
    EXPECT_NE(refused.message().find(reason), std::string::npos) << refused.message();
    EXPECT_EQ(std::filesystem::file_size(path), size);
  }
  ASSERT_TRUE(other->set("small", "after").ok());
  EXPECT_EQ(writer->get("small", now()).value(), "after");
  EXPECT_EQ(writer->num_keys().value(), 1);
  make_room();
  ASSERT_TRUE(writer->set("large", std::string(1 << 20, 'y')).ok());
  EXPECT_EQ(other->get("large", now()).value(), std::string(1 << 20, 'y'));
}

TEST_F(FileStoreTest, AFileLimitStoresAllOrNothing) {
  const test::FileSizeLimit limit(100'000);
  expect_whole_when_full(path_, "File too large", [&] { limit.lift(); });
}

TEST_F(FileStoreTest, AFullDiskStoresAllOrNothing) {
  const test::SmallDisk disk(512 << 10);
  expect_whole_when_full(disk.path("store"), "No space left on device", [&] { disk.resize(4 << 20); });
}

TEST_F(FileStoreTest, ADiskThatIsFullFromTheBeginningIsNamed) {
  const test::SmallDisk disk(64 << 10);
  disk.fill();
  const auto store = FileStore::open(disk.path("store"));
  EXPECT_EQ(store.status().code(), ErrorCode::kIo);
  EXPECT_NE(store.status().message().find(disk.path("store") + ": No space left"), std::string::npos)
      << store.status().message();
  EXPECT_FALSE(std::filesystem::exists(disk.path("store")));
  disk.resize(1 << 20);
  EXPECT_TRUE(FileStore::open(disk.path("store")).ok());
}

// The system kills a writer in the middle of its record: past a file limit it is ended by SIGXFSZ.
TEST_F(FileStoreTest, AWriterMayBeKilledAtAnyTime) {
  const auto survivor = FileStore::open(path_).value();
  for (int round = 0; round < 10; ++round) {
    const pid_t child = ::fork();
    if (child == 0) {
      const auto store = FileStore::open(path_).value();
      const auto size = std::filesystem::file_size(path_);
      const rlimit limit{size + 400'000 + rlim_t{30'000} * static_cast<rlim_t>(round), RLIM_INFINITY};
      ::setrlimit(RLIMIT_FSIZE, &limit);
      ::signal(SIGXFSZ, SIG_DFL);
      for (int i = 0;; ++i) static_cast<void>(store->set("key", std::string(100'000, static_cast<char>('a' + i))));
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status));
    const auto value = survivor->get("key", now());
    ASSERT_TRUE(value.ok()) << value.status().message();
    EXPECT_EQ(value.value(), std::string(100'000, value.value()[0]));
    ASSERT_TRUE(survivor->set("round", std::to_string(round)).ok());
  }
}

TEST_F(FileStoreTest, AFrozenProcessThatHoldsTheLockIsNotWaitedForByThoseWhoLeave) {
  auto store = FileStore::open(path_).value();
  ASSERT_TRUE(store->set("key", "1").ok());
  const Fd frozen(::open(path_.c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_TRUE(try_lock(frozen.get(), LockByte::kData, LockMode::kExclusive, path_).value());
  const auto start = std::chrono::steady_clock::now();
  const Status late = store->set("left", "1", Deadline::after(std::chrono::milliseconds(100)));
  EXPECT_EQ(late.code(), ErrorCode::kTimeout);
  EXPECT_NE(late.message().find(path_ + " stayed locked"), std::string::npos) << late.message();
  EXPECT_EQ(store->check(std::vector<std::string>{"key"}).status().code(), ErrorCode::kTimeout);
  store.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));  // it was three minutes
}

TEST_F(FileStoreTest, AFolderThatDoesNotExistIsNamed) {
  const auto store = FileStore::open(folder_.path("none/store"));
  EXPECT_EQ(store.status().code(), ErrorCode::kNotFound);
  EXPECT_NE(store.status().message().find("none/store"), std::string::npos) << store.status().message();
}

TEST_F(FileStoreTest, AFileRemovedWhileInUseIsNamed) {
  auto store = FileStore::open(path_).value();
  std::filesystem::remove(path_);
  EXPECT_EQ(store->set("key", "1").code(), ErrorCode::kNotFound);
}

}  // namespace
}  // namespace lockstep::comm
