// Options of a program, read from a YAML file, the environment and the command line.
//
// A program describes each of its keys once: section, name, the field of a struct that holds the value, help, limits.
// read() then fills the fields.
//
//   struct Options {
//     int max_epochs = 10;
//     double learning_rate = 0.1;
//     std::string precision = "fp32";
//   } options;
//   config::Schema schema;
//   config::Section trainer = schema.section("trainer", "How the model is trained");
//   trainer.key("max_epochs", options.max_epochs, "Passes over the data").at_least(1);
//   trainer.key("learning_rate", options.learning_rate, "The first rate").environment("LR");
//   trainer.key("precision", options.precision, "Type of the forward pass").choices({"fp32", "bf16"});
//   const auto status = schema.read({.file = "config.yaml", .environment = Environment::of_process()});
//
// Nothing here throws. Not thread-safe: one thread declares and reads. docs/configuration.md says what a file may hold.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/options/table.h"

namespace lockstep::config {

using options::Key;
using options::Layer;
using options::Option;
using options::Origin;
using options::Section;
using options::Sources;

// The table of options (lockstep/options/table.h) of a program that reads a file.
class Schema : public options::Table {
 public:
  // The largest size of a file.
  static constexpr std::size_t kMostBytes = 1 << 20;

  Schema() : Table(/*reads_file=*/true) {}

  // The top-level section `name` belongs to another program: it may be in the file, and its content is not looked at.
  void ignore_section(std::string name) { ignored_.push_back(std::move(name)); }
  // As ignore_section(), for all top-level sections that this schema does not declare. A section whose name is almost
  // one of the declared is still an error, and so is a key at the top that has no section.
  void ignore_other_sections() { ignore_others_ = true; }
  // read() then reads this text instead of the file; messages still show the file's name.
  void set_text(std::string text) { text_ = std::move(text); }

 private:
  friend class FileWalk;
  Status read_file(const std::filesystem::path& file, options::Reading& reading) override;

  std::vector<std::string> ignored_;
  bool ignore_others_ = false;
  std::optional<std::string> text_;
};

}  // namespace lockstep::config
