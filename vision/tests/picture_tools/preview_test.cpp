#include "picture_tools/preview.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "image/picture_files.h"
#include "lockstep/image/decode.h"
#include "picture_tools/thumbnail.h"
#include "picture_tools/web_page.h"
#include "support/read_file.h"
#include "support/scratch_folder.h"

namespace lockstep::data {
namespace {

std::size_t count_of(const std::string& what, const std::string& text) {
  std::size_t count = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

std::string page_of(const test::ScratchFolder& scratch, const Compose& transform, const PreviewOptions& options) {
  const Result<PreviewSummary> written = write_preview(scratch.path(), scratch.path("page.html"), transform, options);
  EXPECT_TRUE(written.ok()) << written.status().message();
  return test::read_file(scratch.path("page.html"));
}

TEST(Preview, ShowsSamplesOfAllClassesWithTheirNames) {
  const test::ScratchFolder scratch;
  test::write_good_and_faulty_pictures(scratch);
  const Result<PreviewSummary> written =
      write_preview(scratch.path(), scratch.path("page.html"), Compose({Resize{OutputSize(40, 40)}}), {.cell = 40});
  ASSERT_TRUE(written.ok()) << written.status().message();
  EXPECT_EQ(written.value().samples, 4);
  EXPECT_EQ(written.value().left_out.size(), 2U);
  const std::string page = test::read_file(scratch.path("page.html"));
  EXPECT_EQ(count_of("<figcaption>cat</figcaption>", page), 2U);
  EXPECT_EQ(count_of("<figcaption>dog</figcaption>", page), 2U);
  EXPECT_LT(page.find(">dog<"), page.rfind(">cat<")) << "in turn";
  EXPECT_TRUE(page.ends_with("</body></html>\n"));
}

TEST(Preview, PicturesAreThoseAfterTheTransforms) {
  const test::ScratchFolder scratch;
  scratch.write("a <b>/1.png", test::text(test::encode_png(test::make_picture(90, 60))));
  const std::string page = page_of(scratch, Compose({CenterCrop{60}}), {.cell = 300});
  const Image picture = decode_image(scratch.path("a <b>/1.png")).value();
  Image expected(60, 60);
  for (int y = 0; y < 60; ++y) {
    std::copy_n(picture.row(y) + 15 * Image::kBytesPerPixel, expected.row_bytes(), expected.row(y));
  }
  EXPECT_NE(page.find(picture_element(to_base64(thumbnail(expected, 300).value()))), std::string::npos);
  EXPECT_NE(page.find("<figcaption>a &lt;b&gt;</figcaption>"), std::string::npos);
}

TEST(Preview, RepeatsSamplesThroughEpochs) {
  const test::ScratchFolder scratch;
  scratch.write("a/1.png", test::text(test::encode_png(test::make_picture(90, 90))));
  const Compose transform({RandomResizedCrop{32}});
  EXPECT_EQ(page_of(scratch, transform, {}), page_of(scratch, transform, {}));
  EXPECT_NE(page_of(scratch, transform, {}), page_of(scratch, transform, {.seed = 1}));
  EXPECT_EQ(count_of("<img", page_of(scratch, transform, {.epochs = 3})), 3U);
  const auto code = [&](PreviewOptions options) {
    return write_preview(scratch.path(), scratch.path("page.html"), transform, options).status().code();
  };
  EXPECT_EQ(code({.samples = 0}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({.samples = 10000, .epochs = 11}), ErrorCode::kInvalidArgument);
}

TEST(Preview, LeavesOutPicturesThatTheTransformsCannotTake) {
  const test::ScratchFolder scratch;
  scratch.write("a/large.png", test::text(test::encode_png(test::make_picture(40, 40))));
  scratch.write("a/small.png", test::text(test::encode_png(test::make_picture(9, 9))));
  const Result<PreviewSummary> written =
      write_preview(scratch.path(), scratch.path("page.html"), Compose({RandomCrop{32}}), {});
  ASSERT_TRUE(written.ok()) << written.status().message();
  EXPECT_EQ(written.value().samples, 1);
  ASSERT_EQ(written.value().left_out.size(), 1U);
  EXPECT_NE(written.value().left_out[0].find("small.png: RandomCrop: expected a picture of at least 32 x 32"),
            std::string::npos)
      << written.value().left_out[0];
}

}  // namespace
}  // namespace lockstep::data
