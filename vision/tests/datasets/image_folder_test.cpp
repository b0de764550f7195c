#include "lockstep/datasets/image_folder.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>
#include <map>
#include <numbers>
#include <set>

#include "image/picture_files.h"
#include "lockstep/data/data_loader.h"
#include "lockstep/data/errors.h"
#include "lockstep/data/views.h"
#include "lockstep/datasets/cifar.h"
#include "lockstep/datasets/mix.h"
#include "support/scratch_folder.h"

namespace lockstep::data {
namespace {

std::string jpeg(std::uint32_t seed) {
  return test::text(test::encode_jpeg(test::make_picture(48, 36, seed)));
}

// 3 classes of 4 pictures.
void fill_classes(const test::ScratchFolder& folder) {
  for (std::uint32_t i = 0; i < 12; ++i)
    folder.write("c" + std::to_string(i / 4) + "/" + std::to_string(i) + ".jpg", jpeg(i));
}

Compose random_crops() {
  return Compose({RandomResizedCrop{24}, RandomHorizontalFlip{}, RandomRotation{30}, ToTensor{}});
}

TEST(ImageFolder, BatchesAreTheSamplesInPlace) {
  const test::ScratchFolder folder;
  fill_classes(folder);
  const ImageFolder dataset(folder.path(), random_crops());
  ASSERT_EQ(dataset.size(), 12);
  const std::vector<std::int64_t> indices{7, 0, 11};
  const SampleContext context{.seed = 3, .epoch = 2};
  const Example batch = dataset.get_batch(indices, context);
  EXPECT_EQ(batch.data.sizes(), (std::vector<std::int64_t>{3, 3, 24, 24}));
  EXPECT_TRUE(torch::equal(batch.target, torch::tensor({1, 0, 2})));
  for (std::int64_t i = 0; i < 3; ++i) {
    const Example one = dataset.get_batch({&indices[static_cast<std::size_t>(i)], 1}, context);
    EXPECT_TRUE(torch::equal(one.data[0], batch.data[i]));
  }
  EXPECT_FALSE(torch::equal(dataset.get_batch(indices, {.seed = 3, .epoch = 3}).data, batch.data));
  EXPECT_EQ(dataset.get(7).target.item<std::int64_t>(), 1);
}

TEST(ImageFolder, AnyNumberOfWorkersAndRanksSeesTheSamePixels) {
  const test::ScratchFolder folder;
  fill_classes(folder);
  const auto dataset = std::make_shared<const ImageFolder>(folder.path(), random_crops());
  std::map<std::int64_t, torch::Tensor> sums;
  const auto collect = [&](int workers, std::int64_t rank, std::int64_t world) {
    DataLoader loader(
        dataset,
        {.batch_size = 2, .shuffle = true, .seed = 9, .num_workers = workers, .rank = rank, .world_size = world});
    std::vector<double> values;
    for (auto& batch : loader) {
      for (std::int64_t i = 0; i < batch.data.size(0); ++i) values.push_back(batch.data[i].sum().item<double>());
    }
    return values;
  };
  std::vector<double> alone = collect(0, 0, 1);
  EXPECT_EQ(collect(3, 0, 1), alone);
  std::vector<double> shared = collect(1, 0, 2);
  const std::vector<double> other = collect(2, 1, 2);
  shared.insert(shared.end(), other.begin(), other.end());
  std::sort(shared.begin(), shared.end());
  std::sort(alone.begin(), alone.end());
  EXPECT_EQ(shared, alone);
}

TEST(ImageFolder, TakesALoaderAndTargetsOfItsOwn) {
  const test::ScratchFolder folder;
  for (const char* name : {"a/1.raw", "a/2.raw", "b/3.raw"}) folder.write(name, "x");
  folder.write("b/4.jpg", jpeg(4));
  ImageFolderOptions options{.index = {.extensions = {".raw"}},
                             .loader =
                                 [](const std::string& path) {
                                   if (path.ends_with("2.raw")) throw DataError(ErrorCode::kCorrupt, "no pixels in it");
                                   return test::make_picture(6, 4, 7);
                                 },
                             .target_transform = [](std::int64_t label) { return 10 - label; }};
  const ImageFolder raw(folder.path(), Compose(), options);
  ASSERT_EQ(raw.size(), 3);
  const Example sample = raw.get(2);
  EXPECT_EQ(sample.target.item<std::int64_t>(), 9);
  const torch::Tensor rows = sample.data.permute({1, 2, 0}).contiguous();
  const std::vector<std::uint8_t> expected = packed_bytes(test::make_picture(6, 4, 7));
  EXPECT_EQ(std::vector<std::uint8_t>(rows.const_data_ptr<std::uint8_t>(), rows.const_data_ptr<std::uint8_t>() + 72),
            expected);
  try {
    raw.get(1);
    FAIL();
  } catch (const SampleError& error) {
    EXPECT_NE(std::string(error.what()).find("a/2.raw: no pixels in it"), std::string::npos) << error.what();
  }
  options.image.on_corrupt = OnCorrupt::kReplace;
  EXPECT_THROW(ImageFolder(folder.path(), Compose(), options).get(1), SamplesToReplace);
}

// A record: a label (two for CIFAR-100), then the red, green and blue plane.
std::string cifar_records(int label_bytes, std::initializer_list<int> labels) {
  std::string bytes;
  for (const int label : labels) {
    for (int i = 0; i < label_bytes; ++i) bytes.push_back(static_cast<char>(i == 0 && label_bytes == 2 ? 1 : label));
    for (int i = 0; i < 3072; ++i) bytes.push_back(static_cast<char>(label + i / 1024 * 50 + i % 7));
  }
  return bytes;
}

TEST(Cifar, ReadsTheBinaryFiles) {
  const test::ScratchFolder folder;
  for (int i = 1; i <= 5; ++i) {
    folder.write("cifar-10-batches-bin/data_batch_" + std::to_string(i) + ".bin", cifar_records(1, {i, 9 - i}));
  }
  folder.write("cifar-10-batches-bin/batches.meta.txt", "airplane\nautomobile\n\n");
  const Cifar10 train(folder.path(), /*train=*/true, Compose());
  EXPECT_EQ(train.size(), 10);
  EXPECT_EQ(train.labels(), (std::vector<std::int64_t>{1, 8, 2, 7, 3, 6, 4, 5, 5, 4}));
  EXPECT_EQ(train.classes(), (std::vector<std::string>{"airplane", "automobile"}));
  const Example sample = train.get(3);
  EXPECT_EQ(sample.target.item<std::int64_t>(), 7);
  const torch::Tensor expected =
      7 + torch::arange(3).reshape({3, 1}) * 50 + torch::arange(3 * 1024).reshape({3, 1024}) % 7;
  EXPECT_TRUE(torch::equal(sample.data.reshape({3, 1024}), expected.to(torch::kByte)));
  folder.write("train.bin", cifar_records(2, {42, 99}));
  EXPECT_EQ(Cifar100(folder.path()).labels(), (std::vector<std::int64_t>{42, 99}));
  EXPECT_EQ(Cifar100(folder.path(), true, Compose({ToTensor{}}), CifarLabels::kCoarse).labels(),
            (std::vector<std::int64_t>{1, 1}));
}

TEST(Cifar, ErrorsSayWhatIsWrong) {
  const test::ScratchFolder folder;
  const auto message = [&] {
    try {
      const Cifar10 test(folder.path(), /*train=*/false);
    } catch (const DataError& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  folder.write("cifar-10-batches-py/test_batch", "x");
  EXPECT_NE(message().find("found cifar-10-batches-py with Python's files"), std::string::npos) << message();
  folder.write("test_batch.bin", cifar_records(1, {3, 4}).substr(0, 4000));
  EXPECT_NE(message().find("picture 1 at byte 3073: expected 3073 bytes, found 927"), std::string::npos) << message();
  folder.write("test_batch.bin", "");
  EXPECT_NE(message().find("picture 0 at byte 0: expected 3073 bytes, found 0"), std::string::npos) << message();
  folder.write("test_batch.bin", cifar_records(1, {3, 10}));
  EXPECT_NE(message().find("label of picture 1 at byte 3073: expected 0 to 9, found 10"), std::string::npos)
      << message();
}

TEST(ImageFolder, WithoutToTensorSamplesAreBytes) {
  const test::ScratchFolder folder;
  fill_classes(folder);
  const ImageFolder dataset(folder.path(), Compose({CenterCrop{20}}));
  const Example sample = dataset.get(0);
  EXPECT_EQ(sample.data.scalar_type(), torch::kByte);
  EXPECT_EQ(sample.data.sizes(), (std::vector<std::int64_t>{3, 20, 20}));
}

TEST(ImageFolder, CorruptFilesRaiseAreReplacedOrSkipped) {
  const test::ScratchFolder folder;
  fill_classes(folder);
  folder.write("c0/2.jpg", jpeg(2).substr(0, 400));
  folder.write("c0/3.jpg", "");
  const std::vector<std::int64_t> indices{1, 2, 3, 5};
  const auto make = [&](OnCorrupt policy) {
    return ImageFolder(folder.path(), random_crops(), {.image = {.on_corrupt = policy}});
  };
  try {
    make(OnCorrupt::kRaise).get_batch(indices);
    ADD_FAILURE() << "expected an error";
  } catch (const SampleError& error) {
    EXPECT_EQ(error.index(), 2);
    EXPECT_NE(std::string(error.what()).find("c0/2.jpg"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("set on_corrupt to replace or skip"), std::string::npos) << error.what();
  }
  const auto replacing = std::make_shared<const ImageFolder>(make(OnCorrupt::kReplace));
  const auto four_of = [](std::shared_ptr<const ImageFolder> pictures) {
    DataLoader loader(std::move(pictures), {.batch_size = 4, .rank = 0, .world_size = 1});
    return Example(*loader.begin());
  };
  const Example full = four_of(replacing);
  EXPECT_TRUE(torch::equal(full.target, torch::tensor({0, 0, 1, 1})));  // 4.jpg belongs to the next class
  EXPECT_TRUE(torch::equal(four_of(std::make_shared<const ImageFolder>(make(OnCorrupt::kReplace))).data, full.data));
  ASSERT_EQ(replacing->corrupt_files().size(), 2U);
  EXPECT_EQ(replacing->corrupt_samples(), 3);  // 2 is replaced by 3, which is corrupt too
  EXPECT_NE(replacing->corrupt_files()[0].name.find("2.jpg"), std::string::npos);
  try {  // without a loader
    replacing->get_batch(indices);
    ADD_FAILURE() << "expected an error";
  } catch (const SamplesToReplace& error) {
    EXPECT_EQ(error.indices(), (std::vector<std::int64_t>{2, 3}));
    EXPECT_NE(std::string(error.what()).find("a loader takes another sample"), std::string::npos) << error.what();
  }
  const ImageFolder skipping = make(OnCorrupt::kSkip);
  EXPECT_TRUE(torch::equal(skipping.get_batch(indices).target, torch::tensor({0, 1})));
  EXPECT_EQ(skipping.corrupt_samples(), 2);
  const std::vector<std::int64_t> all_bad{2, 3};
  EXPECT_THROW(skipping.get_batch(all_bad), SkippedSample);  // for views; a loader goes on
}

// In views that make samples or parts of batches by themselves, and where a program makes the batches.
TEST(ImageFolder, CorruptFilesAreSkippedWhoeverMakesTheBatch) {
  const test::ScratchFolder folder;
  fill_classes(folder);
  folder.write("c0/2.jpg", jpeg(2).substr(0, 400));
  folder.write("c0/3.jpg", "");
  const auto skipping = std::make_shared<const ImageFolder>(
      folder.path(), random_crops(), ImageFolderOptions{.image = {.on_corrupt = OnCorrupt::kSkip}});
  const auto targets = [](const Dataset& dataset, const std::vector<std::int64_t>& indices) {
    const torch::Tensor target = dataset.get_batch(indices).target.contiguous();
    return std::vector<std::int64_t>(target.const_data_ptr<std::int64_t>(),
                                     target.const_data_ptr<std::int64_t>() + target.numel());
  };
  const auto mapped = map_dataset(skipping, [](Example sample) { return sample; });
  EXPECT_EQ(targets(mapped, {1, 2, 3, 5}), (std::vector<std::int64_t>{0, 1}));
  EXPECT_THROW(targets(mapped, {2, 3}), SampleError);
  const ConcatDataset both({skipping, Subset(skipping, {9, 3, 5})});
  EXPECT_EQ(targets(both, {12, 2, 1, 14}), (std::vector<std::int64_t>{2, 0, 1}));
  EXPECT_EQ(targets(both, {2, 3, 13, 14}), (std::vector<std::int64_t>{1}));
  // The samples that are left keep their order: also of views in views, and where a view leaves out by itself.
  EXPECT_EQ(targets(both, {2, 12, 4, 13, 11, 0, 14}), (std::vector<std::int64_t>{2, 1, 2, 0, 1}));
  const ConcatDataset deep({both, skipping});
  EXPECT_EQ(targets(deep, {17, 2, 12, 3, 4, 13, 26, 0}), (std::vector<std::int64_t>{2, 1, 2, 0}));
  const ConcatDataset of_mapped({mapped, skipping});
  EXPECT_EQ(targets(of_mapped, {3, 20, 4, 14, 0}), (std::vector<std::int64_t>{2, 1, 0}));
  EXPECT_EQ(skipping->corrupt_samples(), 16);  // each once
  EXPECT_THROW(targets(both, {2, 13}), SampleError);
  const auto stack_all = [](std::vector<Example> samples) { return stack(samples); };
  DataLoader loader(skipping, {.batch_size = 4, .rank = 0, .world_size = 1, .collate = stack_all});
  std::vector<std::int64_t> sizes;
  for (auto& batch : loader) sizes.push_back(batch.data.size(0));
  EXPECT_EQ(sizes, (std::vector<std::int64_t>{2, 4, 4}));
}

// What the loader's dataset does not have may belong to another part of a split, such as the test samples.
TEST(ImageFolder, AReplacementComesFromTheDatasetOfTheLoader) {
  const test::ScratchFolder folder;
  fill_classes(folder);
  folder.write("c0/2.jpg", jpeg(2).substr(0, 400));
  folder.write("c0/3.jpg", "");
  const auto pictures =
      std::make_shared<const ImageFolder>(folder.path(), Compose({CenterCrop{20}, ToTensor{}}),
                                          ImageFolderOptions{.image = {.on_corrupt = OnCorrupt::kReplace}});
  const auto same = [](Example sample) { return sample; };
  const Subset subset(pictures, {0, 2, 3, 8});  // 2 and 3 are corrupt: 8 takes their places
  const std::vector<std::int64_t> expected{0, 8, 8, 8};
  const std::vector<std::pair<SharedDataset, std::vector<std::int64_t>>> views{
      {subset, expected},
      {map_dataset(subset, same), expected},
      {Subset(map_dataset(pictures, same), {0, 2, 3, 8}), expected},
      {Subset(ConcatDataset({Subset(pictures, {5, 6}), pictures}), {2, 4, 5, 10}), expected},
      {ConcatDataset({Subset(pictures, {0, 2}), Subset(pictures, {3, 8})}), expected},
      {ConcatDataset({Subset(pictures, {8, 2}), Subset(pictures, {0, 3})}), {8, 0, 0, 8}},
      {repeat(Subset(pictures, {3, 0}), 2), {0, 0, 0, 0}}};
  for (std::size_t view = 0; view < views.size(); ++view) {
    const auto& [dataset, samples] = views[view];
    std::vector<torch::Tensor> rows;
    for (const std::int64_t sample : samples) rows.push_back(pictures->get(sample).data);
    const auto loaded = [&](std::int64_t batch_size, int workers, std::int64_t rank, std::int64_t world, bool by_hand) {
      const auto shared = std::shared_ptr<const Dataset>(std::shared_ptr<const void>(), &*views[view].first);
      DataLoaderOptions options{.batch_size = batch_size, .num_workers = workers, .rank = rank, .world_size = world};
      if (by_hand) options.collate = [](std::vector<Example> of_batch) { return stack(of_batch); };
      DataLoader loader(shared, options);
      std::vector<torch::Tensor> batches;
      for (auto& batch : loader) batches.push_back(batch.data.clone());
      return torch::cat(batches);
    };
    const torch::Tensor all = torch::stack(rows);
    for (const std::int64_t batch_size : {1, 3, 4}) {
      EXPECT_TRUE(torch::equal(loaded(batch_size, 0, 0, 1, false), all)) << view << " " << batch_size;
      EXPECT_TRUE(torch::equal(loaded(batch_size, 2, 0, 1, false), all)) << view << " " << batch_size;
      EXPECT_TRUE(torch::equal(loaded(batch_size, 0, 0, 1, true), all)) << view << " " << batch_size;
    }
    for (const std::int64_t rank : {0, 1}) {
      EXPECT_TRUE(torch::equal(loaded(2, 0, rank, 2, false), all.slice(0, rank, 4, 2))) << view << " " << rank;
    }
    EXPECT_THROW(dataset->get_batch(std::vector<std::int64_t>{0, 1, 2, 3}), SamplesToReplace) << view;
  }
}

// A sampler may give a part of the dataset.
TEST(ImageFolder, AReplacementIsASampleThatTheEpochHas) {
  const test::ScratchFolder folder;
  fill_classes(folder);
  folder.write("c0/2.jpg", jpeg(2).substr(0, 400));
  folder.write("c0/3.jpg", "");
  struct Some : Sampler {
    std::int64_t dataset_size() const override { return 12; }
    std::int64_t size() const override { return 4; }
    torch::Tensor sequence(std::uint64_t /*seed*/, std::int64_t /*epoch*/) const override {
      return torch::tensor({8, 2, 3, 0}, torch::kLong);
    }
    std::uint64_t fingerprint() const override { return 7; }
  };
  struct SomeBatches : BatchSampler {
    std::int64_t dataset_size() const override { return 12; }
    std::int64_t size() const override { return 2; }
    std::vector<std::vector<std::int64_t>> batches(std::uint64_t /*seed*/, std::int64_t /*epoch*/) const override {
      return {{8, 2}, {3, 0}};
    }
    std::uint64_t fingerprint() const override { return 8; }
  };
  for (const OnCorrupt policy : {OnCorrupt::kReplace, OnCorrupt::kSkip}) {
    const auto pictures = std::make_shared<const ImageFolder>(folder.path(), random_crops(),
                                                              ImageFolderOptions{.image = {.on_corrupt = policy}});
    DataLoaderOptions options{.batch_size = 1, .num_workers = 2, .rank = 0, .world_size = 1};
    options.sampler = std::make_shared<Some>();
    const auto labels = [&] {
      std::vector<std::int64_t> all;
      DataLoader loader(pictures, options);
      for (auto& batch : loader) {
        for (std::int64_t i = 0; i < batch.target.size(0); ++i) all.push_back(batch.target[i].item<std::int64_t>());
      }
      return all;
    };
    EXPECT_EQ(labels(), (std::vector<std::int64_t>{2, 2, 2, 0}));
    options.sampler.reset();
    options.batch_sampler = std::make_shared<SomeBatches>();
    EXPECT_EQ(labels(),
              policy == OnCorrupt::kSkip ? (std::vector<std::int64_t>{2, 0}) : (std::vector<std::int64_t>{2, 2, 2, 0}));
  }
}

// Also where the loader is told to leave out whole batches, and where nothing is good.
TEST(ImageFolder, APictureWithoutAReplacementIsAnError) {
  const test::ScratchFolder folder;
  fill_classes(folder);
  folder.write("c0/2.jpg", "");
  folder.write("c0/3.jpg", "");
  const auto pictures = std::make_shared<const ImageFolder>(
      folder.path(), random_crops(), ImageFolderOptions{.image = {.on_corrupt = OnCorrupt::kReplace}});
  for (const bool exact : {false, true}) {
    DataLoader loader(Subset(pictures, {2, 3}), {.batch_size = 2, .exact = exact, .rank = 0, .world_size = 1});
    EXPECT_THROW(loader.begin(), SampleError) << exact;
  }
  // A view of a program's own, which does not say which of its samples is corrupt.
  struct Shifted : Dataset {
    explicit Shifted(std::shared_ptr<const Dataset> inner) : inner_(std::move(inner)) {}
    std::int64_t size() const override { return 2; }
    Example get(std::int64_t index) const override { return inner_->get(index + 3); }
    Example get_batch(std::span<const std::int64_t> indices, const SampleContext& context) const override {
      std::vector<std::int64_t> inside(indices.begin(), indices.end());
      for (std::int64_t& index : inside) index += 3;
      return inner_->get_batch(inside, context);
    }
    std::shared_ptr<const Dataset> inner_;
  };
  for (const bool exact : {false, true}) {
    DataLoader loader(Shifted(pictures), {.batch_size = 2, .exact = exact, .rank = 0, .world_size = 1});
    EXPECT_THROW(loader.begin(), SampleError) << exact;
  }
}

// Nothing is left of the batches of 2 and 3. In a training the next good sample is in their place, as with kReplace; in
// an evaluation no sample counts twice.
TEST(ImageFolder, ALoaderGoesOnWhereAWholeBatchIsCorrupt) {
  const test::ScratchFolder folder;
  fill_classes(folder);
  folder.write("c0/2.jpg", jpeg(2).substr(0, 400));
  folder.write("c0/3.jpg", "");
  const auto make = [&](OnCorrupt policy) {
    return std::make_shared<const ImageFolder>(folder.path(), random_crops(),
                                               ImageFolderOptions{.image = {.on_corrupt = policy}});
  };
  for (const int workers : {0, 2}) {
    DataLoaderOptions options{.batch_size = 1, .num_workers = workers, .rank = 0, .world_size = 1};
    DataLoader replacing(make(OnCorrupt::kReplace), options);
    DataLoader skipping(make(OnCorrupt::kSkip), options);
    auto expected = replacing.begin();
    std::int64_t batches = 0;
    for (const auto& [images, labels] : skipping) {
      EXPECT_TRUE(torch::equal(images, expected->data)) << batches;
      EXPECT_TRUE(torch::equal(labels, expected->target)) << batches;
      ++expected;
      ++batches;
    }
    EXPECT_EQ(batches, 12);
    options.exact = true;
    DataLoader evaluation(make(OnCorrupt::kSkip), options);
    for (int epoch = 0; epoch < 2; ++epoch) {
      std::vector<std::int64_t> labels;
      for (const auto& batch : evaluation) labels.push_back(batch.target.item<std::int64_t>());
      EXPECT_EQ(labels, (std::vector<std::int64_t>{0, 0, 1, 1, 1, 1, 2, 2, 2, 2}));
      EXPECT_EQ(evaluation.batches_left(), 12);  // of the next epoch
    }
  }
}

TEST(ImageFolder, ALoaderEndsWhereNoPictureIsGood) {
  const test::ScratchFolder folder;
  for (const char* name : {"a/0.jpg", "a/1.jpg"}) folder.write(name, "no picture");
  const auto corrupt = std::make_shared<const ImageFolder>(
      folder.path(), random_crops(), ImageFolderOptions{.image = {.on_corrupt = OnCorrupt::kSkip}});
  DataLoader loader(corrupt, {.batch_size = 1, .rank = 0, .world_size = 1});
  try {
    loader.begin();
    ADD_FAILURE() << "expected an error";
  } catch (const SampleError& error) {
    EXPECT_NE(std::string(error.what()).find("the samples after it too"), std::string::npos) << error.what();
  }
}

// The size in its header would take gigabytes for the batch or for the pixels.
TEST(ImageFolder, BombsAreRefusedBeforeMemoryIsTaken) {
  const test::ScratchFolder folder;
  std::string bomb = jpeg(0);
  const std::size_t frame = bomb.find("\xff\xc0");
  ASSERT_NE(frame, std::string::npos);
  for (const std::size_t at : {frame + 5, frame + 7}) bomb.replace(at, 2, "\x4e\x20");  // 20,000 x 20,000
  folder.write("a/bomb.jpg", bomb);
  folder.write("a/good.jpg", jpeg(1));
  const std::vector<std::int64_t> both{0, 1};
  try {
    ImageFolder(folder.path()).get_batch(both);
    ADD_FAILURE() << "expected an error";
  } catch (const SampleError& error) {
    EXPECT_NE(std::string(error.what()).find("bomb.jpg: JPEG: its header says 20000 x 20000"), std::string::npos)
        << error.what();
  }
  const ImageFolder replacing(folder.path(), Compose({ToTensor{}}), {.image = {.on_corrupt = OnCorrupt::kReplace}});
  DataLoader loader(replacing, {.batch_size = 2, .rank = 0, .world_size = 1});
  EXPECT_EQ(loader.begin()->data.sizes(), (std::vector<std::int64_t>{2, 3, 36, 48}));
}

// The memory of a dropped batch goes back to the loader, which reuses it.
TEST(ImageFolder, BatchesComeInMemoryThatIsUsedAgain) {
  const test::ScratchFolder folder;
  fill_classes(folder);
  const Compose crops({RandomResizedCrop{128}, ToTensor{}});
  DataLoader loader(ImageFolder(folder.path(), crops), {.batch_size = 4, .rank = 0, .world_size = 1});
  std::set<const void*> places;
  for (int epoch = 0; epoch < 4; ++epoch) {
    for (auto& batch : loader) places.insert(batch.data.const_data_ptr());
  }
  EXPECT_EQ(places.size(), 1U);
}

TEST(ImageFolder, ShapesThatDifferNameWhatIsMissing) {
  const test::ScratchFolder folder;
  folder.write("a/1.jpg", jpeg(1));
  folder.write("a/2.jpg", test::text(test::encode_jpeg(test::make_picture(30, 30))));
  const ImageFolder dataset(folder.path());
  try {
    dataset.get_batch(std::vector<std::int64_t>{0, 1});
    ADD_FAILURE() << "expected an error";
  } catch (const SampleError& error) {
    EXPECT_NE(std::string(error.what()).find("RandomResizedCrop"), std::string::npos) << error.what();
  }
}

TEST(ImageFolder, AFileThatVanishesIsNamed) {
  const test::ScratchFolder folder;
  fill_classes(folder);
  const ImageFolder dataset(folder.path(), random_crops());
  std::filesystem::remove(folder.path() / "c0" / "0.jpg");
  try {
    dataset.get(0);
    ADD_FAILURE() << "expected an error";
  } catch (const SampleError& error) {
    EXPECT_NE(std::string(error.what()).find("0.jpg"), std::string::npos);
  }
  const ImageFolder replacing(folder.path(), random_crops(), {.image = {.on_corrupt = OnCorrupt::kReplace}});
  std::filesystem::remove(folder.path() / "c0" / "1.jpg");
  EXPECT_THROW(replacing.get(0), SamplesToReplace);
  EXPECT_NE(replacing.corrupt_files().at(0).reason.find("No such file"), std::string::npos);
}

// It was a picture when the folder was indexed.
TEST(ImageFolder, AFifoInPlaceOfAFileIsNamedAndNotWaitedFor) {
  const test::ScratchFolder folder;
  fill_classes(folder);
  const ImageFolder dataset(folder.path(), random_crops(), {.image = {.on_corrupt = OnCorrupt::kReplace}});
  std::filesystem::remove(folder.path() / "c0" / "0.jpg");
  ASSERT_EQ(::mkfifo(folder.path("c0/0.jpg").c_str(), 0600), 0);
  EXPECT_THROW(dataset.get(0), SamplesToReplace);
  EXPECT_NE(dataset.corrupt_files().at(0).reason.find("c0/0.jpg: expected a regular file, found a FIFO"),
            std::string::npos)
      << dataset.corrupt_files().at(0).reason;
}

// Compares with the distribution function of Beta(alpha, alpha), which is simple for these three values.
TEST(Mix, SharesAreBetaDistributed) {
  const std::map<double, double (*)(double)> functions{
      {0.5, [](double x) { return 2.0 / std::numbers::pi * std::asin(std::sqrt(x)); }},
      {1.0, [](double x) { return x; }},
      {2.0, [](double x) { return x * x * (3.0 - 2.0 * x); }}};
  constexpr int kCount = 2000;
  const Example batch(torch::tensor({{0.0}, {1.0}}, torch::kDouble), torch::tensor({0, 1}));
  for (const auto& [alpha, function] : functions) {
    std::vector<double> shares;
    for (std::int64_t i = 0; i < kCount; ++i) {
      CounterRandom random({7, 0, i}, 0);
      shares.push_back(mixup(batch, {.num_classes = 2, .alpha = alpha}, random).data[1][0].item<double>());
    }
    std::sort(shares.begin(), shares.end());
    double largest = 0.0;
    for (int i = 0; i < kCount; ++i) {
      largest = std::max(largest, std::abs(function(shares[static_cast<std::size_t>(i)]) - (i + 0.5) / kCount));
    }
    EXPECT_LT(largest, 1.95 / std::sqrt(kCount)) << alpha;
  }
}

TEST(Mix, MixupAndCutmixKeepSumsOfTargets) {
  Example batch(torch::rand({6, 3, 16, 12}), torch::tensor({0, 1, 2, 3, 0, 1}));
  CounterRandom random({1, 2, 3}, 0);
  for (int trial = 0; trial < 20; ++trial) {
    const Example mixed = mixup(batch, {.num_classes = 4, .alpha = 0.4}, random);
    EXPECT_TRUE(torch::allclose(mixed.target.sum(1), torch::ones(6)));
    const double share =
        mixed.target[1][1].item<double>();  // the share of the sample itself; its neighbour has class 0
    EXPECT_TRUE(torch::allclose(mixed.data[1], batch.data[1] * share + batch.data[0] * (1 - share), 1e-5, 1e-5));
    const Example cut = cutmix(batch, {.num_classes = 4}, random);
    const double own = (cut.data[1] == batch.data[1]).to(torch::kFloat).mean().item<double>();
    EXPECT_NEAR(cut.target[1][1].item<double>(), own, 1e-6);
  }
  // One-hot targets, of any type, are mixed as the numbers of their classes are.
  for (const auto type : {torch::kLong, torch::kFloat, torch::kDouble, torch::kHalf}) {
    CounterRandom same({1, 2, 3}, 0);
    const Example numbers = mixup(batch, {.num_classes = 4}, same);
    same = CounterRandom({1, 2, 3}, 0);
    const Example one_hot = mixup({batch.data, torch::one_hot(batch.target, 4).to(type)}, {}, same);
    EXPECT_EQ(one_hot.target.scalar_type(), type == torch::kLong ? torch::kFloat : type);
    EXPECT_TRUE(
        torch::allclose(one_hot.target.to(torch::kFloat), numbers.target, 0, type == torch::kHalf ? 1e-3 : 1e-6));
    EXPECT_TRUE(torch::equal(one_hot.data, numbers.data));
  }
  for (const auto type : {torch::kHalf, torch::kDouble}) {
    const Example typed(batch.data.to(type), batch.target);
    EXPECT_EQ(mixup(typed, {.num_classes = 4}, random).target.scalar_type(), torch::kFloat);
    EXPECT_EQ(cutmix(typed, {.num_classes = 4}, random).target.scalar_type(), torch::kFloat);
  }
  const auto refusal = [&](const torch::Tensor& target, const MixOptions& options) -> std::string {
    try {
      mixup({batch.data, target}, options, random);
    } catch (const DataError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refusal(torch::rand({6, 3}), {.num_classes = 4}),
            "mixup or cutmix: expected targets [6, 4], as the data and num_classes say, found Float [6, 3]");
  EXPECT_EQ(refusal(torch::rand({6}), {.num_classes = 4}),
            "mixup or cutmix: expected int64 targets [6], or one-hot targets or probabilities [6, 4], found Float [6]");
  EXPECT_EQ(refusal(batch.target, {.num_classes = 4, .alpha = -1e-10}),
            "mixup or cutmix: expected a positive alpha, found -1e-10");
  EXPECT_THROW(mixup(batch, {.num_classes = 3}, random), DataError);
  EXPECT_THROW(cutmix({torch::rand({6, 3}), batch.target}, {.num_classes = 4}, random), DataError);
}

}  // namespace
}  // namespace lockstep::data
