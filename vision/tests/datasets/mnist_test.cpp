#include "lockstep/datasets/mnist.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <zlib.h>

#include <limits>

#include "datasets/idx.h"
#include "image/damage.h"
#include "lockstep/data/errors.h"
#include "support/effort.h"
#include "support/scratch_folder.h"

namespace lockstep::data {
namespace {

std::string word(std::uint32_t value) {
  return {static_cast<char>(value >> 24), static_cast<char>(value >> 16), static_cast<char>(value >> 8),
          static_cast<char>(value)};
}

std::string image_file(std::uint32_t count, std::uint32_t rows = 28, std::uint32_t columns = 28) {
  std::string bytes = word(0x803) + word(count) + word(rows) + word(columns);
  for (std::uint32_t i = 0; i < count * rows * columns; ++i) bytes += static_cast<char>(i * 7 + i / 784);
  return bytes;
}

std::string label_file(std::uint32_t count) {
  std::string bytes = word(0x801) + word(count);
  for (std::uint32_t i = 0; i < count; ++i) bytes += static_cast<char>(i % 10);
  return bytes;
}

std::string gzip(const std::string& bytes) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 9, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string packed(deflateBound(&stream, bytes.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

class MnistFiles : public testing::Test {
 protected:
  void write(const std::string& images, const std::string& labels) {
    folder_.write("train-images-idx3-ubyte", images);
    folder_.write("train-labels-idx1-ubyte", labels);
  }
  // The error that the dataset throws for the folder; empty without one.
  std::string complaint() {
    try {
      Mnist(folder_.path(), /*train=*/true);
    } catch (const DataError& error) {
      return error.what();
    }
    return "";
  }
  void expect_complaint(const std::vector<std::string>& parts) {
    const std::string message = complaint();
    for (const std::string& part : parts)
      EXPECT_NE(message.find(part), std::string::npos) << part << " in: " << message;
  }

  test::ScratchFolder folder_;
};

TEST_F(MnistFiles, ReadsPlainFilesAndNormalises) {
  write(image_file(5), label_file(5));
  const Mnist dataset(folder_.path(), /*train=*/true);
  ASSERT_EQ(dataset.size(), 5);
  const Example one = dataset.get(3);
  EXPECT_EQ(one.data.sizes(), (std::vector<std::int64_t>{1, 28, 28}));
  EXPECT_EQ(one.target.item<std::int64_t>(), 3);
  const torch::Tensor expected = (dataset.images()[3].to(torch::kFloat) / 255.0F - 0.1307F) / 0.3081F;
  EXPECT_TRUE(torch::equal(one.data[0], expected));

  const std::vector<std::int64_t> indices = {4, 0, 3};
  const Example batch = dataset.get_batch(indices);
  EXPECT_EQ(batch.data.sizes(), (std::vector<std::int64_t>{3, 1, 28, 28}));
  EXPECT_EQ(batch.target.scalar_type(), torch::kLong);
  EXPECT_TRUE(torch::equal(batch.data[2], one.data));
  EXPECT_TRUE(torch::equal(batch.data[0], dataset.get(4).data));
  EXPECT_THROW(dataset.get(5), SampleError);
}

TEST_F(MnistFiles, LeavesPixelsInZeroToOneWhenAsked) {
  write(image_file(1), label_file(1));
  const Mnist dataset(folder_.path(), /*train=*/true, {.normalization = std::nullopt});
  EXPECT_TRUE(torch::equal(dataset.get(0).data[0], dataset.images()[0].to(torch::kFloat) / 255.0F));
}

TEST_F(MnistFiles, NormalisesWithAnyNumberButZero) {
  write(image_file(1), label_file(1));
  const Mnist dataset(folder_.path(), /*train=*/true, {.normalization = Normalization{0.5F, -0.25F}});
  EXPECT_TRUE(torch::equal(dataset.get(0).data[0], (dataset.images()[0].to(torch::kFloat) / 255.0F - 0.5F) / -0.25F));
  for (const float deviation : {0.0F, std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_THROW(Mnist(folder_.path(), /*train=*/true, {.normalization = Normalization{0.5F, deviation}}), DataError);
  }
}

TEST_F(MnistFiles, FindsGzipFilesWhereTorchvisionPutsThem) {
  folder_.write("FashionMNIST/raw/t10k-images-idx3-ubyte.gz", gzip(image_file(20)));
  folder_.write("FashionMNIST/raw/t10k-labels-idx1-ubyte", gzip(label_file(20)));  // by content, not by name
  EXPECT_EQ(Mnist(folder_.path(), /*train=*/false).size(), 20);
  folder_.write("MNIST/raw/t10k-images-idx3-ubyte.gz", gzip(image_file(20)));
  EXPECT_THROW(Mnist(folder_.path(), /*train=*/false), DataError);  // two datasets
}

TEST_F(MnistFiles, SeveralGzipMembersAreOneFile) {
  const std::string images = image_file(3);
  write(gzip(images.substr(0, 1000)) + gzip(images.substr(1000)), label_file(3));
  EXPECT_EQ(complaint(), "");
}

TEST_F(MnistFiles, MissingFilesListTheNamesTried) {
  expect_complaint({"train-images-idx3-ubyte,", "train-images-idx3-ubyte.gz", "FashionMNIST/raw", folder_.path()});
}

TEST_F(MnistFiles, SaysWhatIsWrongWithTheHeader) {
  write(label_file(3), label_file(3));
  expect_complaint({"train-images-idx3-ubyte", "wrong magic number at byte 0", "00 00 08 03", "00 00 08 01"});
  write(image_file(3, 28, 29), label_file(3));
  expect_complaint({"wrong dimension 2 at byte 12", "expected 28, found 29"});
  for (const std::size_t length : {0, 2}) {
    write(std::string(length, '\0'), label_file(3));
    expect_complaint({"too short", "expected 4 bytes", "found " + std::to_string(length)});
  }
  write(image_file(3), label_file(4));
  expect_complaint({"3 images", "4 labels"});
  write(image_file(1), word(0x801) + word(1) + '\x0a');
  expect_complaint({"train-labels-idx1-ubyte", "label 0 at byte 8", "found 10"});
}

TEST_F(MnistFiles, SaysWhereAFileEndsTooEarlyOrTooLate) {
  const std::string images = image_file(3);
  write(images.substr(0, images.size() - 1), label_file(3));
  expect_complaint({"too short", "expected 2352 bytes of values from byte 16 on, found 2351"});
  write(images + "x", label_file(3));
  expect_complaint({"additional bytes", "byte 2368"});
  write(gzip(images + "x"), label_file(3));
  expect_complaint({"additional bytes", "byte 2368"});
  write(gzip(images.substr(0, images.size() - 1)), label_file(3));
  expect_complaint({"expected 2352 bytes of values from byte 16 on, found 2351"});
}

TEST_F(MnistFiles, EveryDamageOfGzipDataIsNoticed) {
  const std::string packed = gzip(image_file(3));
  write(packed, label_file(3));
  const torch::Tensor images = Mnist(folder_.path(), /*train=*/true).images();
  for (std::size_t length = 2; length < packed.size(); ++length) {
    folder_.write("train-images-idx3-ubyte", packed.substr(0, length));
    expect_complaint({"train-images-idx3-ubyte: damaged gzip file"});
  }
  write(packed + "garbage", label_file(3));
  expect_complaint({"additional bytes after the gzip data"});
  for (std::size_t i = 10; i < packed.size(); ++i) {
    std::string flipped = packed;
    flipped[i] = static_cast<char>(flipped[i] ^ 0x10);
    folder_.write("train-images-idx3-ubyte", flipped);
    try {
      // Some bits at the end of a deflate block have no meaning.
      EXPECT_TRUE(torch::equal(Mnist(folder_.path(), /*train=*/true).images(), images)) << "byte " << i;
    } catch (const DataError&) {
    }
  }
}

TEST_F(MnistFiles, HeadersCannotMakeItTakeMuchMemory) {
  write(word(0x803) + word(0xffffffff) + word(28) + word(28) + "abc", label_file(3));
  expect_complaint({"promises 3367254359280 values", "at most 19 bytes"});
  write(gzip(word(0x803) + word(0x7fffffff) + word(28) + word(28) + "abc"), label_file(3));
  expect_complaint({"promises 1683627179"});
  const test::ScratchFolder other;
  other.write("any", word(0x803) + word(0xffffffff) + word(0xffffffff) + word(0xffffffff));
  EXPECT_THROW(read_idx(other.path() / "any", std::array<std::int64_t, 3>{-1, -1, -1}), DataError);
  // Also when a dimension of 0 makes the product 0.
  other.write("any", word(0x804) + word(0) + word(0xffffffff) + word(0xffffffff) + word(0xffffffff));
  EXPECT_THROW(read_idx(other.path() / "any", std::array<std::int64_t, 4>{-1, -1, -1, -1}), DataError);
  other.write("any", word(0x804) + word(0xffffffff) + word(0xffffffff) + word(0xffffffff) + word(0));
  EXPECT_THROW(read_idx(other.path() / "any", std::array<std::int64_t, 4>{-1, -1, -1, -1}), DataError);
  // More data than the header says: reading stops one byte after it.
  write(gzip(image_file(1) + std::string(64 << 20, '\0')), label_file(1));
  expect_complaint({"additional bytes", "byte 800"});
}

TEST_F(MnistFiles, AFolderInPlaceOfAFileIsAnError) {
  folder_.write("train-images-idx3-ubyte/x", "");
  folder_.write("train-labels-idx1-ubyte", label_file(3));
  expect_complaint({"expected a regular file"});
}

TEST_F(MnistFiles, AFifoInPlaceOfAFileIsNotWaitedFor) {
  ASSERT_EQ(::mkfifo(folder_.path("train-images-idx3-ubyte").c_str(), 0600), 0);
  folder_.write("train-labels-idx1-ubyte", label_file(3));
  expect_complaint({"train-images-idx3-ubyte: expected a regular file, found a FIFO"});
}

// Damage at any place, packed or not, gives a tensor or a DataError.
TEST_F(MnistFiles, DamagedFilesAreTensorsOrErrors) {
  constexpr int kTrials = test::repetitions(1500);
  std::mt19937 random(1);
  int errors = 0;
  for (int trial = 0; trial < kTrials; ++trial) {
    const std::string original = trial % 2 == 0 ? image_file(2) : gzip(image_file(2));
    const auto bytes = test::damaged({original.begin(), original.end()}, random);
    folder_.write("any", {bytes.begin(), bytes.end()});
    try {
      (void)read_idx(folder_.path() / "any", std::array<std::int64_t, 3>{-1, -1, -1});
    } catch (const DataError&) {
      ++errors;
    }
  }
  EXPECT_GT(errors, kTrials / 2);
}

}  // namespace
}  // namespace lockstep::data
