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

// From a checkpoint of Lockstep to the dict of a trainer in Python: nothing is lost.
TEST_F(CheckpointTools, ConvertedRunsKeepAllOfACheckpoint) {
  c10::impl::GenericList list(c10::AnyType::get());
  list.push_back(1);
  list.push_back(c10::IValue());
  Dict arguments = make_dict();
  arguments.insert("lr", 0.5);
  arguments.insert(3, c10::ivalue::Tuple::create({c10::IValue(1.0), c10::IValue("1")}));
  const std::vector<std::pair<std::string, c10::IValue>> values{{"digits", "0012345"},
                                                                {"exponent", "1e10"},
                                                                {"word", "nan"},
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
  Checkpoint state;
  state.add_model(*run_.net);
  state.add_optimizer(run_.optimizer);
  state.add_tensors("ema", {{"fc.weight", torch::ones({2})}});
  state.add_generator();
  for (const auto& [name, value] : values) state.set_value(name, value);
  CheckpointManager(path("runs")).save(3, state, 2.0);
  EXPECT_EQ(convert(path("runs"), path("back.pt"), {}), Lines());
  EXPECT_TRUE(same("run.pt", "back.pt", "model"));
  EXPECT_TRUE(same("run.pt", "back.pt", "optimizer"));
  const Dict back = read_torch_file(path("back.pt")).toGenericDict();
  EXPECT_EQ(back.at("step").toInt(), 3);
  EXPECT_EQ(back.at("metric").toDouble(), 2.0);
  EXPECT_TRUE(back.at("tensors").toGenericDict().contains("ema.fc.weight"));
  EXPECT_TRUE(back.contains("generators"));
  const Dict found = back.at("values").toGenericDict();
  EXPECT_EQ(found.size(), values.size());
  for (const auto& [name, value] : values) EXPECT_EQ(found.at(name), value) << name;
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
  refused(ErrorCode::kInvalidArgument, "a.ckpt", "which a program writes", {.entry = "model"});
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
