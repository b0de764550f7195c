// What a file may hold, and what is refused: hostile files, files that are none.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <random>
#include <string>

#include "lockstep/config/schema.h"
#include "support/scratch_folder.h"

namespace lockstep::config {
namespace {

using test::ScratchFolder;

class ConfigFile : public testing::Test {
 protected:
  ConfigFile() {
    Section launch = schema_.section("launch", "");
    launch.key("workers", workers_, "");
    launch.key("name", name_, "");
  }

  Status read(const std::string& yaml) {
    folder_.write("c.yaml", yaml);
    return schema_.read({folder_.path("c.yaml"), {}, {}});
  }
  // The message without the folder.
  std::string error_of(const std::string& yaml) {
    const Status status = read(yaml);
    EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument) << yaml.substr(0, 100);
    std::string text = status.message();
    for (std::size_t at = 0; (at = text.find(folder_.path().native() + "/")) != std::string::npos;) {
      text.erase(at, folder_.path().native().size() + 1);
    }
    return text;
  }

  ScratchFolder folder_;
  int workers_ = 1;
  std::string name_;
  Schema schema_;
};

TEST_F(ConfigFile, SyntaxErrorsHaveLineAndColumn) {
  EXPECT_EQ(error_of("launch:\n  workers: [1, 2\n"), "c.yaml:3:1: not YAML: end of sequence flow not found");
  EXPECT_EQ(error_of("launch:\n\tworkers: 1\n"), "c.yaml:2:9: not YAML: illegal map value");
  EXPECT_TRUE(error_of("launch:\n  workers: 1\n name: x\n").starts_with("c.yaml:3:2: not YAML: "));
  EXPECT_EQ(error_of("launch:\n  name: \"open\n  workers: 1\n"), "c.yaml:2:9: this quote is not closed");
  EXPECT_EQ(error_of("launch:\n  größe: 'it''s open\n"), "c.yaml:2:10: this quote is not closed");
}

TEST_F(ConfigFile, WhatIsNoMapOfSectionsIsRefused) {
  EXPECT_EQ(error_of("- 1\n- 2\n"), "c.yaml:1:1: expected sections with keys, found a list of '1', '2'");
  EXPECT_EQ(error_of("just words\n"), "c.yaml:1:1: expected sections with keys, found 'just words'");
  EXPECT_EQ(error_of("launch:\n  [a]: 1\n"), "c.yaml:2:3: a key must be a word");
  EXPECT_EQ(error_of("launch:\n---\nlaunch:\n"), "c.yaml:3:1: a second document (after ---) is not supported");
  EXPECT_EQ(error_of("launch:\n  workers: !!int 3\n"),
            "c.yaml:2:12: the tag 'tag:yaml.org,2002:int' is not supported; write the value alone");
}

TEST_F(ConfigFile, KeysThatComeTwiceNameTheFirst) {
  EXPECT_EQ(error_of("launch:\n  workers: 1\n  workers: 2\nlaunch:\n  name: x\n"),
            "c.yaml:3:3: the key 'workers' is here twice, first on line 2; remove one\n"
            "c.yaml:4:1: the key 'launch' is here twice, first on line 1; remove one");
}

TEST_F(ConfigFile, AliasesAndMergesAreRefused) {
  const std::string refused = "aliases (*name) and merge keys are not supported; write the value out";
  EXPECT_EQ(error_of("launch: &a\n  workers: 1\nother: *a\n"),
            "c.yaml:3:1: unknown key 'other'; known are launch\nc.yaml:3:8: " + refused);
  EXPECT_EQ(error_of("launch:\n  <<: {workers: 3}\n"),
            "c.yaml:2:3: merge keys (<<) are not supported; write the keys "
            "out");
  // A bomb: each level would hold ten times the one before.
  std::string bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 20; ++i) {
    std::string aliases;
    for (int j = 0; j < 10; ++j) aliases += (j == 0 ? "*a" : ", *a") + std::to_string(i - 1);
    bomb += fmt::format("a{0}: &a{0} [{1}]\n", i, aliases);
  }
  const std::string text = error_of(bomb);
  EXPECT_TRUE(text.ends_with("\nand 190 more")) << text;
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 20);
}

