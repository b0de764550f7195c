#include "base/regular_file.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <array>
#include <cstring>

#include "lockstep/base/atomic_file.h"
#include "support/scratch_folder.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

// One path of each kind that is not a regular file, with the word for it.
std::vector<std::pair<fs::path, std::string>> others(const test::ScratchFolder& folder) {
  fs::create_directory(folder.path("folder"));
  EXPECT_EQ(::mkfifo(folder.path("fifo").c_str(), 0600), 0);
  const Fd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  std::strncpy(address.sun_path, folder.path("socket").c_str(), sizeof(address.sun_path) - 1);
  EXPECT_EQ(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  fs::create_symlink(folder.path("fifo"), folder.path("link"));
  return {{folder.path("folder"), "a folder"},
          {folder.path("fifo"), "a FIFO"},
          {folder.path("link"), "a FIFO"},
          {folder.path("socket"), "a socket"},
          {"/dev/null", "a device"}};
}

TEST(RegularFile, ReadsWhatIsThere) {
  const test::ScratchFolder folder;
  folder.write("file", "0123456789");
  const auto file = RegularFile::open(folder.path("file"));
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file.value().size(), 10U);
  std::array<std::uint8_t, 8> bytes{};
  EXPECT_EQ(file.value().read(bytes).value(), 8U);
  EXPECT_EQ(bytes[7], '7');
  EXPECT_EQ(file.value().read(bytes).value(), 2U);
  EXPECT_EQ(file.value().read(bytes).value(), 0U);
  fs::create_symlink(folder.path("file"), folder.path("link"));
  EXPECT_TRUE(RegularFile::open(folder.path("link")).ok());
}

TEST(RegularFile, AnythingElseIsAnErrorAtOnce) {
  const test::ScratchFolder folder;
  for (const auto& [path, kind] : others(folder)) {
    const Status status = RegularFile::open(path).status();
    EXPECT_EQ(status.code(), ErrorCode::kCorrupt);
    EXPECT_EQ(status.message(), path.native() + ": expected a regular file, found " + kind);
  }
  const Status absent = RegularFile::open(folder.path("absent")).status();
  EXPECT_EQ(absent.code(), ErrorCode::kNotFound);
  EXPECT_NE(absent.message().find("absent: cannot open the file: No such file"), std::string::npos);
  folder.write("file", "");
  EXPECT_EQ(RegularFile::open(folder.path("file/below")).status().code(), ErrorCode::kNotFound);
}

// They are neither waited for nor replaced.
TEST(AtomicFilePlaces, HoldNothingButFiles) {
  const test::ScratchFolder folder;
  for (const auto& [path, kind] : others(folder)) {
    const struct stat before = [&path = path] {
      struct stat info {};
      EXPECT_EQ(::lstat(path.c_str(), &info), 0);
      return info;
    }();
    EXPECT_EQ(AtomicFile::create(path).status().code(), ErrorCode::kInvalidArgument);
    EXPECT_FALSE(fs::exists(path.native() + ".tmp"));
    struct stat after {};
    EXPECT_EQ(::lstat(path.c_str(), &after), 0);
    EXPECT_EQ(after.st_ino, before.st_ino);
  }
  ASSERT_EQ(::mkfifo(folder.path("file.tmp").c_str(), 0600), 0);
  const Status in_the_way = AtomicFile::create(folder.path("file")).status();
  EXPECT_FALSE(in_the_way.ok());
  EXPECT_NE(in_the_way.message().find("file.tmp"), std::string::npos);
}

}  // namespace
}  // namespace lockstep
