#include "lockstep/picture_tools/pack.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <random>

#include "image/encoders.h"
#include "lockstep/image/decode.h"
#include "picture_tools/pack_damage.h"
#include "support/scratch_folder.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;
using Bytes = std::vector<std::uint8_t>;

void write_file(const fs::path& path, const Bytes& bytes) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(bytes.data()), std::ssize(bytes));
}

Bytes read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

Bytes copy(std::span<const std::uint8_t> bytes) {
  return {bytes.begin(), bytes.end()};
}

class Pack : public ::testing::Test {
 protected:
  // Two classes (one has a name that is not ASCII) with a large JPEG, a small JPEG and a PNG.
  Pack() {
    write_file(folder_ / "cat" / "large.jpg", large_);
    write_file(folder_ / "cat" / "small.jpg", small_);
    write_file(folder_ / "k\u00e4se" / "b.png", png_);
  }
  PackReader packed(const PackOptions& options = {}) {
    const Result<PackSummary> summary = pack_folder(folder_, file_, options);
    EXPECT_TRUE(summary.ok()) << summary.status().message();
    const Result<PackReader> reader = PackReader::open(file_);
    EXPECT_TRUE(reader.ok()) << reader.status().message();
    return reader.value();
  }

  test::ScratchFolder scratch_;
  fs::path folder_ = scratch_.path() / "pictures";
  fs::path file_ = scratch_.path() / "p.pack";
  Bytes large_ = test::encode_jpeg(test::make_picture(200, 120, 1));
  Bytes small_ = test::encode_jpeg(test::make_picture(40, 30, 2));
  Bytes png_ = test::encode_png(test::make_picture(64, 90, 3));
};

TEST_F(Pack, HoldsTheFilesAsTheyAre) {
  const PackReader reader = packed();
  ASSERT_EQ(reader.size(), 3);
  EXPECT_EQ(reader.classes(), (std::vector<std::string>{"cat", "k\u00e4se"}));
  EXPECT_EQ(copy(reader.bytes(0)), large_);
  EXPECT_EQ(copy(reader.bytes(1)), small_);
  EXPECT_EQ(copy(reader.bytes(2)), png_);
  EXPECT_EQ(reader.label(1), 0);
  EXPECT_EQ(reader.label(2), 1);
  EXPECT_EQ(reader.name(2), "k\u00e4se/b.png");
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(reader.verify(i).ok());
  EXPECT_FALSE(fs::exists(file_.native() + ".tmp"));
}

TEST_F(Pack, MakesOnlyPicturesSmallerThatAreTooLarge) {
  const PackReader reader = packed({.shorter_side = 50, .quality = 90, .threads = 2});
  EXPECT_EQ(image_size(reader.bytes(0)).value(), (ImageSize{83, 50}));
  EXPECT_EQ(copy(reader.bytes(1)), small_);
  EXPECT_EQ(image_size(reader.bytes(2)).value(), (ImageSize{50, 70}));
  EXPECT_EQ(image_format(reader.bytes(2)), ImageFormat::kJpeg);
  // It is still the same picture, compared where resizing changes little.
  const Image before = decode_image(large_).value();
  const Image after = decode_image(reader.bytes(0)).value();
  double difference = 0;
  for (int y = 5; y < 45; ++y) {
    for (int x = 5; x < 78; ++x) {
      difference += std::abs(after.pixel(x, y)[1] - before.pixel(x * 200 / 83, y * 120 / 50)[1]);
    }
  }
  EXPECT_LT(difference / (40 * 73), 25);
}

