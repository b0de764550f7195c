// `lockstep evaluate`, `predict` and `checkpoint export`, with a small model that a training has written.
#include <gtest/gtest.h>
#include <signal.h>
#include <torch/script.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/checkpoint/tensor_file.h"
#include "lockstep/report/run.h"
#include "nn/error_texts.h"
#include "support/python/python.h"
#include "support/read_file.h"
#include "train_program.h"

namespace lockstep::test {
namespace {

class UseOfModelMulti : public TrainProgram {
 protected:
  UseOfModelMulti() { options_.insert(options_.end(), object_.begin(), object_.end()); }
  Finished train_small(std::vector<std::string> more, int ranks = 1) const {
    more.insert(more.begin(), options_.begin(), options_.end());
    const Finished finished = train(more, ranks);
    EXPECT_EQ(finished.exit_code, 0) << finished.err;
    return finished;
  }
  Finished run(std::vector<std::string> words, int ranks = 1) const {
    if (words.at(0) != "checkpoint") words.insert(words.begin() + 1, object_.begin(), object_.end());
    words.insert(words.begin(), LOCKSTEP_PROGRAM);
    if (ranks > 1)
      words.insert(words.begin(), {LOCKSTEP_PROGRAM, "run", "--standalone", "--nproc-per-node", std::to_string(ranks)});
    Process process(words, {.environment = {"OMP_NUM_THREADS=1"}});
    return process.finish(std::chrono::seconds(100));
  }
  // What --output holds.
  std::string written(std::vector<std::string> words, int ranks = 1, int exit_code = 0) const {
    words.insert(words.end(), {"--output", scratch_.path("out")});
    const Finished finished = run(std::move(words), ranks);
    EXPECT_EQ(finished.exit_code, exit_code) << finished.err;
    return read_file(scratch_.path("out"));
  }
  void expect_refused(const std::vector<std::string>& words, int code, const std::vector<std::string>& parts) const {
    const Finished finished = run(words);
    EXPECT_EQ(finished.exit_code, code) << finished.err;
    EXPECT_EQ(finished.err.find("frame #"), std::string::npos) << finished.err;
    expect_in(finished.err, parts);
  }

  std::string model_ = scratch_.path("run/model.safetensors");
  std::string test_ = project_ + "/data/pictures/test";
  std::vector<std::string> object_{"--shared-object", LOCKSTEP_MODEL_LIBRARIES "/libdocumented_model.so"};
  std::vector<std::string> options_{"--model.name", "custom", "--model.options", "hidden=16", "--lr", "0.02"};
};

std::vector<std::vector<std::string>> rows_of(const std::string& csv) {
  std::vector<std::vector<std::string>> rows;
  std::istringstream lines(csv);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line + ",");
    rows.emplace_back();
    for (std::string field; std::getline(fields, field, ',');) rows.back().push_back(field);
  }
  return rows;
}

