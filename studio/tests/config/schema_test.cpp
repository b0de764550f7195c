// Configurations as a program declares and reads them: layers, types, limits, origins.
#include "lockstep/config/schema.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/config/command_line.h"
#include "support/scratch_folder.h"

namespace lockstep::config {
namespace {

using namespace std::chrono_literals;
using test::ScratchFolder;

enum class Precision { kFp32, kBf16 };

// A key of every type.
struct Options {
  bool shuffle = true;
  int epochs = 10;
  std::int64_t seed = 0;
  double rate = 0.5;
  std::string name = "run";
  std::chrono::milliseconds timeout = 30min;
  std::vector<int> devices;
  std::vector<std::int64_t> steps;
  std::vector<double> betas{0.9, 0.999};
  std::vector<std::string> tags;
  std::optional<int> stop;
  std::optional<double> clip;
  std::optional<std::string> resume;
  Precision precision = Precision::kFp32;
  double decay = 0;
};

class ConfigSchema : public testing::Test {
 protected:
  ConfigSchema() {
    Section trainer = schema_.section("trainer", "How the model is trained");
    trainer.key("shuffle", options_.shuffle, "Whether the order changes");
    trainer.key("epochs", options_.epochs, "Passes over the data").at_least(1).environment("TEST_EPOCHS");
    trainer.key("seed", options_.seed, "Seed");
    trainer.key("rate", options_.rate, "First rate").between(0, 10);
    trainer.key("name", options_.name, "Name of the run").choices({"run", "walk"});
    trainer.key("timeout", options_.timeout, "How long to wait");
    trainer.key("devices", options_.devices, "GPUs").at_least(0).environment("TEST_DEVICES");
    trainer.key("steps", options_.steps, "Steps");
    trainer.key("tags", options_.tags, "Words");
    trainer.key("stop", options_.stop, "The last step").option("--last-step");
    trainer.key("clip", options_.clip, "Largest norm").environment("TEST_CLIP");
    trainer.key("resume", options_.resume, "Checkpoint");
    trainer.key("precision", options_.precision, {{"fp32", Precision::kFp32}, {"bf16", Precision::kBf16}}, "Type");
    Section optimizer = schema_.section("trainer.optimizer", "The optimizer");
    optimizer.key("betas", options_.betas, "Adam's").between(0, 1);
    optimizer.key("decay", options_.decay, "Weight decay").at_least(0);
  }

  // All layers at once, from texts.
  Status read(const std::string& yaml, const Environment::Variables& variables = {}, std::vector<Option> options = {}) {
    folder_.write("c.yaml", yaml);
    return schema_.read({folder_.path("c.yaml"), Environment(variables), std::move(options)});
  }
  // The message with the folder's path taken out.
  std::string errors_of(const std::string& yaml, const Environment::Variables& variables = {},
                        std::vector<Option> options = {}) {
    const Status status = read(yaml, variables, std::move(options));
    EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
    std::string text = status.message();
    const std::string prefix = folder_.path().native() + "/";
    for (std::size_t at = text.find(prefix); at != std::string::npos; at = text.find(prefix)) {
      text.erase(at, prefix.size());
    }
    return text;
  }