// Else a loader that turns pictures upright would turn those that were small enough alone.
TEST_F(Pack, KeepsTheOrientationOfPicturesThatAreMadeSmaller) {
  for (int orientation = 1; orientation <= 8; ++orientation) {
    write_file(folder_ / "cat" / "large.jpg", test::with_orientation(large_, orientation));
    const PackReader reader = packed({.shorter_side = 50});
    EXPECT_EQ(image_size(reader.bytes(0)).value(), (ImageSize{83, 50}));
    const DecodeOptions upright{.apply_orientation = true};
    const Image before = decode_image(test::with_orientation(copy(reader.bytes(0)), orientation), upright).value();
    EXPECT_EQ(image_size(reader.bytes(0), upright).value(), (orientation < 5 ? ImageSize{83, 50} : ImageSize{50, 83}));
    const Image after = decode_image(reader.bytes(0), upright).value();
    ASSERT_EQ(after.width(), before.width());
    for (int y = 0; y < after.height(); ++y) {
      for (int x = 0; x < after.width(); ++x) ASSERT_EQ(after.pixel(x, y)[0], before.pixel(x, y)[0]) << orientation;
    }
  }
}

TEST_F(Pack, CorruptPicturesAreAnErrorOrLeftOut) {
  write_file(folder_ / "cat" / "broken.jpg", Bytes{'n', 'o'});
  write_file(folder_ / "cat" / "empty.jpg", {});
  const Result<PackSummary> failed = pack_folder(folder_, file_);
  EXPECT_NE(failed.status().message().find("broken.jpg"), std::string::npos) << failed.status().message();
  EXPECT_FALSE(fs::exists(file_));
  EXPECT_FALSE(fs::exists(file_.native() + ".tmp"));
  const Result<PackSummary> skipped = pack_folder(folder_, file_, {.skip_corrupt = true});
  ASSERT_TRUE(skipped.ok());
  EXPECT_EQ(skipped.value().pictures, 3);
  EXPECT_EQ(skipped.value().left_out.size(), 2U);
  EXPECT_EQ(PackReader::open(file_).value().size(), 3);
}

TEST_F(Pack, IsNotReplacedByOneWithoutPictures) {
  packed();
  fs::remove_all(folder_);
  write_file(folder_ / "cat" / "broken.jpg", Bytes{'n', 'o'});
  const Result<PackSummary> skipped = pack_folder(folder_, file_, {.skip_corrupt = true});
  EXPECT_NE(skipped.status().message().find("none of 1 pictures can be decoded; the first is "), std::string::npos)
      << skipped.status().message();
  EXPECT_EQ(PackReader::open(file_).value().size(), 3);
}

TEST_F(Pack, OfAnotherVersionSaysSo) {
  packed();
  Bytes bytes = read_file(file_);
  bytes[8] = 2;
  test::fix_pack_checksums(bytes);
  write_file(file_, bytes);
  const Result<PackReader> reader = PackReader::open(file_);
  EXPECT_EQ(reader.status().code(), ErrorCode::kUnsupported);
  EXPECT_NE(reader.status().message().find("version 2 of the format"), std::string::npos) << reader.status().message();
}

// Their headers are whole, but not their pixels.
TEST_F(Pack, LeavesOutPicturesWhosePixelsCannotBeDecoded) {
  write_file(folder_ / "cat" / "cut.jpg", Bytes(large_.begin(), large_.begin() + 900));
  write_file(folder_ / "cat" / "cut.png",
             Bytes(png_.begin(), png_.begin() + static_cast<std::ptrdiff_t>(png_.size() / 2)));
  for (const int shorter_side : {0, 50, 5000}) {
    const Result<PackSummary> skipped =
        pack_folder(folder_, file_, {.shorter_side = shorter_side, .skip_corrupt = true});
    ASSERT_TRUE(skipped.ok()) << skipped.status().message();
    EXPECT_EQ(skipped.value().pictures, 3);
    EXPECT_EQ(skipped.value().left_out.size(), 2U);
    EXPECT_EQ(skipped.value().resized, shorter_side == 50 ? 2 : 0);
  }
  EXPECT_EQ(packed({.skip_corrupt = true}).size(), 3);
  EXPECT_EQ(copy(packed({.skip_corrupt = true}).bytes(0)), large_);
}

