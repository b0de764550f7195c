// `lockstep train` on ordinary pictures: of different sizes, in one folder, with classes of different sizes. Each test
// costs some starts of the program, with a model of 16 hidden numbers or MobileNet at 32 x 32.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/checkpoint/torch_file.h"
#include "lockstep/report/run.h"
#include "nn/error_texts.h"
#include "support/read_file.h"
#include "train_program.h"

namespace lockstep::test {
namespace {

class TrainPicturesMulti : public TrainProgram {
 protected:
  TrainPicturesMulti() {
    const std::vector<std::pair<std::string, int>> classes{{"ant", 30}, {"bee", 20}, {"cat", 3}};
    int number = 0;
    for (const auto& [name, count] : classes) {
      for (int i = 0; i < count; ++i, ++number) {
        const int width = 40 + number * 7 % 23;
        const int height = 36 + number * 5 % 19;
        std::string picture = "P6 " + std::to_string(width) + " " + std::to_string(height) + " 255\n";
        for (int j = 0; j < width * height * 3; ++j)
          picture += static_cast<char>(j % 3 == name.front() % 3 ? 200 : j * number);
        scratch_.write("all/" + name + "/" + std::to_string(100 + i) + ".ppm", picture);
      }
    }
    configure("validation_share: 0.34", "");
  }
  void configure(const std::string& data, const std::string& model) const {
    scratch_.write("config.yaml", "output: " + scratch_.path("run") + "\ndata: {train: " + folder_ + ", workers: 1, " +
                                      data + "}\nmodel: {name: mobilenet_v3_small, small_images: true" + model +
                                      "}\noptimizer: {lr: 0.01}\ntrainer: {epochs: 2, batch_size: 8}\n");
  }
  Finished expect_trained(const std::vector<std::string>& options, const std::vector<std::string>& parts,
                          int ranks = 1) const {
    const Finished finished = train(options, ranks);
    EXPECT_EQ(finished.exit_code, 0) << finished.err;
    expect_in(finished.out, parts);
    return finished;
  }
  nlohmann::json evaluated(const std::vector<std::string>& more, int ranks = 1) const {
    std::vector<std::string> words{LOCKSTEP_PROGRAM, "evaluate", scratch_.path("run"), "--format",
                                   "json",           "--output", scratch_.path("out")};
    words.insert(words.end(), more.begin(), more.end());
    if (ranks > 1)
      words.insert(words.begin(), {LOCKSTEP_PROGRAM, "run", "--standalone", "--nproc-per-node", std::to_string(ranks)});
    Process process(words, {.environment = {"OMP_NUM_THREADS=1"}});
    const Finished finished = process.finish(std::chrono::seconds(100));
    EXPECT_EQ(finished.exit_code, 0) << finished.err;
    return nlohmann::json::parse(read_file(scratch_.path("out")));
  }
  report::RunRecord log() const {
    auto run = report::read_run(scratch_.path("run"));
    EXPECT_TRUE(run.ok()) << run.status().message();
    return run.ok() ? std::move(run).value() : report::RunRecord();
  }