  ScratchFolder folder_;
  Options options_;
  Schema schema_;
};

TEST_F(ConfigSchema, AFileFillsFieldsOfEveryType) {
  const Status status = read(
      "# a comment\n"
      "trainer:\n"
      "  shuffle: false\n  epochs: 3\n  seed: 9000000000\n  rate: 1e-3\n  name: \"walk\"\n  timeout: 5min\n"
      "  devices: [0, 2]\n  steps:\n    - 5000000000\n    - 7\n  tags: [a, 'b c', 12]\n"
      "  stop: 4\n  clip: null\n  resume: ~\n  precision: bf16\n"
      "  optimizer: {betas: [0.5, 0.25], decay: 1}\n");
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_FALSE(options_.shuffle);
  EXPECT_EQ(options_.epochs, 3);
  EXPECT_EQ(options_.seed, 9000000000);
  EXPECT_EQ(options_.rate, 1e-3);
  EXPECT_EQ(options_.name, "walk");
  EXPECT_EQ(options_.timeout, 5min);
  EXPECT_EQ(options_.devices, (std::vector<int>{0, 2}));
  EXPECT_EQ(options_.steps, (std::vector<std::int64_t>{5000000000, 7}));
  EXPECT_EQ(options_.tags, (std::vector<std::string>{"a", "b c", "12"}));
  EXPECT_EQ(options_.stop, 4);
  EXPECT_EQ(options_.clip, std::nullopt);
  EXPECT_EQ(options_.resume, std::nullopt);
  EXPECT_EQ(options_.precision, Precision::kBf16);
  EXPECT_EQ(options_.betas, (std::vector<double>{0.5, 0.25}));
  EXPECT_EQ(options_.decay, 1);
}

TEST_F(ConfigSchema, TheHigherLayerWinsAndEveryValueKnowsItsOrigin) {
  const auto origin = [&](const char* path) { return schema_.find(path)->origin().place; };
  const std::string yaml = "trainer:\n  epochs: 3\n  devices: [1]\n  seed: 5\n";
  ASSERT_TRUE(read(yaml, {{"TEST_EPOCHS", "4"}, {"TEST_DEVICES", "2,3"}, {"TEST_CLIP", "none"}},
                   {{"--epochs", "5"}, {"--trainer.epochs", "6"}, {"--last-step", "none"}})
                  .ok());
  EXPECT_EQ(options_.epochs, 6);
  EXPECT_EQ(options_.devices, (std::vector<int>{2, 3}));
  EXPECT_EQ(options_.seed, 5);
  EXPECT_EQ(options_.stop, std::nullopt);
  EXPECT_EQ(origin("trainer.epochs"), "--trainer.epochs");
  EXPECT_EQ(origin("trainer.devices"), "TEST_DEVICES");
  EXPECT_EQ(origin("trainer.seed"), folder_.path("c.yaml") + ":4:9");
  EXPECT_EQ(origin("trainer.rate"), "default");
  EXPECT_EQ(schema_.find("trainer.seed")->origin().layer, Layer::kFile);
}

TEST_F(ConfigSchema, AnEmptyFileAndEmptySectionsAreDefaults) {
  for (const char* yaml : {"", "# nothing\n", "---\n", "trainer:\n", "trainer: {}\n", "trainer:\n  optimizer:\n",
                           "\xef\xbb\xbftrainer:\n"}) {
    const Status status = read(yaml);
    EXPECT_TRUE(status.ok()) << yaml << status.message();
  }
  EXPECT_EQ(options_.epochs, 10);
}

TEST_F(ConfigSchema, WrongValuesSayWhatWasExpectedAndFound) {
  struct Case {
    const char* yaml;
    const char* error;
  };
  const Case cases[] = {
      {"shuffle: yes", "trainer.shuffle: expected true or false, found 'yes'"},
      {"epochs: 0", "trainer.epochs: expected a whole number of at least 1 that fits in 32 bits, found '0'"},
      {"epochs: 1.5", "trainer.epochs: expected a whole number of at least 1 that fits in 32 bits, found '1.5'"},
      {"epochs: 4294967297",
       "trainer.epochs: expected a whole number of at least 1 that fits in 32 bits, found '4294967297'"},
      {"epochs: \"3\"",
       "trainer.epochs: expected a whole number of at least 1 that fits in 32 bits, found the text '3'"},
      {"epochs:", "trainer.epochs: expected a whole number of at least 1 that fits in 32 bits, found nothing"},
      {"epochs: [1]",
       "trainer.epochs: expected a whole number of at least 1 that fits in 32 bits, found a list of '1'"},
      {"rate: 11", "trainer.rate: expected a number from 0 to 10, found '11'"},
      {"rate: nan", "trainer.rate: expected a number from 0 to 10, found 'nan'"},
      {"name: fly", "trainer.name: expected one of run, walk, found 'fly'"},
      {"timeout: 5 parsecs", "trainer.timeout: expected a time such as 30s or 5min, found '5 parsecs'"},
      {"timeout: -1s", "trainer.timeout: expected a time such as 30s or 5min, found '-1s'"},
      {"devices: 0", "trainer.devices: expected a list of whole numbers of at least 0 such as [0, 2], found '0'"},
      {"devices: [0, -1]",
       "trainer.devices: expected a list of whole numbers of at least 0 such as [0, 2], found a list of '0', '-1'"},
      {"devices: [[0]]",
       "trainer.devices: expected a list of whole numbers of at least 0 such as [0, 2], found a list that holds a list "
       "of '0'"},
      {"clip: x", "trainer.clip: expected a number or null, found 'x'"},
      {"precision: fp8", "trainer.precision: expected one of fp32, bf16, found 'fp8'"},
      {"optimizer: 3", "trainer.optimizer: expected a section with keys, found '3'"},
  };
  for (const Case& c : cases) {
    const std::string text = errors_of(std::string("trainer:\n  ") + c.yaml + "\n");
    EXPECT_EQ(text.substr(std::min(text.size(), text.find(": ") + 2)), c.error);
    EXPECT_TRUE(text.starts_with("c.yaml:2:")) << text;
  }
  EXPECT_EQ(options_.epochs, 10) << "a field was changed by a wrong file";
}

TEST_F(ConfigSchema, WrongTextsOutsideOfTheFileNameTheirSource) {
  EXPECT_EQ(errors_of("trainer:\n  epochs: x\n", {{"TEST_EPOCHS", "many"}}, {{"--rate", ""}, {"--devices", "0,,1"}}),
            "c.yaml:2:11: trainer.epochs: expected a whole number of at least 1 that fits in 32 bits, found 'x'\n"
            "the variable TEST_EPOCHS: expected a whole number of at least 1 that fits in 32 bits, found 'many'\n"
            "--rate: expected a number from 0 to 10, found ''\n"
            "--devices: expected a list of whole numbers of at least 0 such as [0, 2], found a list of '0', '', '1'");
}

TEST_F(ConfigSchema, UnknownKeysNameTheNearest) {
  EXPECT_EQ(errors_of("trainer:\n  epoch: 3\n  Shuffel: true\n  zzz: 1\n  decay: 1\n  optimizer:\n    beta: [1]\n"),
            "c.yaml:2:3: unknown key 'epoch' in section 'trainer'; the nearest known one is 'epochs'\n"
            "c.yaml:3:3: unknown key 'Shuffel' in section 'trainer'; the nearest known one is 'shuffle'\n"
            "c.yaml:4:3: unknown key 'zzz' in section 'trainer'; known are shuffle, epochs, seed, rate, name, timeout, "
            "devices, steps, tags, stop, clip, resume, ...\n"
            "c.yaml:5:3: unknown key 'decay' in section 'trainer'; the key of this name belongs to section "
            "'trainer.optimizer'\n"
            "c.yaml:7:5: unknown key 'beta' in section 'trainer.optimizer'; the nearest known one is 'betas'");
  EXPECT_EQ(errors_of("trianer:\n  epochs: 3\ntrainer.epochs: 3\n"),
            "c.yaml:1:1: unknown section 'trianer'; the nearest known one is 'trainer'\n"
            "c.yaml:3:1: unknown key 'trainer.epochs'; known are trainer");
}

TEST_F(ConfigSchema, SectionsOfOthersAreLeftAlone) {
  EXPECT_EQ(errors_of("launch:\n  x: 1\n"), "c.yaml:1:1: unknown section 'launch'; known are trainer");
  schema_.ignore_section("launch");
  EXPECT_TRUE(read("launch:\n  x: 1\ntrainer:\n  epochs: 3\n").ok());
  schema_.ignore_other_sections();
  EXPECT_TRUE(read("model:\n  x: 1\n").ok());
  EXPECT_EQ(errors_of("trainr:\n  x: 1\nmodel: 3\n"),
            "c.yaml:1:1: unknown section 'trainr'; the nearest known one is 'trainer'\n"
            "c.yaml:3:1: unknown key 'model'; known are trainer");
}

TEST_F(ConfigSchema, MissingRequiredValuesAreNamed) {
  std::string data;
  schema_.section("data", "The data").key("folder", data, "Where the pictures are").required();
  EXPECT_EQ(errors_of("trainer:\n"),
            "data.folder: no value was given; a text is expected in the file or after "
            "--data.folder");
  EXPECT_TRUE(read("", {}, {{"--folder", "here"}}).ok());
  EXPECT_EQ(data, "here");
}

TEST_F(ConfigSchema, AKeyDeclaredTwiceIsTheProgramsMistake) {
  int again = 0;
  schema_.section("trainer", "").key("epochs", again, "");
  EXPECT_EQ(read("").message(), "the program declares the key trainer.epochs twice");
  const char* const argv[] = {"train", "--epochs", "3"};
  EXPECT_EQ(configure(schema_, 3, argv).status().message(), "the program declares the key trainer.epochs twice");
}

TEST_F(ConfigSchema, WhatIsPrintedReadsBackTheSame) {
  options_.name = "walk";
  ASSERT_TRUE(
      read("trainer:\n  tags: [yes, 'a: b', \"quote \\\" \\\\ \\n\", '', '1', null1]\n  resume: 'null'\n  rate: 0.1\n"
           "  timeout: 1500ms\n  stop: 3\n  optimizer:\n    betas: []\n")
          .ok());
  const std::string printed = schema_.print();
  EXPECT_NE(printed.find("  rate: 0.1 "), std::string::npos) << printed;
  EXPECT_NE(printed.find("# default"), std::string::npos);
  const Options before = options_;
  options_ = Options();
  const Status status = read(printed);
  ASSERT_TRUE(status.ok()) << status.message() << printed;
  EXPECT_EQ(options_.tags, before.tags);
  EXPECT_EQ(options_.resume, before.resume);
  EXPECT_EQ(options_.rate, before.rate);
  EXPECT_EQ(options_.timeout, 1500ms);
  EXPECT_EQ(options_.stop, 3);
  EXPECT_EQ(options_.clip, std::nullopt);
  EXPECT_TRUE(options_.betas.empty());
}

class ConfigCommandLine : public ConfigSchema {
 protected:
  // The words that are not options go to words_.
  Status parse(const std::vector<const char*>& words) {
    std::vector<const char*> argv{"train"};
    argv.insert(argv.end(), words.begin(), words.end());
    return configure(schema_, static_cast<int>(argv.size()), argv.data(), &words_).status();
  }