// The averages, the smoothed loss and random transforms count in the evaluation of the training, so they must here.
TEST_F(UseOfModelMulti, EvaluatesAndPredictsAsTheTrainingDid) {
  const Finished trained = train_small({"--epochs", "4", "--ema-decay", "0.5", "--label-smoothing", "0.1"}, 2);
  expect_in(trained.out, {"model: " + model_ + ", of the best evaluation (accuracy "});
  auto log = report::read_run(scratch_.path("run"));
  ASSERT_TRUE(log.ok()) << log.status().message();
  const auto best =
      std::max_element(log->evaluations.begin(), log->evaluations.end(), [](const auto& a, const auto& b) {
        return report::scalar(a.scalars, "accuracy") < report::scalar(b.scalars, "accuracy");
      });
  std::map<int, nlohmann::json> found;
  for (const int ranks : {1, 2}) {
    found[ranks] = nlohmann::json::parse(
        written({"evaluate", scratch_.path("run"), "--data", test_, "--format", "json", "--top-k", "2,3"}, ranks));
    EXPECT_EQ(found[ranks]["accuracy"].get<double>(), report::scalar(best->scalars, "accuracy"));
    EXPECT_NEAR(found[ranks]["loss"].get<double>(), report::scalar(best->scalars, "loss"), 1e-12);
    EXPECT_EQ(found[ranks]["top_k"]["3"], 1.0);
    EXPECT_EQ(found[ranks]["samples"], 24);
  }
  EXPECT_EQ(found[2]["loss"].get<double>(), report::scalar(best->scalars, "loss"));
  EXPECT_EQ(found[1]["confusion"], found[2]["confusion"]);

  const std::string csv = written({"predict", model_, test_});
  EXPECT_EQ(csv, written({"predict", model_, test_}, 2));
  const auto rows = rows_of(csv);
  ASSERT_EQ(rows.size(), 25U);
  EXPECT_EQ(rows[0], (std::vector<std::string>{"picture", "class", "probability", "error"}));
  EXPECT_EQ(rows[1][0], test_ + "/circle/24.ppm");
  const std::map<std::string, int> numbers{{"circle", 0}, {"cross", 1}, {"square", 2}};
  nlohmann::json confusion = {{0, 0, 0}, {0, 0, 0}, {0, 0, 0}};
  for (std::size_t i = 1; i < rows.size(); ++i) {
    const std::string label = std::filesystem::path(rows[i][0]).parent_path().filename();
    auto& cell = confusion[numbers.at(label)][numbers.at(rows[i][1])];
    cell = cell.get<int>() + 1;
  }
  EXPECT_EQ(confusion, found[1]["confusion"]);
  expect_in(run({"predict", model_, test_ + "/circle/24.ppm"}).err, {"draw at random"});
  const std::string table = written({"evaluate", model_, "--data", test_, "--format", "csv"});
  expect_in(table,
            {"class,samples,correct,recall,precision,predicted circle,predicted cross,predicted square\ncircle,8,"});
}

// A folder with classes of the training in another order of numbers: the names count.
TEST_F(UseOfModelMulti, KnowsClassesByTheirNames) {
  train_small({"--epochs", "3", "--test-transforms", "ToTensor"});
  const auto whole = nlohmann::json::parse(written({"evaluate", model_, "--data", test_, "--format", "json"}));
  std::filesystem::remove_all(test_ + "/circle");
  const auto part = nlohmann::json::parse(written({"evaluate", model_, "--data", test_, "--format", "json"}));
  EXPECT_EQ(part["samples"], 16);
  EXPECT_EQ(part["confusion"][0], nlohmann::json({0, 0, 0}));
  EXPECT_EQ(part["confusion"][1][1], whole["confusion"][1][1]);
  EXPECT_EQ(part["classes"][0]["recall"], nullptr);
  std::filesystem::rename(test_ + "/cross", test_ + "/star");
  expect_refused({"evaluate", model_, "--data", test_}, 1,
                 {test_ + " has the class 'star', which the model does not know; it knows circle, cross, square"});
}

