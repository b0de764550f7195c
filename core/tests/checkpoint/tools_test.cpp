// `lockstep checkpoint`: what it does with files of both worlds, and the program itself.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

#include "checkpoint/pickle_file.h"
#include "checkpoint/tools_fixture.h"
#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/checkpoint/checkpoint_manager.h"
#include "support/expect_error.h"
#include "support/process.h"

namespace lockstep::checkpoint {
namespace {

TEST_F(CheckpointTools, ShowWhatIsInAFile) {
  const std::string shown = joined(show(path("run.pt"), {}));
  for (const char* line : {"run.pt: torch.save (zip); 8 tensors, 26 elements, 104 B\n", "\n  model: dict of 2\n",
                           "\n    weight: float32 [2, 3]\n", "\n        step: float32 [] = 1\n", "\n  step: 42\n",
                           "\n        betas: tuple of 2: 0.9, 0.999\n", "\n  name: \"first run\"\n"}) {
    EXPECT_NE(shown.find(line), std::string::npos) << line << "in\n" << shown;
  }
  const std::string entry = joined(show(path("run.pt"), {.entry = "model"}));
  EXPECT_NE(entry.find("weight: float32 [2, 3]\n"), std::string::npos) << entry;
  EXPECT_EQ(entry.find("optimizer"), std::string::npos);
  test::expect_error<CheckpointError>(ErrorCode::kMismatch, {"run.pt", "no entry \"net\"", "model, optimizer"},
                                      [&] { show(path("run.pt"), {.entry = "net"}); });
}

// The folder of a training has its model and its checkpoints, and neither is an obvious choice.
TEST_F(CheckpointTools, AFolderOfATrainingIsRefusedWithWhatToGiveInstead) {
  std::filesystem::create_directory(path("checkpoints"));
  const std::string instead = "; give " + path("model.safetensors").native() + " or " + path("checkpoints").native();
  test::expect_error<CheckpointError>(ErrorCode::kNotFound, {instead}, [&] { show(folder_.path(), {}); });
}

// From Python's dict to a checkpoint of Lockstep and back: nothing is lost, and the program resumes from it.
TEST_F(CheckpointTools, ConvertRunsBothWays) {
  EXPECT_EQ(convert(path("run.pt"), path("run.ckpt"), {}), Lines());
  convert(path("run.ckpt"), path("back.pt"), {});
  EXPECT_TRUE(same("run.pt", "back.pt", "model"));
  EXPECT_TRUE(same("run.pt", "back.pt", "optimizer"));
  EXPECT_TRUE(same("run.ckpt", "back.pt"));
  const Checkpoint resumed = Checkpoint::load(path("run.ckpt"));
  Trained other;
  resumed.restore_model(*other.net);
  resumed.restore_optimizer(other.optimizer);
  EXPECT_TRUE(torch::equal(other.net->weight, run_.net->weight));
  EXPECT_EQ(resumed.step(), 42);
  EXPECT_EQ(resumed.get_double("best"), 0.75);
  EXPECT_EQ(resumed.get_text("name"), "first run");
}

// What Python has saved, back in Python.
TEST_F(CheckpointTools, ConvertedValuesKeepTheirTypes) {
  c10::impl::GenericList list(c10::AnyType::get());
  list.push_back(1);
  list.push_back(c10::IValue());
  Dict arguments = make_dict();
  arguments.insert("lr", 0.5);
  arguments.insert(3, c10::ivalue::Tuple::create({c10::IValue(1.0), c10::IValue("1")}));
  const std::vector<std::pair<std::string, c10::IValue>> values{{"digits", "0012345"},
                                                                {"exponent", "1e10"},
                                                                {"word", "nan"},
                                                                {"null", "null"},
                                                                {"json", R"({"dict":[]})"},
                                                                {"whole", 2.0},
                                                                {"flag", true},
                                                                {"none", {}},
                                                                {"list", list},
                                                                {"arguments", arguments},
                                                                {"zero", -0.0},
                                                                {"seed", INT64_MIN},
                                                                {"unsigned", at::Scalar(std::uint64_t{1} << 63)},
                                                                {"end", HUGE_VAL}};
  Dict run = run_.dict();
  for (const auto& [name, value] : values) run.insert(name, value);
  write_torch_file(path("values.pt"), run);
  EXPECT_EQ(convert(path("values.pt"), path("values.ckpt"), {}), Lines());
  EXPECT_EQ(convert(path("values.ckpt"), path("back.pt"), {}), Lines());
  EXPECT_EQ(convert(path("back.pt"), path("again.ckpt"), {}), Lines());
  convert(path("again.ckpt"), path("again.pt"), {});
  for (const char* file : {"back.pt", "again.pt"}) {
    const Dict back = read_torch_file(path(file)).toGenericDict().at("values").toGenericDict();
    EXPECT_EQ(back.size(), values.size() + 2) << file;  // "best" and "name"
    for (const auto& [name, value] : values) EXPECT_EQ(back.at(name), value) << file << ": " << name;
  }
  const Checkpoint state = Checkpoint::load(path("values.ckpt"));
  EXPECT_EQ(state.get_text("digits"), "0012345");
  EXPECT_EQ(state.get_double("whole"), 2.0);
  EXPECT_TRUE(state.get_value("flag").toBool());
}

TEST_F(CheckpointTools, ConvertedTensorsAndMetricsComeBack) {
  Checkpoint state;
  state.add_model(*run_.net);
  state.add_tensors("ema", {{"fc.weight", torch::ones({2})}});
  state.add_generator();
  CheckpointManager(path("runs")).save(3, state, 2.0);
  convert(path("runs"), path("back.pt"), {});
  EXPECT_EQ(convert(path("back.pt"), path("again.ckpt"), {}), Lines());
  EXPECT_TRUE(same("runs", "again.ckpt"));
  EXPECT_TRUE(read_torch_file(path("back.pt")).toGenericDict().at("metric").isDouble());
  EXPECT_TRUE(Checkpoint::load(path("again.ckpt")).get_tensors("ema").contains("fc.weight"));
  Dict run = read_torch_file(path("back.pt")).toGenericDict();
  run.insert_or_assign("metric", std::int64_t{2});
  write_torch_file(path("whole.pt"), run);
  EXPECT_EQ(convert(path("whole.pt"), path("again.ckpt"), {}),
            Lines{"changed: [\"metric\"]: an integer becomes a float"});
  EXPECT_EQ(Checkpoint::load(path("again.ckpt")).metric(), 2.0);
}

// Which types its values had is not known.
TEST_F(CheckpointTools, ValuesOfAnOlderCheckpointAreText) {
  write_tensor_file(path("old.ckpt"), {{{"model.weight", torch::ones({1})}}, {{"value.epoch", "3"}}});
  const std::string said = joined(convert(path("old.ckpt"), path("back.pt"), {}));
  EXPECT_NE(said.find("as text"), std::string::npos) << said;
  EXPECT_NE(said.find("epoch"), std::string::npos) << said;
  const Dict back = read_torch_file(path("back.pt")).toGenericDict();
  EXPECT_EQ(back.at("values").toGenericDict().at("epoch").toStringRef(), "3");
}

// A program that went on from step 0 would set its own checkpoint aside.
TEST_F(CheckpointTools, AConvertedCheckpointHasTheStepOfItsName) {
  Dict run = run_.dict();
  EXPECT_EQ(run.erase("step"), 1U);
  write_torch_file(path("run.pt"), run);
  std::filesystem::create_directory(path("runs"));
  convert(path("run.pt"), path("runs/step-000000007.ckpt"), {});
  EXPECT_EQ(Checkpoint::load(path("runs/step-000000007.ckpt")).step(), 7);
  convert(path("run.pt"), path("run.ckpt"), {});
  std::filesystem::rename(path("run.ckpt"), path("runs/step-000000009.ckpt"));
  EXPECT_EQ(CheckpointManager(path("runs")).load_latest()->step(), 9);
}

TEST_F(CheckpointTools, WhatACheckpointCannotHoldIsRefusedOrNamed) {
  const auto converted = [&](const char* key, const c10::IValue& value) {
    Dict run = run_.dict();
    run.insert(key, value);
    write_torch_file(path("more.pt"), run);
    return joined(convert(path("more.pt"), path("more.ckpt"), {}));
  };
  const auto refused = [&](const std::string& part, const char* key, const c10::IValue& value) {
    test::expect_error<CheckpointError>(ErrorCode::kMismatch, {part}, [&] { converted(key, value); });
  };
  refused("two entries for the model", "state_dict", to_ivalue(state_dict(*run_.net)));
  refused("two entries for the optimizer", "optimizer_state_dict", state_dict(run_.optimizer));
  Dict values = make_dict();
  values.insert("best", 1);
  refused("two entries for the value \"best\"", "values", values);
  EXPECT_NE(converted("tensors", torch::ones({1})).find("left out: [\"tensors\"]"), std::string::npos);
  EXPECT_NE(converted("scheduler", make_dict()).find("left out: [\"scheduler\"]"), std::string::npos);
  Dict group = state_dict(run_.optimizer).toGenericDict().at("param_groups").toListRef()[0].toGenericDict();
  group.insert("trust_coefficient", 0.5);
  c10::impl::GenericList groups(c10::AnyType::get());
  groups.push_back(group);
  Dict optimizer = make_dict();
  optimizer.insert("param_groups", groups);
  Dict run = run_.dict();
  run.insert_or_assign("optimizer", optimizer);
  write_torch_file(path("more.pt"), run);
  test::expect_error<CheckpointError>(ErrorCode::kUnsupported, {"unknown one", "trust_coefficient"},
                                      [&] { convert(path("more.pt"), path("more.ckpt"), {}); });
}

// PyTorch up to 2.6 does not say in the options whether it is Adam or AdamW.
TEST_F(CheckpointTools, ConvertAnOptimizerOfANamedKind) {
  Dict run = run_.dict();
  for (const c10::IValue& group : run.at("optimizer").toGenericDict().at("param_groups").toListRef()) {
    EXPECT_EQ(group.toGenericDict().erase("decoupled_weight_decay"), 1U);
  }
  write_torch_file(path("old.pt"), run);
  test::expect_error<CheckpointError>(ErrorCode::kUnsupported, {"--optimizer"},
                                      [&] { convert(path("old.pt"), path("run.ckpt"), {}); });
  convert(path("old.pt"), path("run.ckpt"), {.optimizer = "AdamW"});
  Trained other;
  Checkpoint::load(path("run.ckpt")).restore_optimizer(other.optimizer);
  EXPECT_FALSE(wrong_options(path("run.pt"), {.optimizer = "AdamW"}).empty());
}

// Python's options, for which LibTorch has no place, and their types.
TEST_F(CheckpointTools, ConvertedOptimizersKeepTheOptionsOfPython) {
  Dict run = run_.dict();
  const Dict optimizer = run.at("optimizer").toGenericDict();
  Dict group = optimizer.at("param_groups").toListRef()[0].toGenericDict();
  c10::impl::GenericList names(c10::AnyType::get());
  names.push_back("weight");
  names.push_back("bias");
  const std::vector<std::pair<std::string, c10::IValue>> options{
      {"name", "backbone"}, {"param_names", names}, {"lr", 1},      {"foreach", true},
      {"fused", false},     {"capturable", true},   {"scale", 0.5}, {"note", c10::IValue()}};
  for (const auto& [name, value] : options) group.insert_or_assign(name, value);
  Dict state = optimizer.at("state").toGenericDict().at(0).toGenericDict();
  state.insert_or_assign("step", 3);
  state.insert("note", c10::IValue());
  write_torch_file(path("own.pt"), run);
  test::expect_error<CheckpointError>(ErrorCode::kUnsupported, {"scale", "--optimizer"},
                                      [&] { convert(path("own.pt"), path("own.ckpt"), {}); });
  EXPECT_EQ(convert(path("own.pt"), path("own.ckpt"), {.optimizer = "AdamW"}), Lines());
  EXPECT_EQ(convert(path("own.ckpt"), path("back.pt"), {}), Lines());
  EXPECT_TRUE(same("own.pt", "back.pt", "optimizer"));
  Trained other;
  Checkpoint::load(path("own.ckpt")).restore_optimizer(other.optimizer);
  EXPECT_EQ(other.optimizer.param_groups()[0].options().get_lr(), 1.0);
  Checkpoint again = Checkpoint::load(path("own.ckpt"));
  again.add_optimizer(other.optimizer);  // what C++ saves then has its own options alone
  again.save(path("own.ckpt"));
  convert(path("own.ckpt"), path("back.pt"), {});
  const auto back = read_torch_file(path("back.pt")).toGenericDict().at("optimizer").toGenericDict();
  EXPECT_FALSE(back.at("param_groups").toListRef()[0].toGenericDict().contains("name"));

  // What has no place is named.
  optimizer.insert("hyper", 1);
  group.insert_or_assign("lr", torch::tensor(0.5));
  state.insert_or_assign("step", torch::tensor(3.0, torch::kDouble));
  write_torch_file(path("own.pt"), run);
  const Lines lines = convert(path("own.pt"), path("own.ckpt"), {.optimizer = "AdamW"});
  EXPECT_EQ(lines, (Lines{R"(left out: ["optimizer"]["hyper"]: optimizers have "state" and "param_groups" alone)",
                          R"(changed: ["optimizer"]["param_groups"][0]["lr"]: a tensor became a number)",
                          R"(changed: ["optimizer"]["state"][0]["step"]: it becomes a tensor of float32)"}));
}

// Python's load_state_dict() takes any dict, so other keys would do nothing there, and say nothing.
TEST_F(CheckpointTools, SchedulersHaveThePythonKeys) {
  const auto converted = [&](const auto& scheduler) {
    Checkpoint state;
    state.add_model(*run_.net);
    state.add_scheduler(scheduler);
    state.save(path("run.ckpt"));
    convert(path("run.ckpt"), path("back.pt"), {});
    return read_torch_file(path("back.pt")).toGenericDict().at("scheduler").toGenericDict();
  };
  torch::optim::StepLR step(run_.optimizer, 2);
  for (int i = 0; i < 5; ++i) step.step();
  const Dict steps = converted(step);
  EXPECT_EQ(steps.at("last_epoch").toInt(), 4);
  EXPECT_EQ(steps.at("_step_count").toInt(), 5);
  torch::optim::ReduceLROnPlateauScheduler plateau(run_.optimizer);
  EXPECT_EQ(converted(plateau).at("best").toDouble(), std::numeric_limits<double>::infinity());
  for (const float loss : {0.5F, 0.75F, 0.75F}) plateau.step(loss);
  const Dict waits = converted(plateau);
  EXPECT_EQ(waits.at("best").toDouble(), 0.5);
  EXPECT_EQ(waits.at("num_bad_epochs").toInt(), 2);
  EXPECT_EQ(waits.at("cooldown_counter").toInt(), 0);
  EXPECT_EQ(waits.at("last_epoch").toInt(), 3);
}

// What LibTorch has no type for is read as another one.
TEST_F(CheckpointTools, ConvertSaysWhichTypesChange) {
  write_pickle_file(path("odd.pt"), "\x80\x02}(" + short_text("by") +
                                        "C\x01"
                                        "a" +
                                        short_text("by2") +
                                        "C\x01"
                                        "b" +
                                        short_text("set") + "\x8f(K\x01\x90" + short_text("dt") + "ctorch\nfloat16\n" +
                                        short_text("size") + "ctorch\nSize\nK\x01\x85\x85R" + short_text("od") +
                                        "ccollections\nOrderedDict\n)R" + short_text("ctr") +
                                        "ccollections\nCounter\n}\x85Ru.");
  const Lines expected{R"(changed: 1 Counter to dict: ["ctr"])",      R"(changed: 1 OrderedDict to dict: ["od"])",
                       R"(changed: 2 bytes to str: ["by"], ["by2"])", R"(changed: 1 set to list: ["set"])",
                       R"(changed: 1 torch.Size to tuple: ["size"])", R"(changed: 1 torch.dtype to str: ["dt"])"};
  EXPECT_EQ(convert(path("odd.pt"), path("b.pt"), {}), expected);
  EXPECT_EQ(convert(path("odd.pt"), path("b.pt"), {.entry = "by"}), (Lines{R"(changed: 1 bytes to str: ["by"])"}));
  EXPECT_EQ(convert(path("b.pt"), path("c.pt"), {}), Lines());
}

TEST_F(CheckpointTools, ConvertStateDicts) {
  convert(path("run.pt"), path("half.safetensors"), {.entry = "model", .dtype = "float16", .add_prefix = "module."});
  EXPECT_EQ(read_state_dict(path("half.safetensors"))["module.weight"].scalar_type(), torch::kHalf);
  convert(path("half.safetensors"), path("plain.pt"), {.dtype = "float32", .strip_prefix = "module."});
  const StateDict plain = read_state_dict(path("plain.pt"));
  EXPECT_TRUE(torch::allclose(plain["weight"], run_.net->weight, 1e-2));
  EXPECT_FALSE(torch::equal(plain["weight"], run_.net->weight));
  const auto refused = [&](ErrorCode code, const std::string& to, const std::string& part, ConvertOptions options) {
    test::expect_error<CheckpointError>(code, {part}, [&] { convert(path("run.pt"), path(to), options); });
    EXPECT_FALSE(std::filesystem::exists(path(to)));
  };
  refused(ErrorCode::kMismatch, "a.safetensors", "Name the entry", {});
  refused(ErrorCode::kInvalidArgument, "a.pt", "int8", {.entry = "model", .dtype = "int8"});
  refused(ErrorCode::kMismatch, "a.pt", "no name begins", {.entry = "model", .strip_prefix = "encoder."});
  refused(ErrorCode::kMismatch, "a.ckpt", "\"model\"", {.entry = "model"});
}

// Those of docs/checkpoints.md.
TEST_F(CheckpointTools, TheCommandsOfThePage) {
  CheckpointManager manager(path("runs/a"));
  Checkpoint state;
  state.add_model(*run_.net);
  manager.save(1, state);
  std::filesystem::rename(path("model.safetensors"), path("weights.safetensors"));
  Dict model = make_dict();
  model.insert("module.weight", torch::ones({2}));
  Dict wrapped = make_dict();
  wrapped.insert("model", model);
  write_torch_file(path("wrapped.pt"), wrapped);
  for (const char* words : {"show runs/a", "show run.pt --entry model", "verify runs/a weights.safetensors",
                            "convert run.pt step-000000042.ckpt",
                            "convert wrapped.pt half.safetensors --entry model --dtype float16 --strip-prefix module.",
                            "convert runs/a run.pt"}) {
    const test::Finished end = test::run_program(
        {"env", "-C", folder_.path().native(), "sh", "-c", std::string(LOCKSTEP_PROGRAM " checkpoint ") + words});
    EXPECT_EQ(end.exit_code, 0) << words << ": " << end.out << end.err;
  }
}

TEST_F(CheckpointTools, AreAProgram) {
  const auto lockstep = [](std::vector<std::string> words) {
    words.insert(words.begin(), {LOCKSTEP_PROGRAM, "checkpoint"});
    return test::run_program(words);
  };
  const std::string run = path("run.pt");
  const std::string model = path("model.safetensors");
  const test::Finished shown = lockstep({"show", run, "--entry", "model"});
  EXPECT_EQ(shown.exit_code, 0) << shown.err;
  EXPECT_NE(shown.out.find("weight: float32 [2, 3]\n"), std::string::npos) << shown.out;
  EXPECT_EQ(lockstep({"convert", run, path("copy.pt")}).exit_code, 0);
  EXPECT_EQ(lockstep({"verify", path("copy.pt"), model}).exit_code, 0);
  write_torch_file(path("complex.pt"), torch::zeros({2}, torch::kComplexHalf));
  EXPECT_EQ(lockstep({"convert", path("complex.pt"), path("copy.pt")}).err, "");
  folder_.write("bad\n.pt", "PK");
  const test::Finished bad = lockstep({"verify", path("bad\n.pt"), model});
  EXPECT_EQ(bad.exit_code, 1);
  EXPECT_NE(bad.out.find("bad\\x0a.pt: "), std::string::npos) << bad.out;
  EXPECT_EQ(lockstep({"convert", run}).exit_code, 2);
  const test::Finished integers = lockstep({"convert", run, path("i.pt"), "--entry", "model", "--dtype", "int8"});
  EXPECT_EQ(integers.exit_code, 2);
  EXPECT_NE(integers.err.find("found \"int8\""), std::string::npos) << integers.err;
  EXPECT_EQ(lockstep({}).exit_code, 2);
}

}  // namespace
}  // namespace lockstep::checkpoint