TEST_F(Pack, SaysWhatIsWrong) {
  EXPECT_EQ(PackReader::open(scratch_.path() / "nowhere").status().code(), ErrorCode::kNotFound);
  EXPECT_EQ(PackReader::open(scratch_.path()).status().code(), ErrorCode::kCorrupt);
  const fs::path fifo = scratch_.path() / "fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_NE(PackReader::open(fifo).status().message().find("found a FIFO"), std::string::npos);
  EXPECT_FALSE(pack_folder(folder_, fifo).ok());
  EXPECT_FALSE(pack_folder(folder_, file_, {.quality = 101}).ok());
  EXPECT_FALSE(pack_folder(folder_, scratch_.path() / "no" / "such" / "folder.pack").ok());
  write_file(file_, Bytes(10));
  EXPECT_NE(PackReader::open(file_).status().message().find("a header of 64 bytes, found 10"), std::string::npos);
  write_file(file_, Bytes(1000));
  EXPECT_NE(PackReader::open(file_).status().message().find("which begins with \"LOCKPACK\""), std::string::npos);
  Result<PackWriter> writer = PackWriter::create(file_, {"one"});
  EXPECT_FALSE(writer.value().add(large_, 1, "name").ok());
  EXPECT_FALSE(writer.value().add({}, 0, "name").ok());
}

TEST_F(Pack, AnEmptyOneIsAPack) {
  ASSERT_TRUE(PackWriter::create(file_, {}).value().finish().ok());
  EXPECT_EQ(PackReader::open(file_).value().size(), 0);
}

// open() notices each changed byte of header, index and names; verify() each one of a picture.
TEST_F(Pack, EveryChangedByteIsNoticed) {
  packed();
  const Bytes good = read_file(file_);
  const fs::path bad_file = scratch_.path() / "bad.pack";
  for (std::size_t at = 0; at < good.size(); at += at < 64 ? 1 : 97) {
    Bytes bad = good;
    bad[at] ^= 0x10;
    write_file(bad_file, bad);
    const Result<PackReader> reader = PackReader::open(bad_file);
    if (!reader.ok()) continue;
    bool noticed = false;
    for (std::int64_t i = 0; i < reader.value().size(); ++i) noticed = noticed || !reader.value().verify(i).ok();
    EXPECT_TRUE(noticed) << "byte " << at;
  }
}

// Random damage with correct checksums, as from an attacker: an error, or a pack whose pictures can all be read.
TEST_F(Pack, HostileFilesCannotMakeItReadOutside) {
  packed();
  const Bytes good = read_file(file_);
  const fs::path bad_file = scratch_.path() / "bad.pack";
  std::mt19937 random(7);
  int opened = 0;
  for (int trial = 0; trial < 600; ++trial) {
    Bytes bad = good;
    const bool cut = trial % 5 == 0;
    if (cut) bad.resize(random() % bad.size());
    const std::size_t index_begin = good.size() > 400 ? good.size() - 160 : 64;
    for (unsigned changes = random() % 6; changes > 0 && !bad.empty(); --changes) {
      const std::size_t at = random() % 2 == 0 ? random() % 60 : index_begin + random() % (good.size() - index_begin);
      if (at < bad.size()) bad[at] = static_cast<std::uint8_t>(random() % 3 == 0 ? 0xff : random());
    }
    test::fix_pack_checksums(bad);
    write_file(bad_file, bad);
    const Result<PackReader> reader = PackReader::open(bad_file);
    if (!reader.ok()) {
      EXPECT_FALSE(reader.status().message().empty());
      continue;
    }
    ++opened;
    std::uint64_t sum = 0;
    for (std::int64_t i = 0; i < reader.value().size(); ++i) {
      for (const std::uint8_t byte : reader.value().bytes(i)) sum += byte;
      sum += reader.value().name(i).size();
      EXPECT_LT(reader.value().label(i), std::ssize(reader.value().classes()));
    }
    EXPECT_GE(sum, 0U);
  }
  EXPECT_GT(opened, 20);  // with wrong checksums none would have opened
}

}  // namespace
}  // namespace lockstep::data