TEST_F(ConfigFile, DeepNestingEndsEarly) {
  const std::string deep(100'000, '[');
  EXPECT_NE(error_of("launch: " + deep).find("levels within one another"), std::string::npos);
  std::string maps;
  for (int i = 0; i < 40; ++i) maps += std::string(static_cast<std::size_t>(i), ' ') + "a:\n";
  EXPECT_NE(error_of(maps).find("more than 32 levels within one another"), std::string::npos);
}

// Would take minutes if each place were counted from the beginning of the line.
TEST_F(ConfigFile, ALongLineIsReadAtOnce) {
  std::string line = "launch: {größe: [";
  for (int i = 0; i < 400'000; ++i) line += "1,";
  EXPECT_NE(error_of(line + "1], workers: x}").find("c.yaml:1:800031: launch.workers: expected"), std::string::npos);
}

TEST_F(ConfigFile, BytesThatAreNoTextHaveTheirPlace) {
  EXPECT_EQ(error_of(std::string("launch:\n  name: a\0b\n", 20)),
            "c.yaml:2:10: this is not a text in UTF-8: byte 0x00");
  EXPECT_EQ(error_of("launch:\n  name: \xff\n"), "c.yaml:2:9: this is not a text in UTF-8: byte 0xff");
  EXPECT_EQ(error_of(std::string("\x7f"
                                 "ELF\x02\x01",
                                 6)),
            "c.yaml:1:1: this is not a text in UTF-8: byte 0x7f");
  EXPECT_TRUE(read("launch:\n  name: größe\n").ok());
  EXPECT_EQ(name_, "größe");
}

TEST_F(ConfigFile, NamesFromTheFileCannotMoveTheTerminalsCursor) {
  const std::string text = error_of("\"\\e[2Jx\\nlockstep: all is well\": 1\n");
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  EXPECT_EQ(text.find('\n'), std::string::npos);
}

TEST_F(ConfigFile, FilesThatCannotBeReadSaySo) {
  const auto code_of = [&](const std::string& path) { return schema_.read({path, {}, {}}).code(); };
  EXPECT_EQ(code_of(folder_.path("none.yaml")), ErrorCode::kNotFound);
  EXPECT_EQ(code_of(folder_.path()), ErrorCode::kCorrupt);
  EXPECT_EQ(code_of("/dev/zero"), ErrorCode::kCorrupt);
  ASSERT_EQ(::mkfifo(folder_.path("fifo").c_str(), 0600), 0);
  EXPECT_EQ(code_of(folder_.path("fifo")), ErrorCode::kCorrupt);
  folder_.write("large.yaml", std::string(Schema::kMostBytes + 1, '#'));
  const Status large = schema_.read({folder_.path("large.yaml"), {}, {}});
  EXPECT_EQ(large.code(), ErrorCode::kInvalidArgument);
  EXPECT_NE(large.message().find("large.yaml: this file is larger than 1048576 bytes"), std::string::npos);
}

TEST_F(ConfigFile, NoFileOfTheLargestSizeTakesLong) {
  const std::size_t half = Schema::kMostBytes / 8;
  std::string keys = "launch:\n";
  for (int i = 0; keys.size() < half; ++i) keys += "  k" + std::to_string(i) + ": 1\n";
  EXPECT_NE(error_of(keys).find("unknown key 'k0'"), std::string::npos);
  EXPECT_NE(error_of("launch:\n  workers: " + std::string(half, '9') + "\n").find("...'"), std::string::npos);
}

// No crash and no exception, whatever the bytes.
TEST_F(ConfigFile, RandomChangesOfAFileAreReadOrRefused) {
  const std::string good = "launch:\n  workers: 3 # two\n  name: \"a\\tb\"\nother: {a: [1, 2], b: |\n  text\n";
  std::mt19937 random(7);
  const std::string pieces = "[]{}:,-&*!|>'\"%@`#\n\t ?<~=abc019\\\x80\xc3";
  for (int i = 0; i < 200; ++i) {
    std::string text = good;
    for (unsigned change = 0; change < 1 + random() % 6; ++change) {
      const std::size_t at = random() % text.size();
      const char piece = pieces[random() % pieces.size()];
      if (random() % 2 == 0) {
        text[at] = piece;
      } else {
        text.insert(at, 1, piece);
      }
    }
    const Status status = read(text);
    EXPECT_TRUE(status.ok() || status.code() == ErrorCode::kInvalidArgument) << text;
  }
}

}  // namespace
}  // namespace lockstep::config