TEST_F(UseOfModelMulti, APictureThatCannotBeReadIsARowWithTheReason) {
  train_small({"--epochs", "1", "--test-transforms", "ToTensor"});
  scratch_.write("cut.ppm", "P6 32 32 255 cut off");
  scratch_.write("text, no picture.jpg", "text");
  scratch_.write("large.ppm", "P6 33 33 255\n" + std::string(33 * 33 * 3, 'x'));
  const std::string good = test_ + "/square/24.ppm";
  scratch_.write("list", scratch_.path("missing.png") + "\n" + scratch_.path("cut.ppm") + "\n" + good + "\n" +
                             scratch_.path("text, no picture.jpg") + "\r\n" + scratch_.path("large.ppm") + "\n");
  const std::vector<std::string> words{"predict", model_, good, "--list", scratch_.path("list"), "--top-k", "3"};
  const auto rows = rows_of(written(words, 1, 1));
  ASSERT_EQ(rows.size(), 7U);
  EXPECT_EQ(rows[1].size(), 8U);
  EXPECT_EQ(rows[1], rows[4]);
  EXPECT_NEAR(std::stod(rows[1][2]) + std::stod(rows[1][4]) + std::stod(rows[1][6]), 1, 1e-5);
  std::vector<std::string> as_json = words;
  as_json.insert(as_json.end(), {"--format", "json"});
  for (const int ranks : {1, 2}) {
    const auto json = nlohmann::json::parse(written(as_json, ranks, 1));
    ASSERT_EQ(json.size(), 6U);
    EXPECT_EQ(json[0]["predictions"].size(), 3U);
    expect_in(json[1]["error"].get<std::string>(), {"No such file"});
    expect_in(json[2]["error"].get<std::string>(), {"PPM"});
    EXPECT_EQ(json[3], json[0]);
    EXPECT_EQ(json[4]["picture"].get<std::string>(), scratch_.path("text, no picture.jpg"));
    expect_in(json[4]["error"].get<std::string>(), {"expected a JPEG, PNG"});
    EXPECT_EQ(json[5]["error"], "the transforms make [3, 33, 33] of it, and the training had [3, 32, 32]");
  }
  const Finished told = run(words);
  expect_in(told.out, {"\"" + scratch_.path("text, no picture.jpg") + "\",,,,,,,"});
  expect_in(told.err, {"4 of 6 pictures have no prediction"});
  checkpoint::TensorFile file = checkpoint::read_tensor_file(model_);
  for (auto& [name, tensor] : file.tensors) {
    if (name.ends_with(".bias")) tensor.fill_(INFINITY);
  }
  checkpoint::write_tensor_file(model_, file);
  expect_in(written({"predict", model_, good}, 1, 1), {good + ",,,the model's scores are NaN or infinite\n"});
}

TEST_F(UseOfModelMulti, NeverWritesOverWhatItReads) {
  train_small({"--epochs", "1"});
  const std::string picture = test_ + "/square/24.ppm";
  const std::string link = scratch_.path("link");
  std::filesystem::create_symlink(picture, link);
  const std::string bytes = read_file(picture);
  expect_refused({"predict", model_, test_, "--output", link}, 2,
                 {"--output: " + link + " would replace " + picture + ", which the command reads"});
  expect_refused({"evaluate", model_, "--data", test_, "--output", model_}, 2, {"would replace " + model_});
  EXPECT_EQ(read_file(picture), bytes);
}

// Such as after checkpoint.save: false, whose training writes none.
TEST_F(UseOfModelMulti, ANewTrainingSetsTheModelAside) {
  train_small({"--epochs", "1"});
  const std::string bytes = read_file(model_);
  train_small({"--epochs", "1", "--no-save"});
  EXPECT_FALSE(std::filesystem::exists(model_));
  EXPECT_EQ(read_file(scratch_.path("run/earlier-model.safetensors")), bytes);
}

// A resumed training goes on with the file. As the weights of another training it tells the names of its classes.
TEST_F(UseOfModelMulti, ATrainingGoesOnWithItsModel) {
  train_small({"--epochs", "1", "--monitor", "loss"});
  expect_in(train_small({"--epochs", "4", "--monitor", "loss", "--resume"}).out, {"of the best evaluation (loss "});
  auto log = report::read_run(scratch_.path("run"));
  ASSERT_TRUE(log.ok()) << log.status().message();
  double best = 1e9;
  for (const auto& one : log->evaluations) best = std::min(best, report::scalar(one.scalars, "loss"));
  const auto found = nlohmann::json::parse(written({"evaluate", model_, "--data", test_, "--format", "json"}));
  EXPECT_EQ(found["loss"].get<double>(), best);
  for (const char* part : {"train", "test"}) {
    const std::string folder = project_ + "/data/pictures/" + part;
    std::filesystem::rename(folder + "/cross", folder + "/cube");
  }
  const Finished other = train_small({"--epochs", "0", "--weights", model_, "--output", scratch_.path("other")});
  expect_in(other.out, {"class 1 is 'cross' in the checkpoint, and 'cube' in this training"});
}

// Without data for evaluations the file is that of the last epoch.
TEST_F(UseOfModelMulti, ATrainingWithoutEvaluationsWritesItsLastModel) {
  const Finished trained = train_small({"--epochs", "1", "--test="});
  expect_in(trained.out, {"model: " + model_ + ", of the last epoch"});
  expect_in(written({"evaluate", model_, "--data", test_}), {"custom, 3 classes, after epoch 1\n", "24 samples"});
}

