#include <gtest/gtest.h>

#include "data/image/encoders.h"
#include "data/tools/check_folder.h"
#include "support/scratch_folder.h"

namespace lockstep::data {
namespace {

std::string text(const std::vector<std::uint8_t>& bytes) {
  return {bytes.begin(), bytes.end()};
}

// Two good pictures, and one of each fault.
void fill(const test::ScratchFolder& scratch) {
  const auto good = test::encode_jpeg(test::make_picture(100, 80, 1));
  scratch.write("cat/1.jpg", text(good));
  scratch.write("cat/2.jpg", text(test::encode_jpeg(test::make_picture(100, 80, 2))));
  scratch.write("cat/empty.jpg", "");
  scratch.write("cat/cut.jpg", text({good.begin(), good.begin() + 900}));
  scratch.write("dog/icon.png", text(test::encode_png(test::make_picture(1, 1))));
  scratch.write("dog/same.jpg", text(good));
  scratch.write("dog/readme.txt", "no picture");
}

TEST(CheckFolder, FindsCorruptTinyAndDuplicatePictures) {
  const test::ScratchFolder scratch;
  fill(scratch);
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
  scratch.write("cat/1.png", text(test::encode_png(test::make_picture(40, 40))));
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
