#include "lockstep/base/atomic_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "support/read_file.h"
#include "support/scratch_folder.h"

namespace lockstep {
namespace {

std::span<const std::uint8_t> bytes_of(std::string_view text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

class AtomicFileTest : public testing::Test {
 protected:
  test::ScratchFolder folder_;
  const std::filesystem::path path_ = folder_.path("file");
  const std::filesystem::path temporary_ = folder_.path("file.tmp");
};

TEST_F(AtomicFileTest, AppearsWholeWhenItIsCommitted) {
  folder_.write("file", "the one before");
  folder_.write("file.tmp", "of a writer that was killed, and longer than what comes");
  auto file = AtomicFile::create(path_).value();
  ASSERT_TRUE(file.append(bytes_of("good ")).ok());
  ASSERT_TRUE(file.append(bytes_of("night")).ok());
  ASSERT_TRUE(file.overwrite(0, bytes_of("G")).ok());
  EXPECT_EQ(file.size(), 10U);
  EXPECT_EQ(test::read_file(path_), "the one before");
  ASSERT_TRUE(file.commit().ok());
  EXPECT_EQ(test::read_file(path_), "Good night");
  EXPECT_FALSE(std::filesystem::exists(temporary_));
}

TEST_F(AtomicFileTest, LeavesNothingWhenItIsNot) {
  {
    auto file = AtomicFile::create(path_).value();
    ASSERT_TRUE(file.append(bytes_of("half")).ok());
    const AtomicFile moved = std::move(file);
    EXPECT_TRUE(std::filesystem::exists(temporary_));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

// A link under the temporary name must not lead the bytes to another file.
TEST_F(AtomicFileTest, LinksUnderTheTemporaryNameAreNotFollowed) {
  namespace fs = std::filesystem;
  const fs::path other = folder_.path("other");
  const std::vector<std::function<void()>> plants = {[&] { fs::create_symlink(other, temporary_); },
                                                     [&] { fs::create_hard_link(other, temporary_); },
                                                     [&] { fs::create_symlink(path_, temporary_); },
                                                     [&] { fs::create_hard_link(path_, temporary_); },
                                                     [&] { fs::create_symlink(folder_.path("absent"), temporary_); },
                                                     [&] { fs::create_symlink(temporary_, temporary_); },
                                                     [&] { fs::create_symlink("/dev/null", temporary_); }};
  for (std::size_t i = 0; i < plants.size(); ++i) {
    folder_.write("other", "of somebody else");
    folder_.write("file", "the one before");
    plants[i]();
    auto file = AtomicFile::create(path_).value();
    ASSERT_TRUE(file.append(bytes_of("new")).ok());
    EXPECT_EQ(test::read_file(path_), "the one before") << i;
    ASSERT_TRUE(file.commit().ok());
    EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(path_))) << i;
    EXPECT_EQ(test::read_file(path_), "new") << i;
    EXPECT_EQ(test::read_file(other), "of somebody else") << i;
    EXPECT_FALSE(fs::exists(folder_.path("absent")));
  }
}

TEST_F(AtomicFileTest, ASecondWriterIsNotPublishedHalf) {
  auto first = std::make_optional(AtomicFile::create(path_).value());
  ASSERT_TRUE(first->append(bytes_of("first")).ok());
  auto second = AtomicFile::create(path_).value();
  ASSERT_TRUE(second.append(bytes_of("sec")).ok());
  const Status status = first->commit();
  EXPECT_EQ(status.code(), ErrorCode::kIo);
  EXPECT_NE(status.message().find("another writer"), std::string::npos) << status.message();
  EXPECT_FALSE(std::filesystem::exists(path_));
  first.reset();
  ASSERT_TRUE(second.append(bytes_of("ond")).ok());
  ASSERT_TRUE(second.commit().ok());
  EXPECT_EQ(test::read_file(path_), "second");
}

TEST_F(AtomicFileTest, ErrorsNameTheTemporaryFile) {
  const auto missing = AtomicFile::create(folder_.path("none/file"));
  EXPECT_EQ(missing.status().code(), ErrorCode::kNotFound);
  EXPECT_NE(missing.status().message().find("none/file.tmp: cannot create"), std::string::npos)
      << missing.status().message();
  auto file = AtomicFile::create(path_).value();
  std::filesystem::remove(temporary_);
  const Status gone = file.commit();
  EXPECT_EQ(gone.code(), ErrorCode::kNotFound);
  EXPECT_NE(gone.message().find(temporary_.native() + ": cannot rename"), std::string::npos) << gone.message();
}

// As files that are written in place: the umask and the mode that a file has decide who reads it, and a link stays one.
TEST_F(AtomicFileTest, ModesAndLinksAreThoseOfFilesWrittenInPlace) {
  namespace fs = std::filesystem;
  const auto write = [](const fs::path& path) {
    auto file = AtomicFile::create(path).value();
    ASSERT_TRUE(file.append(bytes_of("new")).ok());
    ASSERT_TRUE(file.commit().ok());
  };
  const mode_t before = ::umask(0007);
  write(path_);
  ::umask(before);
  EXPECT_EQ(fs::status(path_).permissions(), static_cast<fs::perms>(0660));
  fs::permissions(path_, static_cast<fs::perms>(0600));
  fs::create_directory(folder_.path("links"));
  const fs::path link = folder_.path("links/link");
  fs::create_symlink("../file", link);
  write(link);
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_EQ(test::read_file(path_), "new");
  EXPECT_EQ(fs::status(path_).permissions(), static_cast<fs::perms>(0600));
  fs::remove(path_);
  write(link);
  EXPECT_TRUE(fs::is_regular_file(path_)) << "a link to a file that is not there yet";
}

}  // namespace
}  // namespace lockstep
