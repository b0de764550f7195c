#include "lockstep/image/folder_index.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "lockstep/image/decode.h"
#include "support/scratch_folder.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> relative(const FolderIndex& index, const fs::path& root) {
  std::vector<std::string> names;
  for (const FolderIndex::Sample& sample : index.samples) {
    names.push_back(std::to_string(sample.label) + " " + fs::path(sample.path).lexically_relative(root).native());
  }
  return names;
}

TEST(FolderIndex, ClassesAndSamplesInTorchvisionsOrder) {
  const test::ScratchFolder folder;
  for (const char* name : {"b/2.JPG", "b/10.jpeg", "b/sub/1.png", "b/sub-x/1.bmp", "b/notes.txt", "a/x.webp", "B/y.jpg",
                           "ä/z 熊.jpg", "top.jpg"}) {
    folder.write(name, "x");
  }
  const FolderIndex index = index_image_folder(folder.path()).value();
  EXPECT_EQ(index.classes, (std::vector<std::string>{"B", "a", "b", "ä"}));
  EXPECT_EQ(index.class_to_idx.at("ä"), 3);
  EXPECT_EQ(relative(index, folder.path()),
            (std::vector<std::string>{"0 B/y.jpg", "1 a/x.webp", "2 b/10.jpeg", "2 b/2.JPG", "2 b/sub/1.png",
                                      "2 b/sub-x/1.bmp", "3 ä/z 熊.jpg"}));
}

TEST(FolderIndex, ListsThePicturesOfAFolderWithoutClasses) {
  const test::ScratchFolder folder;
  for (const char* name : {"b/2.JPG", "b/sub/1.png", "b/notes.txt", "a/x.webp", "top.jpg"}) folder.write(name, "x");
  EXPECT_EQ(list_pictures(folder.path("")).value(),
            (std::vector<std::string>{folder.path("top.jpg"), folder.path("a/x.webp"), folder.path("b/2.JPG"),
                                      folder.path("b/sub/1.png")}));
  EXPECT_EQ(list_pictures(folder.path("nowhere")).status().code(), ErrorCode::kNotFound);
}

// Python has U+DC80 for the byte 80. The expected order is that of its sorted().
TEST(FolderIndex, NamesThatAreNotUtf8HavePythonsOrder) {
  const test::ScratchFolder folder;
  const std::vector<std::string> sorted{"a\xc3\xa4", "a\xc3z", "\xc3\xa4",     "\xe7\x86\x8a",
                                        "\x80",      "\xc3",   "\xee\x80\x80", "\xf0\x9f\x98\x80"};
  for (const std::string& name : sorted) {
    for (const std::string& picture : sorted) folder.write(name + "/" + picture + "/" + picture + ".jpg", "x");
  }
  const FolderIndex index = index_image_folder(folder.path()).value();
  EXPECT_EQ(index.classes, sorted);
  std::vector<std::string> expected;
  for (const std::string& name : sorted) {
    for (const std::string& picture : sorted) {
      expected.push_back(folder.path(name + "/" + picture + "/" + picture + ".jpg"));
    }
  }
  std::vector<std::string> found;
  for (const FolderIndex::Sample& sample : index.samples) found.push_back(sample.path);
  EXPECT_EQ(found, expected);
}

TEST(FolderIndex, FollowsLinksButNotInCircles) {
  const test::ScratchFolder folder;
  folder.write("a/deep/1.jpg", "x");
  folder.write("elsewhere/2.jpg", "x");
  fs::create_directory_symlink(folder.path() / "a", folder.path() / "a" / "deep" / "up");
  fs::create_directory_symlink(folder.path(), folder.path() / "a" / "root");
  fs::create_directory_symlink(folder.path() / "elsewhere", folder.path() / "a" / "link");
  fs::create_symlink(folder.path() / "elsewhere" / "2.jpg", folder.path() / "a" / "file.jpg");
  EXPECT_EQ(relative(index_image_folder(folder.path()).value(), folder.path()),
            (std::vector<std::string>{"0 a/file.jpg", "0 a/deep/1.jpg", "0 a/link/2.jpg", "1 elsewhere/2.jpg"}));
}

