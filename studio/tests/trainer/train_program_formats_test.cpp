// The data, models, optimizers, schedules and options of the loop that `lockstep train` knows by name.
#include <gtest/gtest.h>

#include <iterator>
#include <sstream>

#include "nn/error_texts.h"
#include "train_program.h"

namespace lockstep::test {
namespace {

std::string big_endian(std::uint32_t value) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(value >> shift);
  return bytes;
}

// Bytes that differ.
std::string some_bytes(std::size_t count) {
  std::string bytes(count, '\0');
  std::uint32_t state = 1;
  for (char& byte : bytes) byte = static_cast<char>((state = state * 1664525 + 1013904223) >> 24);
  return bytes;
}

std::string labels_of_ten(std::uint32_t count) {
  std::string bytes;
  for (std::uint32_t i = 0; i < count; ++i) bytes += static_cast<char>(i % 10);
  return bytes;
}

class TrainProgramFormatsMulti : public TrainProgram {
 protected:
  void configure(const std::string& data, const std::string& model) const {
    scratch_.write("config.yaml", "output: " + scratch_.path("run") + "\ndata: {" + data + "}\nmodel: {" + model +
                                      "}\noptimizer: {lr: 0.01}\ntrainer: {epochs: 1, batch_size: 10}\n");
  }
  void write_mnist(const std::string& name, std::uint32_t count) const {
    scratch_.write("mnist/" + name + "-images-idx3-ubyte", big_endian(0x803) + big_endian(count) + big_endian(28) +
                                                               big_endian(28) + some_bytes(std::size_t{count} * 784));
    scratch_.write("mnist/" + name + "-labels-idx1-ubyte",
                   big_endian(0x801) + big_endian(count) + labels_of_ten(count));
  }
  // A small model; each epoch has two batches. Returns what is printed.
  std::string train_two_epochs(std::vector<std::string> options) const {
    options.insert(options.end(), {"--limit-batches", "2", "--model.name", "custom", "--shared-object",
                                   LOCKSTEP_MODEL_LIBRARIES "/libdocumented_model.so", "--model.options", "hidden=16"});
    const Finished finished = train(options);
    EXPECT_EQ(finished.exit_code, 0) << finished.err;
    expect_in(finished.out, {"finished after 2 epochs, 4 steps"});
    return finished.out;
  }
  void expect_trained(const std::vector<std::string>& options, const std::vector<std::string>& parts) const {
    const Finished finished = train(options, 2);
    EXPECT_EQ(finished.exit_code, 0) << finished.err;
    expect_in(finished.out, parts);
  }
};

TEST_F(TrainProgramFormatsMulti, Mnist) {
  write_mnist("train", 80);
  write_mnist("t10k", 20);
  configure("format: mnist, train: " + scratch_.path("mnist"), "name: mnist_net");
  expect_in(train({"--dry-run"}).out, {"80 samples of [1, 28, 28], 10 classes", "evaluation  20 samples"});
  expect_trained({}, {"epoch 1/1: test loss", "finished after 1 epoch, 4 steps"});
  expect_error({"--num-classes", "20"}, 1, {"model.num_classes: mnist_net has 10 classes, not 20"});
  expect_error({"--transforms", "ToTensor,RandomHorizontalFlip"}, 2, {"data.transforms are not for format mnist"});
}

// The names of its classes are in a file that may be missing.
TEST_F(TrainProgramFormatsMulti, Cifar) {
  const auto batch = [](int pictures) {
    std::string records;
    for (int i = 0; i < pictures; ++i) records += static_cast<char>(i % 10) + some_bytes(3072);
    return records;
  };
  for (int i = 1; i <= 5; ++i) scratch_.write("cifar/data_batch_" + std::to_string(i) + ".bin", batch(16));
  scratch_.write("cifar/test_batch.bin", batch(20));
  configure(
      "format: cifar10, train: " + scratch_.path("cifar") + ", transforms: [\"RandomCrop(32, padding=4)\", ToTensor]",
      "name: mobilenet_v3_small, small_images: true");
  expect_in(train({"--dry-run"}).out, {"80 samples of [3, 32, 32], 10 classes", "parameters, 10 classes"});
  scratch_.write("cifar/batches.meta.txt", "a\nb\nc\nd\ne\nf\ng\nh\ni\nj\n");
  expect_trained({}, {"epoch 1/1: test loss", "finished after 1 epoch, 4 steps"});
}

// Each picture has a coarse label too, in front of the fine one.
TEST_F(TrainProgramFormatsMulti, Cifar100) {
  const auto pictures = [](int count) {
    std::string records;
    for (int i = 0; i < count; ++i)
      records += std::string{static_cast<char>(i % 20), static_cast<char>(99 - i)} + some_bytes(3072);
    return records;
  };
  scratch_.write("cifar/cifar-100-binary/train.bin", pictures(80));
  scratch_.write("cifar/cifar-100-binary/test.bin", pictures(20));
  configure("format: cifar100, train: " + scratch_.path("cifar"), "name: mobilenet_v3_small, small_images: true");
  expect_in(train({"--dry-run"}).out,
            {"80 samples of [3, 32, 32], 100 classes", "parameters, 100 classes", "evaluation  20 samples"});
  expect_trained({}, {"epoch 1/1: test loss", "finished after 1 epoch, 4 steps"});
}

TEST_F(TrainProgramFormatsMulti, Packs) {
  for (const std::string part : {"train", "test"}) {
    const Finished packed =
        run_program({LOCKSTEP_PROGRAM, "pack", project_ + "/data/pictures/" + part, scratch_.path(part + ".pack")});
    ASSERT_EQ(packed.exit_code, 0) << packed.err;
  }
  configure("format: pack, train: " + scratch_.path("train.pack") + ", test: " + scratch_.path("test.pack"),
            "name: mobilenet_v3_small, small_images: true");
  expect_in(train({"--dry-run"}).out, {"72 samples of [3, 32, 32], 3 classes", "evaluation  24 samples"});
  expect_trained({}, {"epoch 1/1: test loss", "finished after 1 epoch, 4 steps"});
}

TEST_F(TrainProgramFormatsMulti, Models) {
  for (const char* model : {"resnet18", "resnet34", "resnet50", "resnet101", "mobilenet_v3_small"}) {
    const Finished plan = train({"--model.name", model, "--dry-run"});
    EXPECT_EQ(plan.exit_code, 0) << plan.err;
    expect_in(plan.out, {std::string(model) + ": ", " parameters, 3 classes"});
  }
  for (const char* model : {"vit_tiny", "vit_b_16"}) {
    const Finished plan = train({"--model.name", model, "--image-size", "32", "--patch-size", "8", "--dry-run"});
    EXPECT_EQ(plan.exit_code, 0) << plan.err;
    expect_in(plan.out, {std::string(model) + ": ", " parameters, 3 classes"});
  }
  expect_error({"--model.name", "vit_tiny", "--image-size", "224", "--dry-run"}, 1,
               {"vit_tiny cannot take the data's samples, [3, 32, 32]"});
}

TEST_F(TrainProgramFormatsMulti, Optimizers) {
  for (const char* optimizer : {"adam", "adamw", "rmsprop", "adagrad"})
    train_two_epochs({"--optimizer.name", optimizer, "--weight-decay", "1e-4"});
  train_two_epochs({"--nesterov", "--weight-decay", "1e-4"});
  train_two_epochs({"--optimizer.name", "adam", "--no-fused"});
}

TEST_F(TrainProgramFormatsMulti, Schedules) {
  // The rate of the second epoch.
  const std::vector<std::pair<std::vector<std::string>, std::string>> schedules = {
      {{"--schedule.name", "step", "--step-size", "1"}, "lr 0.001,"},
      {{"--schedule.name", "multistep", "--milestones", "1"}, "lr 0.001,"},
      {{"--schedule.name", "exponential", "--gamma", "0.5"}, "lr 0.005,"},
      {{"--schedule.name", "polynomial"}, "lr 0.005,"},
      {{"--schedule.name", "cosine"}, "lr 0.005,"},
      {{"--warmup", "1", "--warmup-factor", "0.5"}, "lr 0.01,"},
      {{"--schedule.name", "one_cycle"}, "lr "}};
  for (const auto& [options, rate] : schedules) {
    const std::string out = train_two_epochs(options);
    const std::size_t second = out.find("epoch 2/2: loss");
    ASSERT_NE(second, std::string::npos) << out;
    EXPECT_NE(out.find(rate, second), std::string::npos) << rate << " in: " << out;
  }
}

// 12 pictures a machine are 6 for each rank, and two batches are a step.
TEST_F(TrainProgramFormatsMulti, OptionsOfTheLoop) {
  const std::string all =
      "--batch-per-machine --accumulation=2 --precision=bf16 --channels-last --clip-grad-norm=1 --ema-decay=0.9 "
      "--label-smoothing=0.1 "
      "--non-finite=skip --test-batch-size=24 --evaluate-every=2 --monitor=loss --patience=3 --keep-last=1 "
      "--every-steps=2 --asynchronous --optimizer.name=adamw --betas=0.8,0.9 --schedule.name=cosine --interval=step";
  std::istringstream words(all);
  using Words = std::istream_iterator<std::string>;
  const Finished finished = train(std::vector<std::string>(Words(words), Words()), 2);
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  expect_in(finished.out, {"epoch 2/2: test loss", "finished after 2 epochs, 6 steps"});
  EXPECT_EQ(finished.out.find("epoch 1/2: test loss"), std::string::npos) << finished.out;
  EXPECT_TRUE(std::filesystem::exists(scratch_.path("run/checkpoints/step-000000006.ckpt")));
  EXPECT_FALSE(std::filesystem::exists(scratch_.path("run/checkpoints/step-000000002.ckpt")));
  expect_trained({"--sync-batch-norm", "--epochs", "1"}, {"finished after 1 epoch, 3 steps"});
  // So are those of the evaluation.
  expect_trained({"--batch-per-machine", "--dry-run"},
                 {"evaluation  24 samples, batches of 6", "ranks       2 on cpu, batches of 6"});
}

}  // namespace
}  // namespace lockstep::test
