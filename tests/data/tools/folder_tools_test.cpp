#include <gtest/gtest.h>

#include "data/image/picture_files.h"
#include "data/tools/check_folder.h"
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

TEST(CheckFolder, ListsTiffFilesInsteadOfStopping) {
  const test::ScratchFolder scratch;
  scratch.write("cat/1.png", test::text(test::encode_png(test::make_picture(40, 40))));
  scratch.write("cat/scan.TIFF", "II*");
  scratch.write("dog/scan.tif", "II*");
  const Result<FolderReport> report = check_folder(scratch.path());
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_EQ(report.value().pictures, 1);
  ASSERT_EQ(report.value().findings.size(), 2U);
  for (const Finding& finding : report.value().findings) EXPECT_EQ(finding.kind, FindingKind::kUnsupported);
  EXPECT_EQ(report.value().findings[1].path, scratch.path("dog/scan.tif"));
}

}  // namespace
}  // namespace lockstep::data
