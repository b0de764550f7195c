// Command lines of programs with commands: what every command takes in the same way.
#include "options/command.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

namespace lockstep::options {
namespace {

using namespace std::chrono_literals;

struct Values {
  std::string file;
  std::vector<std::string> files;
  std::string kind = "one";
  std::string streams = "0";
  int runs = 1;
  bool json = false;
  bool color = true;
  std::chrono::milliseconds limit = 30s;
  std::vector<std::string> program;
};

class OptionsCommand : public testing::Test {
 protected:
  OptionsCommand() {
    Command& show = program_.add("show", "Shows a file", [] { return 0; });
    show.key("FILE", values_.file, "A file").word();
    show.key("kind", values_.kind, "Of two").choices({"one", "two"});
    show.key("streams", values_.streams, "Some").letter("s");
    show.key("runs", values_.runs, "How many").between(1, 9);
    show.key("json", values_.json, "As JSON").letter("j");
    show.key("color", values_.color, "In color");
    show.key("limit", values_.limit, "How long").between(0, 60);
    Command& all = program_.add("all", "Shows files", [] { return 0; });
    all.key("FILES", values_.files, "Files").word();
    program_.add("any", "Shows files").key("FILES", values_.files, "Files").optional_words();
    program_.add("start", "Starts a program").key("PROGRAM", values_.program, "What is behind --").rest();
  }

  Status read(const std::vector<std::string>& words) {
    LOCKSTEP_ASSIGN_OR_RETURN(const CommandLine line, parse(program_, words));
    text_ = line.text;
    words_ = line.words;
    return line.text.empty() ? line.command->table->read({.options = line.options}) : Status();
  }
  std::string error_of(const std::vector<std::string>& words) {
    const Status status = read(words);
    EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
    return status.message();
  }