  std::string folder_ = scratch_.path("all");
};

TEST_F(TrainPicturesMulti, ThePlanShowsWhatIsUsedAndFailsWhereTheTrainingWould) {
  expect_trained(
      {"--dry-run"},
      {"training    35 samples of [3, 32, 32], 3 classes", "evaluation  18 samples",
       "transforms  RandomResizedCrop(32), RandomHorizontalFlip, ToTensor, Normalize(",
       "in the test Resize(37), CenterCrop(32), ToTensor, Normalize(",
       "the classes are far from balanced: 'ant' has 20 training pictures, and 'cat' has 2; with data.class_balance"});
  expect_trained({"--print-config"}, {"transforms: [\"RandomResizedCrop(32)\"", "test_transforms: [\"Resize(37)\""});
  expect_error({"--dry-run", "--transforms", "ToTensor"}, 1,
               {"data.train: ", ".ppm: its sample is 3 x ", "a batch needs equal shapes; add Resize"});
  expect_error({"--dry-run", "--transforms", "Resize([32,32]),ToTensor", "--test-transforms", "ToTensor"}, 1,
               {"data.test: ", "a batch needs equal shapes"});
  scratch_.write("all/cat/102.ppm", "no picture");  // the last one
  expect_error({"--dry-run"}, 1, {"data.train: ", "cat/102.ppm", "set on_corrupt"});
  expect_trained({"--dry-run", "--on-corrupt", "replace"}, {"35 samples"});
  expect_trained({"--dry-run", "--on-corrupt", "skip"}, {"35 samples"});
}

// The same share on all ranks, when it is resumed by others, and in `lockstep evaluate`.
TEST_F(TrainPicturesMulti, AShareOfOneFolderIsJudged) {
  expect_trained({"--epochs", "1", "--top-k", "2"},
                 {"epoch 1/1: test loss", ", top-2 ", "finished after 1 epoch, 3 steps"}, 2);
  const auto first = log().evaluations.at(0);
  EXPECT_EQ(first.samples, 18);
  for (const int ranks : {1, 2}) {
    const auto found = evaluated({"--data", folder_, "--part", "evaluation", "--top-k", "2", "--seed", "9"}, ranks);
    EXPECT_EQ(found["accuracy"].get<double>(), report::scalar(first.scalars, "accuracy"));
    EXPECT_EQ(found["top_k"]["2"].get<double>(), report::scalar(first.scalars, "top2"));
    EXPECT_NEAR(found["loss"].get<double>(), report::scalar(first.scalars, "loss"), ranks == 2 ? 0 : 1e-7);
    EXPECT_EQ(found["samples"], 18);
  }
  EXPECT_EQ(evaluated({"--data", folder_, "--part", "training"})["samples"], 35);
  EXPECT_EQ(evaluated({"--data", folder_})["samples"], 53);
  expect_trained({"--resume", "--epochs", "3"}, {"finished after 3 epochs"}, 3);
  expect_error({"--resume", "--validation-share", "0.5"}, 1, {"cannot resume"});
  std::filesystem::remove(folder_ + "/ant/100.ppm");
  Process changed({LOCKSTEP_PROGRAM, "evaluate", scratch_.path("run"), "--data", folder_, "--part", "evaluation"}, {});
  const Finished refused = changed.finish(std::chrono::seconds(100));
  EXPECT_EQ(refused.exit_code, 1);
  expect_in(refused.err, {"--part: ", "and had 35 18 in the training", "its pictures have changed"});
}

TEST_F(TrainPicturesMulti, SaysWhatIsWrongWithAShare) {
  expect_error({"--validation-share", "0.1"}, 1,
               {"data.validation_share: 0.1 of class 'cat' with its 3 pictures leaves the evaluation without"});
  expect_error({"--validation-share", "1"}, 2, {"data.validation_share: expected a number below 1, found 1"});
  expect_error({"--validation-share", "1.5"}, 2, {"--validation-share: expected a number from 0 to 1"});
  expect_error({"--test", folder_}, 2, {"data.validation_share: data.test is given too; expected one of both"});
  expect_error({"--data.format", "cifar10"}, 2, {"data.validation_share is not for this data.format"});
  expect_error({"--train="}, 2, {"data.train: expected the folder"});
  expect_error({"--top-k", "4"}, 1, {"trainer.top_k: expected at most the model's 3 classes, found 4"});
  configure("test: " + folder_, "");
  ASSERT_EQ(train({"--epochs", "0"}).exit_code, 0);
  EXPECT_EQ(train({"--epochs", "1", "--limit-batches", "1"}).exit_code, 0);
  Process process({LOCKSTEP_PROGRAM, "evaluate", scratch_.path("run"), "--data", folder_, "--part", "training"}, {});
  expect_in(process.finish(std::chrono::seconds(100)).err, {"--part: ", "without data.validation_share"});
}

TEST_F(TrainPicturesMulti, PacksAreSplitAndBalancedToo) {
  const Finished packed = run_program({LOCKSTEP_PROGRAM, "pack", folder_, scratch_.path("all.pack")});
  ASSERT_EQ(packed.exit_code, 0) << packed.err;
  for (const char* balance : {"weights", "sampling"}) {
    const Finished trained = expect_trained(
        {"--data.format", "pack", "--train", scratch_.path("all.pack"), "--class-balance", balance, "--mixup-alpha",
         "0.2", "--cutmix-alpha", "1", "--label-smoothing", "0.1", "--precision", "bf16", "--epochs", "1"},
        {"finished after 1 epoch, 3 steps"}, 2);
    EXPECT_EQ(trained.out.find("far from balanced"), std::string::npos) << trained.out;
  }
}

// What is frozen keeps its bits, with the statistics of its batch norms; the rest trains. So after a resumption.
TEST_F(TrainPicturesMulti, FrozenLayersKeepTheirBits) {
  const std::vector<std::string> start{"--epochs", "1", "--limit-batches", "1", "--output", scratch_.path("start")};
  ASSERT_EQ(train(start).exit_code, 0);
  const std::vector<std::string> options{"--weights", scratch_.path("start"), "--freeze",
                                         "features.0,features.1.block"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), options.begin(), options.end());
    return more;
  };
  expect_trained(with({"--dry-run"}),
                 {"of them frozen, 3 classes", "model.weights: from " + scratch_.path("start/model")});
  expect_trained(with({"--epochs", "1"}), {"finished after 1 epoch"}, 2);
  expect_trained(with({"--resume"}), {"finished after 2 epochs"});
  const auto before = checkpoint::read_state_dict(scratch_.path("start/model.safetensors"));
  const auto after = checkpoint::read_state_dict(scratch_.path("run/model.safetensors"));
  for (const auto& entry : before) {
    const bool is_frozen = entry.key().starts_with("features.0.") || entry.key().starts_with("features.1.block.");
    const bool is_same = torch::equal(entry.value(), *after.find(entry.key()));
    if (is_frozen || entry.value().is_floating_point()) {
      EXPECT_EQ(is_same, is_frozen) << entry.key();
    }
  }
  expect_error({"--weights", scratch_.path("start"), "--freeze", "features.0", "--resume"}, 1,
               {"cannot resume: optimizer parameter 0 is 'features.2.", "'features.1.block.", "model.freeze"});
  const std::string warning = "warning: model.freeze without model.weights: features.0 keep the random values";
  expect_trained({"--dry-run", "--freeze", "features.0"}, {warning});
}

