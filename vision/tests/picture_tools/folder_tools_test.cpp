#include <gtest/gtest.h>
#include <sys/stat.h>

#include "image/picture_files.h"
#include "picture_tools/check_folder.h"
#include "support/scratch_folder.h"

namespace lockstep::data {
namespace {

TEST(CheckFolder, FindsCorruptTinyAndDuplicatePictures) {
  const test::ScratchFolder scratch;
  test::write_good_and_faulty_pictures(scratch);
  const Result<FolderReport> report = check_folder(scratch.path(), {.threads = 3});
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_EQ(report.value().pictures, 6);
  EXPECT_EQ(report.value().classes, 2);
  std::vector<std::pair<FindingKind, std::string>> found;
  for (const Finding& finding : report.value().findings) {
    found.emplace_back(finding.kind, std::filesystem::path(finding.path).filename().native());
    EXPECT_FALSE(finding.detail.empty());
  }
  EXPECT_EQ(found, (std::vector<std::pair<FindingKind, std::string>>{{FindingKind::kCorrupt, "cut.jpg"},
                                                                     {FindingKind::kCorrupt, "empty.jpg"},
                                                                     {FindingKind::kTiny, "icon.png"},
                                                                     {FindingKind::kDuplicate, "same.jpg"}}));
  EXPECT_NE(report.value().findings.back().detail.find("of another class"), std::string::npos);
  EXPECT_FALSE(check_folder(scratch.path() / "nowhere").ok());
}

TEST(CheckFolder, NamesWhatIsNoFileOrFarTooLarge) {
  const test::ScratchFolder scratch;
  const std::string good = test::text(test::encode_png(test::make_picture(40, 40)));
  scratch.write("cat/1.png", good);
  scratch.write("cat/giant.png", good);
  std::filesystem::resize_file(scratch.path("cat/giant.png"), std::uint64_t{1} << 40);
  std::filesystem::create_symlink("nowhere", scratch.path("cat/link.jpg"));
  ASSERT_EQ(::mkfifo(scratch.path("cat/pipe.jpg").c_str(), 0600), 0);
  const Result<FolderReport> report = check_folder(scratch.path(), {.threads = 2});
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_EQ(report.value().pictures, 4);
  std::vector<std::pair<std::string, std::string>> found;
  for (const Finding& finding : report.value().findings) found.emplace_back(finding.path, finding.detail);
  EXPECT_EQ(
      found,
      (std::vector<std::pair<std::string, std::string>>{
          {scratch.path("cat/giant.png"), "expected a picture file of at most 1073741824 bytes, found 1099511627776"},
          {scratch.path("cat/link.jpg"), "cannot open the file: No such file or directory"},
          {scratch.path("cat/pipe.jpg"), "expected a regular file, found a FIFO"}}));
}

TEST(CheckFolder, DecodesTiffFilesToo) {
  const test::ScratchFolder scratch;
  scratch.write("cat/scan.TIFF", test::text(test::encode_tiff(test::make_picture(40, 40))));
  scratch.write("dog/scan.tif", "II*");
  const Result<FolderReport> report = check_folder(scratch.path());
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_EQ(report.value().pictures, 2);
  ASSERT_EQ(report.value().findings.size(), 1U);
  EXPECT_EQ(report.value().findings[0].kind, FindingKind::kCorrupt);
  EXPECT_EQ(report.value().findings[0].path, scratch.path("dog/scan.tif"));
}

}  // namespace
}  // namespace lockstep::data