TEST_F(UseOfModelMulti, RefusesFilesThatAreNoModel) {
  train_small({"--epochs", "1"});
  expect_refused({"evaluate", scratch_.path("run/checkpoints/step-000000006.ckpt"), "--data", test_}, 1,
                 {" has no entry lockstep.config", "expected the file model.safetensors"});
  scratch_.write("text", "no model");
  expect_refused({"predict", scratch_.path("text"), test_}, 1, {"expected the file model.safetensors"});
  expect_refused({"predict", scratch_.path("nowhere"), test_}, 1, {"nowhere", "No such file"});
  expect_refused({"predict", model_}, 2, {"expected pictures or a folder behind the model, or --list FILE"});
  expect_refused({"predict", model_, test_, "--top-k", "4"}, 2, {"--top-k: 4 is more than the model's 3 classes"});
  expect_refused({"predict", model_, test_, "--shared-object", "none.so"}, 1, {"model.shared_object: cannot load"});
  expect_refused({"predict", model_, test_, "--shared-object="}, 2, {"model.name: custom needs model.shared_object"});
  checkpoint::TensorFile file = checkpoint::read_tensor_file(model_);
  file.tensors["body.9.weight"] = file.tensors["body.1.weight"];
  checkpoint::write_tensor_file(scratch_.path("other.safetensors"), file);
  expect_refused({"predict", scratch_.path("other.safetensors"), test_}, 1, {"other.safetensors: ", "body.9.weight"});
  file.tensors.erase("body.9.weight");
  file.tensors["body.1.weight"] = file.tensors["body.1.weight"].to(torch::kInt);
  checkpoint::write_tensor_file(scratch_.path("other.safetensors"), file);
  expect_refused({"predict", scratch_.path("other.safetensors"), test_}, 1,
                 {"other.safetensors: body.1.weight is Int in the file, and Float in the model"});
  file.metadata["lockstep.input"] = "3 32 32 32 1";
  checkpoint::write_tensor_file(scratch_.path("other.safetensors"), file);
  expect_refused({"predict", scratch_.path("other.safetensors"), test_}, 1, {"lockstep.input is '3 32 32 32 1'"});
  file.metadata["lockstep.input"] = "3 32 32";
  file.metadata["lockstep.classes"] = "circle\ncross\ncross\n";
  checkpoint::write_tensor_file(scratch_.path("other.safetensors"), file);
  expect_refused({"predict", scratch_.path("other.safetensors"), test_}, 1, {"class 2, 'cross', has the name of"});
  // Such as the path of a shared object, which only the command line may give.
  file.metadata["lockstep.config"] = "model:\n  shared_object: code.so\n";
  checkpoint::write_tensor_file(scratch_.path("other.safetensors"), file);
  expect_refused({"predict", scratch_.path("other.safetensors"), test_}, 1, {"unknown key 'shared_object'"});
}