  std::vector<std::string> words_;
};

TEST_F(ConfigCommandLine, TakesKeysInEverySpelling) {
  folder_.write("c.yaml", "trainer:\n  epochs: 3\n  seed: 9\n");
  const std::string file = folder_.path("c.yaml");
  const Status status = parse({"--config", file.c_str(), "data", "-5", "--epochs=4", "--no-shuffle",
                               "--trainer.optimizer.decay", "1", "--last_step", "7", "--", "--epochs"});
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(words_, (std::vector<std::string>{"data", "-5", "--epochs"}));
  EXPECT_EQ(options_.epochs, 4);
  EXPECT_EQ(options_.seed, 9);
  EXPECT_FALSE(options_.shuffle);
  EXPECT_EQ(options_.decay, 1);
  EXPECT_EQ(options_.stop, 7);
  EXPECT_FALSE(schema_.print_config());
}

TEST_F(ConfigCommandLine, PrintsHelpAndTheConfigurationInTheSameNames) {
  const auto printed = [&](const char* word) {
    testing::internal::CaptureStdout();
    const std::vector<const char*> argv{"train", word};
    const Result<bool> configured = configure(schema_, 2, argv.data());
    const std::string text = testing::internal::GetCapturedStdout();
    EXPECT_TRUE(configured.ok() && !configured.value()) << configured.status().message();
    return text;
  };
  const std::string help = printed("--help");
  for (const char* part : {"How the model is trained (trainer):\n", "--config VALUE", "--last-step VALUE", "--shuffle ",
                           "Passes over the data (default 10; a whole number of at least 1 that fits in 32 bits; "
                           "variable TEST_EPOCHS)"}) {
    EXPECT_NE(help.find(part), std::string::npos) << part << help;
  }
  EXPECT_NE(printed("--print_config").find("  epochs: 10 "), std::string::npos);
}

// A word that nobody reads would be an option that silently does not hold.
TEST_F(ConfigCommandLine, AProgramTakesOptionsAlone) {
  const auto configured = [&](const std::vector<const char*>& words) {
    std::vector<const char*> argv{"train"};
    argv.insert(argv.end(), words.begin(), words.end());
    return configure(schema_, static_cast<int>(argv.size()), argv.data());
  };
  for (const auto& [words, word] :
       std::vector<std::pair<std::vector<const char*>, std::string>>{{{"--shuffle", "false"}, "'false'"},
                                                                     {{"c.yaml"}, "'c.yaml'"},
                                                                     {{"--epochs", "3", "--", "--rate"}, "'--rate'"}}) {
    const Result<bool> found = configured(words);
    EXPECT_EQ(found.status().code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(found.status().message(), "expected options alone, found the word " + word +
                                            "; a file of options is given with --config FILE, and the value of a flag "
                                            "with '=': --FLAG=false");
  }
  EXPECT_EQ(options_.epochs, 10);
  const Result<bool> right = configured({"--shuffle=false", "--epochs", "3"});
  ASSERT_TRUE(right.ok()) << right.status().message();
  EXPECT_TRUE(right.value());
  EXPECT_FALSE(options_.shuffle);
  EXPECT_EQ(options_.epochs, 3);
}

TEST_F(ConfigCommandLine, RefusesWhatItDoesNotKnow) {
  EXPECT_EQ(parse({"--epoch", "3"}).message(), "unknown option '--epoch'; the nearest known one is --epochs");
  EXPECT_EQ(parse({"--trainer.epoch", "3"}).message(),
            "unknown option '--trainer.epoch'; the nearest known one is --trainer.epochs");
  EXPECT_EQ(parse({"--no-shuffle=true"}).message(),
            "--no-shuffle takes no value, found 'true'; write --shuffle=true or --shuffle=false");
  EXPECT_TRUE(options_.shuffle);
  EXPECT_EQ(parse({"--xylophone"}).message(), "unknown option '--xylophone'; --help lists all");
  EXPECT_EQ(parse({"--no-epochs"}).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(parse({"--epochs"}).message(), "--epochs: its value is missing");
  EXPECT_EQ(parse({"--config"}).message(), "--config: its value is missing");
  EXPECT_EQ(parse({"--resume", "--shuffle"}).message(),
            "--resume: its value is missing: '--shuffle' is the next option; if it is meant as the value, write "
            "--resume=--shuffle");
  EXPECT_TRUE(parse({"--resume=--shuffle", "--seed", "-1"}).ok());
  EXPECT_EQ(options_.resume, "--shuffle");
  EXPECT_EQ(options_.seed, -1);
}

}  // namespace
}  // namespace lockstep::config
