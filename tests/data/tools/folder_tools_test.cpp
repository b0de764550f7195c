#include <gtest/gtest.h>

#include <fstream>

#include "data/image/encoders.h"
#include "data/tools/check_folder.h"
#include "data/tools/contact_sheet.h"
#include "data/tools/font.h"
#include "lockstep/data/decode.h"
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

TEST(ContactSheet, ShowsSamplesOfAllClassesWithTheirNames) {
  const test::ScratchFolder scratch;
  fill(scratch);
  const Compose transform({Resize{OutputSize(40, 40)}});
  const Result<ContactSheet> sheet = contact_sheet(scratch.path(), transform, {.columns = 3, .cell = 40});
  ASSERT_TRUE(sheet.ok()) << sheet.status().message();
  EXPECT_EQ(sheet.value().samples, 4);
  EXPECT_EQ(sheet.value().left_out.size(), 2U);
  EXPECT_EQ(sheet.value().image.width(), 6 + 3 * 46);
  // Written and read again, it is the same picture.
  const std::filesystem::path file = scratch.path() / "sheet.png";
  ASSERT_TRUE(write_png(sheet.value().image, file).ok());
  EXPECT_EQ(packed_bytes(decode_image(file).value()), packed_bytes(sheet.value().image));
}

TEST(ContactSheet, RepeatsSamplesThroughEpochs) {
  const test::ScratchFolder scratch;
  scratch.write("a/1.png", text(test::encode_png(test::make_picture(90, 90))));
  const Compose transform({RandomResizedCrop{32}});
  const auto sheet = [&](SheetOptions options) {
    options.cell = 32;
    return contact_sheet(scratch.path(), transform, options).value();
  };
  EXPECT_EQ(packed_bytes(sheet({}).image), packed_bytes(sheet({}).image));
  EXPECT_NE(packed_bytes(sheet({}).image), packed_bytes(sheet({.seed = 1}).image));
  const Image three = sheet({.columns = 3, .epochs = 3}).image;
  EXPECT_EQ(three.width(), 6 + 3 * 38);
  EXPECT_FALSE(contact_sheet(scratch.path(), transform, {.samples = 0}).ok());
}

TEST(Font, DrawsInsideOfItsRoom) {
  Image image(40, 12);
  std::fill_n(image.row(0), image.row_bytes() * 12, std::uint8_t{0});
  draw_text(image, 2, 1, 36, "Aj\u00e4~ and more");  // 6 letters: A j ? ~ . .
  int ink = 0;
  for (int y = 0; y < 12; ++y) {
    for (int x = 0; x < 40; ++x) {
      if (image.pixel(x, y)[0] == 0) continue;
      ++ink;
      EXPECT_TRUE(x >= 2 && x < 38 && y >= 1 && y < 1 + kLetterHeight);
    }
  }
  EXPECT_GT(ink, 30);
}

}  // namespace
}  // namespace lockstep::data