// Costs two trainings of one epoch.
TEST_F(UseOfModelMulti, ExportsAScriptOrSaysWhyNot) {
  train_small({"--epochs", "1"});
  const std::string script = scratch_.path("model.ts");
  const std::vector<std::string> words{"checkpoint", "export", model_, "--torchscript", script};
  expect_refused(words, 2, {"model.name: custom needs model.shared_object"});
  std::vector<std::string> good = words;
  good.insert(good.end(), object_.begin(), object_.end());
  const Finished done = run(good);
  EXPECT_EQ(done.exit_code, 0) << done.err;
  expect_in(done.out, {script + ": custom, pictures [N, 3, 32, 32] to scores [N, 3]", "the largest difference is 0\n"});
  torch::jit::ExtraFilesMap extra{{"lockstep.classes", ""}};
  torch::jit::Module loaded = torch::jit::load(script, std::nullopt, extra);
  EXPECT_EQ(extra["lockstep.classes"], "circle\ncross\nsquare\n");
  const checkpoint::StateDict weights = checkpoint::read_state_dict(model_);
  const torch::Tensor pictures = torch::randn({5, 3, 32, 32});
  const torch::Tensor hidden =
      torch::linear(pictures.flatten(1), weights["body.1.weight"], weights["body.1.bias"]).relu();
  EXPECT_TRUE(torch::allclose(loaded.forward({pictures}).toTensor(),
                              torch::linear(hidden, weights["body.3.weight"], weights["body.3.bias"])));
  expect_refused({"checkpoint", "export", model_, "--torchscript", model_, object_[0], object_[1]}, 2,
                 {"--torchscript: " + model_ + " would replace " + model_});
  // Its forward() uses the size of the batch as a number.
  std::filesystem::remove(script);
  const std::string other = LOCKSTEP_MODEL_LIBRARIES "/libsize_of_batch.so";
  const Finished trained = train({"--model.name", "custom", "--shared-object", other, "--epochs", "1"});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  std::vector<std::string> bad = words;
  bad.insert(bad.end(), {"--shared-object", other});
  expect_refused(bad, 1,
                 {model_ + ": the script of custom is not the model: for a batch of 1 random pictures it fails",
                  "must not use the size of the batch as a number"});
  EXPECT_FALSE(std::filesystem::exists(script));
  EXPECT_FALSE(std::filesystem::exists(script + ".tmp"));
}

TEST_F(UseOfModelMulti, ASignalLeavesNoUnfinishedFile) {
  train_small({"--epochs", "1", "--test-transforms", "ToTensor"});
  std::string list;
  for (int i = 0; i < 200'000; ++i) list += test_ + "/square/24.ppm\n";
  scratch_.write("list", list);
  const std::string out = scratch_.path("rows.csv");
  Process process(
      {LOCKSTEP_PROGRAM, "predict", object_[0], object_[1], model_, "--list", scratch_.path("list"), "--output", out},
      {.environment = {"OMP_NUM_THREADS=1"}});
  ASSERT_TRUE(wait_for([&] { return std::filesystem::exists(out + ".tmp"); }));
  ASSERT_TRUE(wait_for([&] { return takes_signal(process.pid(), SIGINT); }));
  ::kill(process.pid(), SIGINT);
  EXPECT_EQ(process.finish().exit_code, 128 + SIGINT);
  EXPECT_FALSE(std::filesystem::exists(out + ".tmp"));
  EXPECT_FALSE(std::filesystem::exists(out));
}

#ifdef LOCKSTEP_PARITY_SCRIPTS
class UseOfModelParity : public UseOfModelMulti {
 protected:
  UseOfModelParity() { object_.clear(); }
};

// Python's torchvision has the same model, with the weights of the file, and so has its TorchScript.
TEST_F(UseOfModelParity, TorchvisionsModelGivesTheSame) {
  const Finished trained = train({"--model.name", "resnet18", "--no-small-images", "--epochs", "1", "--test-transforms",
                                  "ToTensor,Normalize([0.5, 0.4, 0.3], [0.2, 0.3, 0.4])"});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  const Finished converted = run({"checkpoint", "convert", model_, scratch_.path("model.pt")});
  ASSERT_EQ(converted.exit_code, 0) << converted.err;
  const Finished exported = run({"checkpoint", "export", model_, "--torchscript", scratch_.path("model.ts")});
  ASSERT_EQ(exported.exit_code, 0) << exported.err;
  std::istringstream python(
      run_python("use_trained_model.py", {model_, scratch_.path("model.pt"), scratch_.path("model.ts"), test_}));
  const auto rows = rows_of(written({"predict", model_, test_}));
  ASSERT_EQ(rows.size(), 25U);
  for (std::size_t i = 1; i < rows.size(); ++i) {
    std::string path;
    std::string name;
    double probability = 0;
    python >> path >> name >> probability;
    EXPECT_EQ(rows[i][0], path);
    EXPECT_EQ(rows[i][1], name);
    EXPECT_NEAR(std::stod(rows[i][2]), probability, 1e-4);
  }
}
#endif

}  // namespace
}  // namespace lockstep::test
