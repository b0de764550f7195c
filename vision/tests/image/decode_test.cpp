#include "lockstep/image/decode.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <map>
#include <random>

#include "image/decoders.h"
#include "image/encoders.h"
#include "image/memory_errors.h"
#include "support/scratch_folder.h"

namespace lockstep::data {
namespace {

using Bytes = std::vector<std::uint8_t>;

Bytes encode_ppm(const Image& image) {
  const std::string header = fmt::format("P6\n{} {}\n255\n", image.width(), image.height());
  Bytes bytes(header.begin(), header.end());
  const Bytes pixels = packed_bytes(image);
  bytes.insert(bytes.end(), pixels.begin(), pixels.end());
  return bytes;
}

std::map<std::string, Bytes> each_format(const Image& image) {
  return {{"jpeg", test::encode_jpeg(image)}, {"png", test::encode_png(image)}, {"webp", test::encode_webp(image)},
          {"bmp", test::encode_bmp(image)},   {"ppm", encode_ppm(image)},       {"tiff", test::encode_tiff(image)}};
}

void expect_same_pixels(const View& view, const View& expected, const std::string& what) {
  ASSERT_EQ(view.width, expected.width) << what;
  ASSERT_EQ(view.height, expected.height) << what;
  for (int y = 0; y < view.height; ++y) {
    for (std::ptrdiff_t x = 0; x < view.width; ++x) {
      ASSERT_EQ(std::memcmp(view.row(y) + 4 * x, expected.row(y) + 4 * x, 3), 0)
          << what << ", pixel " << x << ", " << y;
    }
  }
}

TEST(DecodeImage, KnowsFormatAndSizeOfEachKind) {
  const Image picture = test::make_picture(61, 47);
  for (const auto& [name, bytes] : each_format(picture)) {
    EXPECT_EQ(image_size(bytes).value(), picture.size()) << name;
    const Result<Image> image = decode_image(bytes);
    ASSERT_TRUE(image.ok()) << image.status().message();
    EXPECT_EQ(image.value().size(), picture.size());
    if (name != "jpeg" && name != "webp") expect_same_pixels(image.value(), picture, name);
  }
}

TEST(DecodeImage, OnePixelPictures) {
  for (const auto& [name, bytes] : each_format(test::make_picture(1, 1))) {
    const Result<Image> image = decode_image(bytes);
    ASSERT_TRUE(image.ok()) << name << ": " << image.status().message();
    EXPECT_EQ(image.value().size(), (ImageSize{1, 1}));
  }
}

// A decoded region has the same pixels as the whole picture has there.
TEST(DecodeImage, RegionsOfAJpegAreBitwiseThoseOfTheWhole) {
  std::mt19937 random(7);
  for (const auto& [h, v] : std::vector<std::pair<int, int>>{{2, 2}, {2, 1}, {1, 1}, {1, 2}, {4, 1}}) {
    for (const bool progressive : {false, true}) {
      const Image picture = test::make_picture(211, 173, static_cast<std::uint32_t>(h * 10 + v));
      const Bytes bytes =
          test::encode_jpeg(picture, {.horizontal_sampling = h, .vertical_sampling = v, .progressive = progressive});
      const Image whole = decode_image(bytes).value();
      Image memory;
      for (int trial = 0; trial < 150; ++trial) {
        Box box;
        box.width = 1 + static_cast<int>(random() % 211);
        box.height = 1 + static_cast<int>(random() % 173);
        box.left = static_cast<int>(random() % static_cast<unsigned>(212 - box.width));
        box.top = static_cast<int>(random() % static_cast<unsigned>(174 - box.height));
        const Result<DecodedRegion> region = decode_region(bytes, {.region = box}, memory);
        ASSERT_TRUE(region.ok()) << region.status().message();
        expect_same_pixels(region.value().view, View(whole).part(box),
                           fmt::format("{}x{} progressive {} box {},{} {}x{}", h, v, progressive, box.left, box.top,
                                       box.width, box.height));
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(DecodeImage, ReducedRegionsCoverWhatWasAskedFor) {
  const Bytes bytes = test::encode_jpeg(test::make_picture(333, 251));
  Image memory;
  for (const int reduce : {2, 4, 8}) {
    for (const Box& box : {Box{0, 0, 333, 251}, Box{17, 33, 200, 150}, Box{300, 240, 33, 11}}) {
      const Result<DecodedRegion> region = decode_region(bytes, {.region = box, .reduce = reduce}, memory);
      ASSERT_TRUE(region.ok()) << region.status().message();
      const Box& covered = region.value().covered;
      EXPECT_LE(covered.left, box.left);
      EXPECT_LE(covered.top, box.top);
      EXPECT_GE(covered.right(), box.right());
      EXPECT_GE(covered.bottom(), box.bottom());
      EXPECT_EQ(region.value().view.width, (covered.width + reduce - 1) / reduce);
    }
  }
}

TEST(DecodeImage, FilesThatEndEarlyAreCorruptWhateverTheRegion) {
  for (const auto& [name, bytes] : each_format(test::make_picture(64, 48))) {
    // A PNG file need not have what follows its compressed data: a checksum and the chunk IEND.
    const std::size_t needed = bytes.size() - (name == "png" ? 16 : 2);
    for (std::size_t size = 0; size < needed; size += 1 + bytes.size() / 97) {
      const std::span<const std::uint8_t> part(bytes.data(), size);
      EXPECT_FALSE(decode_image(part).ok()) << name << " of " << size << " bytes";
    }
  }
  const Bytes jpeg = test::encode_jpeg(test::make_picture(256, 256));
  Image memory;
  const Result<DecodedRegion> top =
      decode_region(std::span(jpeg).first(jpeg.size() - 3), {.region = {0, 0, 16, 16}}, memory);
  ASSERT_FALSE(top.ok());
  EXPECT_EQ(top.status().code(), ErrorCode::kCorrupt);
  EXPECT_NE(top.status().message().find("cut short"), std::string::npos) << top.status().message();
}

// As in PIL; test DecodeParity has the pixels.
TEST(DecodeImage, AJpegWithoutItsEndMarkerIsCutShortIfRowsAreMissing) {
  const Bytes whole = test::encode_jpeg(test::make_picture(120, 90));
  Bytes bytes(whole.begin(), whole.end() - 2);
  bytes.resize(bytes.size() + 100);
  Image memory;
  for (const Box& box : {Box{}, Box{0, 0, 16, 16}, Box{0, 80, 16, 10}}) {
    EXPECT_TRUE(decode_region(bytes, {.region = box}, memory).ok());
    const Status strict = decode_region(bytes, {.options = {.strict = true}, .region = box}, memory).status();
    EXPECT_NE(strict.message().find("no end marker"), std::string::npos) << strict.message();
    const Result<DecodedRegion> half = decode_region(std::span(bytes).first(bytes.size() / 2), {.region = box}, memory);
    ASSERT_FALSE(half.ok());
    EXPECT_NE(half.status().message().find("cut short"), std::string::npos) << half.status().message();
  }
}

TEST(DecodeImage, APngIsDamagedByAWrongChecksumBeforeItsPixelsAndByACutChunkBehindThem) {
  const Bytes png = test::encode_png(test::make_picture(20, 10));
  Bytes wrong = png;
  ++wrong[29];  // the checksum of IHDR
  EXPECT_FALSE(decode_image(wrong).ok());
  Bytes longer(png.begin(), png.end() - 12);  // without IEND
  EXPECT_TRUE(decode_image(longer).ok());
  longer.insert(longer.end(), {0, 0, 0, 9, 't', 'E', 'X', 't', 'a', 0, 'b'});
  const Status cut = decode_image(longer).status();
  EXPECT_NE(cut.message().find("cut short in its chunk tEXt"), std::string::npos) << cut.message();
}

TEST(DecodeImage, ErrorsNameTheFileAndTheReason) {
  const test::ScratchFolder folder;
  folder.write("empty.jpg", "");
  folder.write("text.jpg", "this is not a picture");
  const auto message = [&](const std::string& name) {
    const Result<Image> image = decode_image(folder.path() / name);
    EXPECT_FALSE(image.ok());
    EXPECT_NE(image.status().message().find(name), std::string::npos) << image.status().message();
    return image.status();
  };
  EXPECT_EQ(message("empty.jpg").code(), ErrorCode::kCorrupt);
  EXPECT_EQ(message("text.jpg").code(), ErrorCode::kUnsupported);
  folder.write("scan.jpg", std::string("II*\0\x08\0\0\0", 8));
  const Status tiff = message("scan.jpg");
  EXPECT_EQ(tiff.code(), ErrorCode::kCorrupt);
  EXPECT_NE(tiff.message().find("TIFF: its header is damaged or cut short"), std::string::npos) << tiff.message();
  EXPECT_EQ(message("absent.jpg").code(), ErrorCode::kNotFound);
  std::filesystem::create_directory(folder.path() / "folder.jpg");
  EXPECT_EQ(message("folder.jpg").code(), ErrorCode::kCorrupt);
  ASSERT_EQ(::mkfifo(folder.path("fifo.jpg").c_str(), 0600), 0);
  EXPECT_EQ(message("fifo.jpg").code(), ErrorCode::kCorrupt);
  EXPECT_FALSE(image_size(folder.path() / "empty.jpg").ok());
}

TEST(DecodeImage, ContentDecidesNotTheName) {
  const test::ScratchFolder folder;
  const Bytes png = test::encode_png(test::make_picture(9, 7));
  folder.write("bär 熊.jpg", std::string(png.begin(), png.end()));
  const Result<Image> image = decode_image(folder.path() / "bär 熊.jpg");
  ASSERT_TRUE(image.ok()) << image.status().message();
  EXPECT_EQ(image.value().size(), (ImageSize{9, 7}));
  EXPECT_EQ(image_size(folder.path() / "bär 熊.jpg").value(), (ImageSize{9, 7}));
}

// A header may claim any size: it is refused before memory is allocated.
TEST(DecodeImage, RefusesMorePixelsThanAllowed) {
  Bytes jpeg = test::encode_jpeg(test::make_picture(16, 16));
  const std::array<std::uint8_t, 2> start_of_frame{0xff, 0xc0};
  auto at = std::search(jpeg.begin(), jpeg.end(), start_of_frame.begin(), start_of_frame.end());
  ASSERT_NE(at, jpeg.end());
  for (int i = 5; i < 9; ++i) at[i] = i % 2 == 1 ? 0xff : 0x00;  // 65280 x 65280
  EXPECT_NE(decode_image(jpeg).status().message().find("max_pixels"), std::string::npos);
  Bytes bmp = test::encode_bmp(test::make_picture(16, 16));
  bmp[18 + 2] = 1;  // 65552 wide
  bmp[22 + 2] = 1;
  EXPECT_NE(decode_image(bmp).status().message().find("max_pixels"), std::string::npos);
  for (const auto& [name, bytes] : each_format(test::make_picture(40, 30))) {
    const Result<Image> image = decode_image(bytes, {.max_pixels = 1199});
    ASSERT_FALSE(image.ok()) << name;
    EXPECT_EQ(image.status().code(), ErrorCode::kCorrupt);
    EXPECT_TRUE(decode_image(bytes, {.max_pixels = 1200}).ok()) << name;
  }
}

TEST(DecodeImage, OnlyThePixelsOfAPictureAreLimited) {
  constexpr int kHeight = (1 << 20) + 64;
  Image tall(2, kHeight);
  for (int y = 0; y < kHeight; ++y) std::memset(tall.row(y), y % 251, tall.row_bytes());
  for (const auto& [name, bytes] : {std::pair{"png", test::encode_png(tall)}, {"tiff", test::encode_tiff(tall)}}) {
    const Result<Image> image = decode_image(bytes);
    ASSERT_TRUE(image.ok()) << image.status().message();
    expect_same_pixels(image.value(), tall, name);
  }
}

// A tile is decoded whole, so its size counts too.
TEST(DecodeImage, RefusesTilesOfMorePixelsThanAllowed) {
  const Image picture = test::make_picture(16, 16);
  const auto tiled = [&](std::uint32_t side) {
    Bytes bytes = test::encode_tiff(picture);
    // Instead of compression, colours, strips and samples: colours, samples, and tiles of side x side pixels.
    const std::array<std::array<std::uint32_t, 3>, 6> entries{
        {{262, 3, 2}, {277, 3, 3}, {322, 4, side}, {323, 4, side}, {324, 4, 128}, {325, 4, 16 * 16 * 3}}};
    std::size_t at = 8 + 2 + 3 * 12;
    for (const auto& [tag, type, value] : entries) {
      const std::array<std::uint32_t, 3> words{tag | type << 16, 1, value};
      std::memcpy(bytes.data() + at, words.data(), 12);
      at += 12;
    }
    return bytes;
  };
  const Result<Image> image = decode_image(tiled(16), {.max_pixels = 256});
  ASSERT_TRUE(image.ok()) << image.status().message();
  expect_same_pixels(image.value(), picture, "tiled");
  const std::string message = decode_image(tiled(16384)).status().message();
  EXPECT_NE(message.find("its tiles: its header says 16384 x 16384 pixels"), std::string::npos) << message;
}

// The decoder would read on behind the chunk. PIL refuses such a file.
TEST(DecodeImage, AWebpOfWhichAChunkIsTooShortIsAnError) {
  Bytes bytes = test::encode_webp(test::make_picture(40, 30));
  ASSERT_TRUE(decode_image(bytes).ok());
  bytes[16] -= 2;  // the size of its first chunk
  EXPECT_EQ(decode_image(bytes).status().code(), ErrorCode::kCorrupt);
}

// As in PIL. An encoder ends each run with its row, but a damaged file need not.
TEST(DecodeImage, ARunOfATiffGoesOnInTheNextRow) {
  const Image picture = test::make_picture(13, 11);
  const Bytes pixels = packed_bytes(picture);
  Bytes runs;
  for (std::size_t at = 0; at < pixels.size(); at += 100) {
    const std::size_t count = std::min<std::size_t>(100, pixels.size() - at);
    runs.push_back(static_cast<std::uint8_t>(count - 1));  // a run of so many single bytes
    runs.insert(runs.end(), pixels.data() + at, pixels.data() + at + count);
  }
  constexpr int kPackBits = 32773;
  Bytes bytes = test::with_strip(test::encode_tiff(picture), kPackBits & 0xff, 2, runs);
  bytes[8 + 2 + 3 * 12 + 9] = kPackBits >> 8;
  const Result<Image> image = decode_image(bytes);
  ASSERT_TRUE(image.ok()) << image.status().message();
  expect_same_pixels(image.value(), picture, "packbits");
  bytes.resize(bytes.size() - 101);
  EXPECT_EQ(decode_image(bytes).status().code(), ErrorCode::kCorrupt);
}

// The right half of the strip would have any pixels.
TEST(DecodeImage, AJpegThatIsNarrowerThanItsTiffIsAnError) {
  const Image picture = test::make_picture(16, 16);
  const Bytes jpeg = test::encode_jpeg(picture, {.horizontal_sampling = 1, .vertical_sampling = 1});
  constexpr std::uint8_t kJpeg = 7;
  constexpr std::uint8_t kYcbcr = 6;
  const auto tiff = [&](int width) {
    return test::with_strip(test::encode_tiff(test::make_picture(width, 16)), kJpeg, kYcbcr, jpeg);
  };
  EXPECT_TRUE(decode_image(tiff(16)).ok()) << decode_image(tiff(16)).status().message();
  const Status narrow = decode_image(tiff(32)).status();
  EXPECT_EQ(narrow.code(), ErrorCode::kCorrupt);
  EXPECT_NE(narrow.message().find("Improper JPEG strip"), std::string::npos) << narrow.message();
}

// Moves to the right by more pixels than an int can count, then a run of pixels.
TEST(DecodeImage, RunLengthsThatLeaveThePictureStayOutside) {
  for (const std::uint8_t down : {0, 1}) {
    Bytes bytes = test::encode_bmp(test::make_picture(16, 16));
    bytes[28] = 8;  // bits
    bytes[30] = 1;  // RLE8
    bytes.resize(54);
    bytes.resize(54 + 1024);                    // a black palette
    bytes[10] = static_cast<std::uint8_t>(54);  // offset of the pixels: 54 + 1024
    bytes[11] = 4;
    constexpr int kMoves = (1 << 23) + (1 << 16);  // of 255 pixels each
    const std::array<std::uint8_t, 4> move{0, 2, 255, down};
    bytes.reserve(bytes.size() + kMoves * move.size() + 4);
    for (int i = 0; i < kMoves; ++i) bytes.insert(bytes.end(), move.begin(), move.end());
    bytes.insert(bytes.end(), {200, 1, 0, 1});
    const Result<Image> image = decode_image(bytes);
    ASSERT_TRUE(image.ok()) << image.status().message();
    for (int x = 0; x < 16; ++x) EXPECT_EQ(image.value().pixel(x, 15)[0], 0);
  }
}

// A small file that decodes to gigabytes is refused by default. A region of it takes only the memory of the region.
TEST(DecodeImage, A20000x20000PictureInParts) {
  constexpr int kSide = 20'000;
  Image flat(kSide, 16);
  std::memset(flat.row(0), 100, flat.row_bytes() * 16);
  const Bytes bytes = test::encode_jpeg(flat, {.height = kSide});
  EXPECT_EQ(image_size(bytes).value(), (ImageSize{kSide, kSide}));
  EXPECT_EQ(image_size(bytes, DecodeOptions{}).status().code(), ErrorCode::kCorrupt);
  EXPECT_EQ(decode_image(bytes).status().code(), ErrorCode::kCorrupt);
  Image memory;
  const DecodeRequest request{.options = {.max_pixels = 400'000'000}, .region = {15'000, 12'000, 100, 20}};
  const Result<DecodedRegion> region = decode_region(bytes, request, memory);
  ASSERT_TRUE(region.ok()) << region.status().message();
  EXPECT_LE(memory.width(), 200);
  EXPECT_EQ(memory.height(), 20);
  EXPECT_EQ(region.value().picture, (ImageSize{kSide, kSide}));
  EXPECT_EQ(region.value().view.row(7)[std::ptrdiff_t{4} * 50], 100);
}

// The files are sparse: they say many bytes and take none.
TEST(DecodeImage, GiantFilesAreRefusedBeforeMemoryIsTaken) {
  const test::ScratchFolder folder;
  const Bytes jpeg = test::encode_jpeg(test::make_picture(8, 8));
  constexpr std::uint64_t kTerabyte = std::uint64_t{1} << 40;
  const std::pair<std::string, std::string> cases[] = {
      {"", "expected a JPEG, PNG, BMP, WebP, PPM or TIFF picture, found 1099511627776 bytes that begin with 00 00"},
      {std::string(jpeg.begin(), jpeg.end()),
       "expected a picture file of at most 1073741824 bytes, found 1099511627776"}};
  for (const auto& [begin, reason] : cases) {
    folder.write("giant.jpg", begin);
    const std::filesystem::path path = folder.path("giant.jpg");
    std::filesystem::resize_file(path, kTerabyte);
    Bytes bytes;
    for (const Status& status :
         {read_image_file(path, bytes), decode_image(path).status(), image_size(path).status()}) {
      EXPECT_EQ(status.code(), ErrorCode::kUnsupported);
      EXPECT_EQ(status.message().find(path.native() + ": " + reason), 0U) << status.message();
    }
    EXPECT_EQ(bytes.capacity(), 0U);
  }
}

TEST(DecodeImage, RefusedMemoryIsAnErrorWithTheName) {
  const Status status = or_out_of_memory("a\n.jpg", []() -> Status { throw std::bad_alloc(); });
  EXPECT_EQ(status.code(), ErrorCode::kIo);
  EXPECT_EQ(status.message(), "a\\x0a.jpg: not enough memory for a picture of this size");
}

TEST(DecodeImage, OrientationOnRequest) {
  const Image picture = test::make_picture(6, 4);
  const Bytes plain = test::encode_jpeg(picture, {.horizontal_sampling = 1, .vertical_sampling = 1});
  const Image stored = decode_image(plain).value();
  for (int orientation = 1; orientation <= 8; ++orientation) {
    const Bytes bytes = test::with_orientation(plain, orientation);
    expect_same_pixels(decode_image(bytes).value(), stored, "not asked");
    const Image turned = decode_image(bytes, {.apply_orientation = true}).value();
    const ImageSize size = orientation >= 5 ? ImageSize{4, 6} : ImageSize{6, 4};
    ASSERT_EQ(turned.size(), size);
    EXPECT_EQ(image_size(bytes, {.apply_orientation = true}).value(), size);
    EXPECT_EQ(image_size(bytes).value(), stored.size());
    // The place where the stored upper left corner must appear.
    const int x = orientation == 2 || orientation == 3 || orientation == 6 || orientation == 7 ? size.width - 1 : 0;
    const int y = orientation == 3 || orientation == 4 || orientation == 7 || orientation == 8 ? size.height - 1 : 0;
    EXPECT_EQ(std::memcmp(turned.pixel(x, y).data(), stored.pixel(0, 0).data(), 3), 0) << orientation;
  }
}

// test DecodeParity asks PIL the same.
TEST(DecodeImage, OrientationOfUnusualExif) {
  const Bytes plain = test::encode_jpeg(test::make_picture(6, 4));
  const Bytes turned = test::with_orientation(plain, 6);
  constexpr std::size_t kExif = 2;  // where its segment begins
  constexpr std::size_t kType = kExif + 23;
  constexpr std::size_t kCount = kType + 4;
  constexpr std::size_t kValue = kCount + 1;
  const auto changed = [&](std::initializer_list<std::pair<std::size_t, int>> values) {
    Bytes bytes = turned;
    for (const auto& [at, value] : values) bytes[at] = static_cast<std::uint8_t>(value);
    return bytes;
  };
  const auto with = [&](const Bytes& inserted, std::size_t at) {
    Bytes bytes = turned;
    bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(at), inserted.begin(), inserted.end());
    return bytes;
  };
  const std::size_t after = kExif + 36;
  ASSERT_EQ(turned[kType], 3);
  ASSERT_EQ(turned[kValue + 1], 6);
  EXPECT_EQ(exif_orientation(turned), 6);
  EXPECT_EQ(exif_orientation(with({0xff, 0xff}, kExif)), 6);  // fill bytes
  EXPECT_EQ(exif_orientation(with({0xff, 0xe5, 0, 3, 9, 0, 7, 0xff, 0x01}, kExif)),
            6);                                                        // other bytes, a marker that stands alone
  EXPECT_EQ(exif_orientation(with({0xff, 0xe5, 0, 3, 9}, kExif)), 6);  // another segment
  EXPECT_EQ(exif_orientation(with({0xff, 0xff}, after)), 6);
  EXPECT_EQ(exif_orientation(changed({{kType, 4}, {kValue + 1, 0}, {kValue + 3, 6}})), 6);  // LONG
  EXPECT_EQ(exif_orientation(changed({{kType, 8}})), 6);                                    // signed SHORT
  EXPECT_EQ(exif_orientation(changed({{kType, 1}, {kValue, 6}, {kValue + 1, 0}})), 1);      // BYTE
  EXPECT_EQ(exif_orientation(changed({{kCount, 0}})), 1);
  EXPECT_EQ(exif_orientation(changed({{kValue + 1, 9}})), 1);
  EXPECT_EQ(exif_orientation(changed({{kExif + 10, 'X'}})), 1);  // neither II nor MM
}

}  // namespace
}  // namespace lockstep::data