// On which a batch norm fails, after 32 x 32 pictures have become 1 x 1: found before the first step. A batch that
// corrupt pictures leave with one is found when it comes.
TEST_F(TrainPicturesMulti, SaysWhichBatchOfOnePictureCannotBeTrained) {
  const auto resnet = [](std::vector<std::string> more) {
    more.insert(more.end(), {"--model.name", "resnet18", "--small-images=false", "--image-size", "32"});
    return more;
  };
  const std::string text = "resnet18 cannot train on a batch of 1; choose another trainer.batch_size: Expected more";
  expect_error(resnet({"--dry-run", "--batch-size", "34"}), 1,
               {"trainer.batch_size: rank 0, epoch 1, batch 2: " + text});
  expect_trained(resnet({"--dry-run", "--batch-size", "34", "--limit-batches", "1"}), {"steps       1 in an epoch"});
  expect_trained({"--dry-run", "--batch-size", "34"}, {"steps       2 in an epoch"});
  std::filesystem::create_directories(scratch_.path("two/ant"));
  std::filesystem::copy(folder_ + "/ant/100.ppm", scratch_.path("two/ant/1.ppm"));
  scratch_.write("two/bee/1.ppm", "no picture");
  expect_error(resnet({"--train", scratch_.path("two"), "--validation-share", "0", "--on-corrupt", "skip"}), 1,
               {"trainer.batch_size: rank 0, epoch 1, batch 1: " + text});
}

// Of torch.save, with the state dict as one of several entries; and in folders.
TEST_F(TrainPicturesMulti, FindsTheStateDictInAFile) {
  ASSERT_EQ(train({"--epochs", "1", "--limit-batches", "1"}).exit_code, 0);
  const auto state = checkpoint::to_ivalue(checkpoint::read_state_dict(scratch_.path("run/model.safetensors")));
  const auto write = [&](const std::vector<std::string>& keys) {
    c10::impl::GenericDict dict(c10::StringType::get(), c10::AnyType::get());
    dict.insert("epoch", 3);
    for (const std::string& key : keys) dict.insert(key, state);
    checkpoint::write_torch_file(scratch_.path("weights.pt"), dict);
  };
  const std::vector<std::string> plan{"--dry-run", "--weights", scratch_.path("weights.pt")};
  const auto with = [&](const std::string& key) {
    std::vector<std::string> options = plan;
    options.insert(options.end(), {"--weights-key", key});
    return options;
  };
  write({"state_dict"});
  expect_trained(plan, {"model.weights: of the file's entry 'state_dict'"});
  expect_trained(with("state_dict"), {"parameters"});
  expect_error(with("net"), 1, {"model.weights_key: ", "weights.pt", "state_dict"});
  write({"model", "state_dict"});
  expect_error(plan, 1, {"'state_dict' and 'model' are state dicts; set model.weights_key to one of them"});
  write({"net"});
  expect_error(plan, 1, {"model.weights: ", "whose keys are: ", "net", "the key model.weights_key names it"});
  expect_trained(with("net"), {"parameters"});
  expect_error({"--dry-run", "--weights-key", "net"}, 2, {"model.weights_key needs model.weights"});
  expect_trained({"--dry-run", "--weights", scratch_.path("run/checkpoints")},
                 {"model.weights: from " + scratch_.path("run/checkpoints/step-")});
  expect_error({"--dry-run", "--weights", folder_}, 1, {"model.weights: ", folder_});
}

TEST_F(TrainPicturesMulti, TrainsOnGeneratedPictures) {
  const std::vector<std::string> fake{"--data.format", "fake", "--train=", "--fake-size", "64", "--fake-classes", "4"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), fake.begin(), fake.end());
    return more;
  };
  expect_trained(with({"--epochs", "1"}), {"epoch 1/1: test loss", "finished after 1 epoch, "}, 2);
  expect_trained(with({"--dry-run", "--validation-share", "0"}), {"64 samples of [3, 32, 32], 4 classes"});
  expect_error({"--data.format", "fake"}, 2, {"data.train and data.test are not for format fake"});
  expect_error(with({"--transforms", "ToTensor"}), 2, {"data.transforms are not for format fake"});
}

}  // namespace
}  // namespace lockstep::test
