// The file store beyond the contract that all stores share: stale, damaged and foreign files, several processes.
#include "lockstep/comm/store/file_store.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "support/scratch_folder.h"

namespace lockstep::comm {
namespace {

Deadline now() {
  return Deadline::after(std::chrono::milliseconds(0));
}

std::string read_file(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

class FileStoreTest : public testing::Test {
 protected:
  test::ScratchFolder folder_;
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

TEST_F(FileStoreTest, AFileOfAnEarlierRunIsStartedAnew) {
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
  EXPECT_EQ(read_file(path_), "my precious notes");
}

TEST_F(FileStoreTest, DamageIsNamedWithPathAndOffset) {
  auto writer = FileStore::open(path_).value();
  ASSERT_TRUE(writer->set("first", "1").ok());
  const auto offset = std::filesystem::file_size(path_);
  ASSERT_TRUE(writer->set("second", "22").ok());
  const std::string good = read_file(path_);
  struct {
    std::string name, bytes;
  } const cases[] = {
      {"checksum", std::string(good).replace(good.size() - 1, 1, "x")},
      {"length", std::string(good).replace(offset + 8, 4, "\xff\xff\xff\xff")},
      {"torn header", good.substr(0, offset + 5)},
      {"torn value", good.substr(0, good.size() - 1)},
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