// As in torchvision: a sample that cannot be read keeps its number, and loading it says why.
TEST(FolderIndex, ListsWhatIsNoFolderWithAPicturesName) {
  const test::ScratchFolder folder;
  folder.write("a/1.jpg", "x");
  ASSERT_EQ(::mkfifo(folder.path("a/fifo.jpg").c_str(), 0600), 0);
  fs::create_symlink("nowhere", folder.path("a/dangling.jpg"));
  fs::create_symlink("itself.jpg", folder.path("a/itself.jpg"));
  fs::create_symlink("/dev/zero", folder.path("a/zero.png"));
  fs::create_directory(folder.path("a/folder.jpg"));
  fs::create_symlink("nowhere", folder.path("no_class"));
  const FolderIndex index = index_image_folder(folder.path()).value();
  EXPECT_EQ(relative(index, folder.path()), (std::vector<std::string>{"0 a/1.jpg", "0 a/dangling.jpg", "0 a/fifo.jpg",
                                                                      "0 a/itself.jpg", "0 a/zero.png"}));
  std::vector<std::uint8_t> bytes;
  for (const FolderIndex::Sample& sample : index.samples) {
    const Status status = read_image_file(sample.path, bytes);
    EXPECT_FALSE(status.ok());
    EXPECT_EQ(status.message().find(sample.path + ": "), 0U) << status.message();
  }
}

TEST(FolderIndex, ErrorsSayWhatIsMissing) {
  const test::ScratchFolder folder;
  const auto status = [&](const FolderIndexOptions& options = {}) {
    return index_image_folder(folder.path() / "data", options).status();
  };
  EXPECT_EQ(status().code(), ErrorCode::kNotFound);
  folder.write("data/1.jpg", "x");
  EXPECT_NE(status().message().find("a folder for each class, found no folder and 1 files"), std::string::npos);
  folder.write("data/one/1.jpg", "x");
  EXPECT_TRUE(status().ok());  // one class is fine
  fs::create_directory(folder.path() / "data" / "hollow");
  EXPECT_NE(status().message().find("hollow"), std::string::npos);
  EXPECT_TRUE(status({.allow_empty = true}).ok());
  EXPECT_NE(status({.extensions = {".dcm"}}).message().find("files that end in .dcm"), std::string::npos);
  EXPECT_NE(status({.is_valid_file = [](const std::string&) { return false; }}).message().find("is_valid_file"),
            std::string::npos);
  const FolderIndexOptions both{.extensions = {".x"}, .is_valid_file = [](const std::string&) { return true; }};
  EXPECT_EQ(status(both).code(), ErrorCode::kInvalidArgument);
}

TEST(FolderIndex, OptionsSayWhichFilesAreSamples) {
  const test::ScratchFolder folder;
  for (const char* name : {"a/1.tif", "a/2.TIFF", "a/3.dcm", "a/sub/4.DCM", "a/5"}) folder.write(name, "x");
  const auto names = [&](const FolderIndexOptions& options) {
    return relative(index_image_folder(folder.path(), options).value(), folder.path());
  };
  EXPECT_EQ(names({}), (std::vector<std::string>{"0 a/1.tif", "0 a/2.TIFF"}));
  EXPECT_EQ(names({.extensions = {".dcm"}}), (std::vector<std::string>{"0 a/3.dcm", "0 a/sub/4.DCM"}));
  const auto no_ending = [](const std::string& path) { return fs::path(path).extension().empty(); };
  EXPECT_EQ(names({.is_valid_file = no_ending}), (std::vector<std::string>{"0 a/5"}));
}

}  // namespace
}  // namespace lockstep::data
