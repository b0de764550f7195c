#include "preview/contact_sheet.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "image/picture_files.h"
#include "lockstep/image/decode.h"
#include "support/scratch_folder.h"

namespace lockstep::data {
namespace {

TEST(ContactSheet, ShowsSamplesOfAllClassesWithTheirNames) {
  const test::ScratchFolder scratch;
  test::write_good_and_faulty_pictures(scratch);
  const Compose transform({Resize{OutputSize(40, 40)}});
  const Result<ContactSheet> sheet = contact_sheet(scratch.path(), transform, {.columns = 3, .cell = 40});
  ASSERT_TRUE(sheet.ok()) << sheet.status().message();
  EXPECT_EQ(sheet.value().samples, 4);
  EXPECT_EQ(sheet.value().left_out.size(), 2U);
  EXPECT_EQ(sheet.value().image.width(), 6 + 3 * 46);
  // Written and read again, the picture is the same.
  const std::filesystem::path file = scratch.path() / "sheet.png";
  ASSERT_TRUE(write_png(sheet.value().image, file).ok());
  EXPECT_EQ(packed_bytes(decode_image(file).value()), packed_bytes(sheet.value().image));
}

TEST(ContactSheet, RepeatsSamplesThroughEpochs) {
  const test::ScratchFolder scratch;
  scratch.write("a/1.png", test::text(test::encode_png(test::make_picture(90, 90))));
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

TEST(ContactSheet, LeavesOutPicturesThatTheTransformsCannotTake) {
  const test::ScratchFolder scratch;
  scratch.write("a/large.png", test::text(test::encode_png(test::make_picture(40, 40))));
  scratch.write("a/small.png", test::text(test::encode_png(test::make_picture(9, 9))));
  const Result<ContactSheet> sheet = contact_sheet(scratch.path(), Compose({RandomCrop{32}}), {});
  ASSERT_TRUE(sheet.ok()) << sheet.status().message();
  EXPECT_EQ(sheet.value().samples, 1);
  ASSERT_EQ(sheet.value().left_out.size(), 1U);
  EXPECT_NE(sheet.value().left_out[0].find("small.png: RandomCrop: expected a picture of at least 32 x 32"),
            std::string::npos)
      << sheet.value().left_out[0];
}

TEST(ContactSheet, SheetsBeyondAllMemoryAreRefused) {
  const test::ScratchFolder scratch;
  scratch.write("a/1.png", test::text(test::encode_png(test::make_picture(9, 9))));
  const Result<ContactSheet> sheet = contact_sheet(scratch.path(), Compose({Resize{8}}),
                                                   {.samples = 10000, .columns = 1, .cell = 2000, .epochs = 1000});
  EXPECT_EQ(sheet.status().code(), ErrorCode::kInvalidArgument);
  EXPECT_NE(sheet.status().message().find("pixels"), std::string::npos) << sheet.status().message();
}

TEST(ContactSheet, WithoutFontsItHasNoNamesAndSaysSo) {
  const test::ScratchFolder scratch;
  scratch.write("a/1.png", test::text(test::encode_png(test::make_picture(9, 9))));
  const test::ScratchFolder fonts;
  fonts.write("fonts.conf", "<fontconfig/>");
  ASSERT_EQ(::setenv("FONTCONFIG_FILE", fonts.path("fonts.conf").c_str(), 1), 0);
  const Result<ContactSheet> sheet = contact_sheet(scratch.path(), Compose({Resize{8}}), {});
  ::unsetenv("FONTCONFIG_FILE");
  ASSERT_TRUE(sheet.ok()) << sheet.status().message();
  EXPECT_EQ(sheet.value().samples, 1);
  EXPECT_EQ(sheet.value().names.code(), ErrorCode::kNotFound);
  EXPECT_NE(sheet.value().names.message().find("fonts-dejavu-core"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::data