  Values values_;
  Command program_{.name = "tool", .help = "A tool.", .version = "tool 1.0"};
  std::string text_;
  std::vector<std::string> words_;
};

TEST_F(OptionsCommand, FindsOptionsBeforeAndBehindWords) {
  ASSERT_TRUE(
      read({"show", "-j", "--kind=two", "a,b", "-s3", "--no-color", "--runs", "2", "--runs=03", "--limit", "1min"})
          .ok());
  EXPECT_EQ(values_.file, "a,b");
  EXPECT_EQ(values_.kind, "two");
  EXPECT_EQ(values_.streams, "3");
  EXPECT_EQ(values_.runs, 3);
  EXPECT_TRUE(values_.json);
  EXPECT_FALSE(values_.color);
  EXPECT_EQ(values_.limit, 60s);
  ASSERT_TRUE(read({"show", "x", "-s", "1", "--json=false", "--color=1"}).ok());
  EXPECT_EQ(values_.streams, "1");
  EXPECT_FALSE(values_.json);
  EXPECT_TRUE(values_.color);
}

TEST_F(OptionsCommand, ANegationTakesNoValue) {
  for (const char* word : {"--no-color=true", "--no-color=false", "--no_color="}) {
    EXPECT_TRUE(error_of({"show", "x", word}).ends_with("write --color=true or --color=false")) << word;
  }
  EXPECT_TRUE(values_.color);
  ASSERT_TRUE(read({"show", "x", "--no_color"}).ok());
  EXPECT_FALSE(values_.color);
}

TEST_F(OptionsCommand, NegativeNumbersAreWords) {
  ASSERT_TRUE(read({"show", "-5", "--json"}).ok());
  EXPECT_EQ(values_.file, "-5");
  EXPECT_TRUE(values_.json);
  ASSERT_TRUE(read({"all", "-.5", "-", "--", "-x", "--"}).ok());
  EXPECT_EQ(values_.files, (std::vector<std::string>{"-.5", "-", "-x", "--"}));
}

TEST_F(OptionsCommand, LettersOfFlagsMayStandTogether) {
  ASSERT_TRUE(read({"show", "x", "-js3"}).ok());
  EXPECT_TRUE(values_.json);
  EXPECT_EQ(values_.streams, "3");
  ASSERT_TRUE(read({"show", "x", "-js", "4"}).ok());
  EXPECT_EQ(values_.streams, "4");
  EXPECT_EQ(error_of({"show", "x", "-jx"}), "unknown option '-x'; --help lists all");
}

TEST_F(OptionsCommand, ALettersValueMayFollowAnEqualsSign) {
  ASSERT_TRUE(read({"show", "x", "-s=3", "-j=false"}).ok());
  EXPECT_EQ(values_.streams, "3");
  EXPECT_FALSE(values_.json);
  ASSERT_TRUE(read({"show", "x", "-js=4"}).ok());
  EXPECT_EQ(values_.streams, "4");
}

// A mistake of the program is an error as any other: nothing throws.
TEST_F(OptionsCommand, WhatAProgramDeclaresWrongIsNamed) {
  for (const char* name : {"a b", "a:b", "a{b", "help"}) {
    const Command program{.name = "tool", .help = ""};
    program.key(name, values_.runs, "");
    const Status status = parse(program, {}).status();
    EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument) << name;
    EXPECT_TRUE(status.message().starts_with("the program declares an option that cannot be: ")) << status.message();
  }
  const Command program{.name = "tool", .help = ""};
  program.key("one", values_.runs, "").option("--x");
  program.key("two", values_.runs, "").option("--x");
  EXPECT_EQ(parse(program, {"--x", "1"}).status().message(), "the program declares the option --x twice");
}

TEST_F(OptionsCommand, WhatIsPrintedKeepsTheNamesOfDefaults) {
  const Table& table = *program_.commands[0].table;
  ASSERT_TRUE(read({"show", "x", "--runs", "2"}).ok());
  const std::string printed = table.print(/*comment_defaults=*/true);
  EXPECT_NE(printed.find("\n# json: false "), std::string::npos) << printed;
  EXPECT_NE(printed.find("\nruns: 2 "), std::string::npos) << printed;
}

TEST_F(OptionsCommand, CommasSeparateNoWords) {
  ASSERT_TRUE(read({"all", "a,b", "c"}).ok());
  EXPECT_EQ(values_.files, (std::vector<std::string>{"a,b", "c"}));
  values_.files.clear();
  ASSERT_TRUE(read({"any"}).ok());
  EXPECT_TRUE(values_.files.empty());
  ASSERT_TRUE(read({"any", "a,b"}).ok());
  EXPECT_EQ(values_.files, (std::vector<std::string>{"a,b"}));
  ASSERT_TRUE(read({"start", "--", "x,y", "--json", "--"}).ok());
  EXPECT_EQ(values_.program, (std::vector<std::string>{"x,y", "--json", "--"}));
  ASSERT_TRUE(read({"start", "left"}).ok());
  EXPECT_EQ(words_, (std::vector<std::string>{"left"}));
}

TEST_F(OptionsCommand, MistakesAreNamed) {
  EXPECT_EQ(error_of({"shw"}), "there is no command 'shw'; the nearest known one is 'show'");
  EXPECT_EQ(error_of({"xyzzy"}), "there is no command 'xyzzy'; there are show, all, any, start");
  EXPECT_EQ(error_of({"show", "f", "--knd", "one"}), "unknown option '--knd'; the nearest known one is --kind");
  EXPECT_EQ(error_of({"show", "f", "-x"}), "unknown option '-x'; --help lists all");
  EXPECT_EQ(error_of({"show", "f", "g", "h"}), "expected FILE alone, found 'g' too");
  EXPECT_EQ(error_of({"show", "f", "--", "-g"}), "expected FILE alone, found '-g' too");
  EXPECT_EQ(error_of({"show", "f", "--json="}), "--json: expected true or false after the '=', found nothing");
  EXPECT_EQ(error_of({"show", "f", "--kind", "three"}), "--kind: expected one of one, two, found 'three'");
  EXPECT_EQ(error_of({"show", "f", "--runs", "10"}), "--runs: expected a whole number from 1 to 9, found '10'");
  EXPECT_EQ(error_of({"show", "f", "--kind", "-j"}),
            "--kind: its value is missing: '-j' is the next option; if it is meant as the value, write --kind=-j");
  EXPECT_NE(error_of({"show"}).find("FILE"), std::string::npos);
  EXPECT_NE(error_of({"show", "one", "two"}).find("two"), std::string::npos);
  EXPECT_FALSE(error_of({}).empty());
}

TEST_F(OptionsCommand, HelpTellsWhatTheTableKnows) {
  ASSERT_TRUE(read({"show", "f", "g", "--help"}).ok());  // also where the rest is wrong
  for (const char* part : {"--kind VALUE", "Of two (default one; one of one, two)", "-s,--streams VALUE", "-j,--json ",
                           "How many (default 1; a whole number from 1 to 9)", "FILE "}) {
    EXPECT_NE(text_.find(part), std::string::npos) << part << " in " << text_;
  }
  ASSERT_TRUE(read({"--version"}).ok());
  EXPECT_EQ(text_, "tool 1.0\n");
}

TEST_F(OptionsCommand, HelpListsTheCommonOptionsAlone) {
  Command& train = program_.add("train", "Trains", [] { return 0; });
  train.key("epochs", values_.runs, "How many").common();
  train.key("FILE", values_.file, "What is trained").word();
  train.table->section("loop", "The loop").key("kind", values_.kind, "Of two").choices({"one", "two"});
  ASSERT_TRUE(read({"train", "--help"}).ok());
  for (const char* part : {"--epochs", "FILE", "--help-all lists all options"}) {
    EXPECT_NE(text_.find(part), std::string::npos) << part << " in " << text_;
  }
  EXPECT_EQ(text_.find("--kind"), std::string::npos) << text_;
  EXPECT_EQ(text_.find("The loop"), std::string::npos) << text_;
  ASSERT_TRUE(read({"train", "--help-all"}).ok());
  for (const char* part : {"--epochs", "--kind", "The loop"}) {
    EXPECT_NE(text_.find(part), std::string::npos) << part << " in " << text_;
  }
  EXPECT_TRUE(read({"train", "x", "--kind", "two"}).ok());
  EXPECT_EQ(error_of({"show", "--help-all"}), "unknown option '--help-all'; --help lists all");
  EXPECT_EQ(error_of({"train", "--loop", "two"}), "'--loop' is a section of options: --kind");
}

}  // namespace
}  // namespace lockstep::options
