// The program behind `lockstep run --config FILE`: `lockstep run` with the section `launch` of a configuration file.
// Its keys are the options of `run` by their names. They come from the options themselves, so that an option is
// described once.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <deque>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/standard_descriptors.h"
#include "cli/run_program.h"
#include "lockstep/base/environment.h"
#include "lockstep/config/schema.h"

namespace {

using namespace lockstep;       // NOLINT(google-build-using-namespace)
using namespace lockstep::cli;  // NOLINT(google-build-using-namespace)

// An option of `run` as a key of the section.
struct Setting {
  CLI::Option* option = nullptr;
  std::string option_name;  // "--max-restarts"
  std::string key;          // "max_restarts"
  bool flag = false;
  int whole = 0;
  double number = 0;
  std::string text;
  // For defaults that no user could give: they stand for "not set".
  bool maybe = false;
  std::optional<int> maybe_whole;
  std::optional<std::string> maybe_text;
};

std::string key_of(const CLI::Option& option) {
  std::string key = option.get_lnames().front();
  std::replace(key.begin(), key.end(), '-', '_');
  return key;
}

// What follows the type's name is the option's check, in CLI11's words: "INT:INT in [0 - 65535]", "TEXT:{c10d,static}".
void add_limits(config::Key& key, const std::string& type) {
  if (type.find("NONNEGATIVE") != std::string::npos) key.at_least(0);
  if (const std::size_t open = type.find("in ["); open != std::string::npos) {
    double least = 0;
    double most = 0;
    if (std::sscanf(type.c_str() + open, "in [%lf - %lf]", &least, &most) == 2) key.between(least, most);
  }
  if (const std::size_t open = type.find(":{"); open != std::string::npos) {
    std::vector<std::string> words;
    std::string word;
    for (const char c : type.substr(open + 2)) {
      if (c != ',' && c != '}') {
        word += c;
        continue;
      }
      words.push_back(std::exchange(word, ""));
      if (c == '}') break;
    }
    key.choices(std::move(words));
  }
}

class LaunchSection {
 public:
  explicit LaunchSection(CLI::App& command)
      : section_(schema_.section("launch", "How lockstep run starts the workers")) {
    static const std::set<std::string> kNotInFile{"help", "config", "print_config", "version"};
    for (CLI::Option* option : command.get_options()) {
      if (!option->get_lnames().empty() && !kNotInFile.contains(key_of(*option))) add(*option);
    }
    section_.key("device_ids", device_ids_, "GPUs, as --devices 0,2").at_least(0);
    section_.key("program", program_, "The program and its arguments, when the command line names none");
    schema_.ignore_other_sections();
  }

  Status read(const std::string& file) {
    config::Sources sources{file, Environment::of_process(), {}};
    for (const Setting& setting : settings_) {
      if (setting.option->count() == 0) continue;
      const std::string value = is_flag(*setting.option)
                                    ? fmt::format("{}", setting.option->as<bool>())
                                    : fmt::format("{}", fmt::join(setting.option->reduced_results(), ","));
      sources.options.push_back({setting.option_name, value});
    }
    return schema_.read(sources);
  }

  // Gives the file's values to the options, as if they had been typed.
  Status apply(SiteArguments& site, RunArguments& run) {
    for (Setting& setting : settings_) {
      const config::Key& key = *schema_.find("launch." + setting.key);
      if (key.origin().layer != config::Layer::kFile) continue;
      take(setting);
      site.places.emplace_back(setting.option_name, key.origin().place);
    }
    site.nproc_given = layer_of("nproc_per_node") != config::Layer::kDefault;
    site.nnodes_given = layer_of("nnodes") != config::Layer::kDefault;
    LOCKSTEP_RETURN_IF_ERROR(check(site));
    // The command line's --devices wins over both keys of the file.
    if (!device_ids_.empty() && layer_of("devices") != config::Layer::kCommandLine) {
      site.devices = fmt::format("{}", fmt::join(device_ids_, ","));
      site.places.emplace_back("--devices", schema_.find("launch.device_ids")->origin().place);
    }
    if (!device_ids_.empty() && layer_of("devices") == config::Layer::kCommandLine) device_ids_.clear();
    if (run.program.empty()) {
      run.program = program_;
    } else {
      program_ = run.program;
      program_given_ = true;
    }
    return {};
  }

  // Defaults are comments: a number of workers or nodes that a file gives wins over that of Slurm or --devices.
  std::string print() const {
    std::istringstream lines(schema_.print());
    std::string text;
    for (std::string line; std::getline(lines, line);) {
      const bool is_program = line.starts_with("  program: ");
      if (is_program && program_given_) line.replace(line.rfind("# ") + 2, std::string::npos, "the command line");
      if (line.ends_with("# default")) line.replace(0, 2, "# ");
      text += line + "\n";
    }
    return text;
  }

 private:
  Status check(const SiteArguments& site) const {
    if (device_ids_.empty() || layer_of("devices") != config::Layer::kFile || site.devices.empty()) return {};
    return Status(ErrorCode::kInvalidArgument, fmt::format("{}: device_ids and devices exclude one another; give one",
                                                           schema_.find("launch.devices")->origin().place));
  }

  static bool is_flag(const CLI::Option& option) { return option.get_expected_max() == 0; }

  void add(CLI::Option& option) {
    Setting& setting = settings_.emplace_back();
    setting.option = &option;
    setting.option_name = "--" + option.get_lnames().front();
    setting.key = key_of(option);
    option.capture_default_str();
    const std::string value = option.get_default_str();
    const std::string type = option.get_type_name();
    add_limits(declare(setting, option, value, type), type);
  }

  config::Key& declare(Setting& setting, const CLI::Option& option, const std::string& value, const std::string& type) {
    const std::string& help = option.get_description();
    if (is_flag(option)) return section_.key(setting.key, setting.flag, help);
    const bool chosen = type.find(":{") != std::string::npos;
    setting.maybe = type.starts_with("INT") ? value.starts_with('-') : chosen && value.empty();
    if (setting.maybe && !chosen) return section_.key(setting.key, setting.maybe_whole, help);
    if (setting.maybe) return section_.key(setting.key, setting.maybe_text, help);
    if (type.starts_with("INT")) {
      std::from_chars(value.data(), value.data() + value.size(), setting.whole);
      return section_.key(setting.key, setting.whole, help);
    }
    if (type.starts_with("FLOAT")) {
      std::from_chars(value.data(), value.data() + value.size(), setting.number);
      return section_.key(setting.key, setting.number, help);
    }
    setting.text = value;
    return section_.key(setting.key, setting.text, help);
  }

  void take(Setting& setting) {
    if (setting.maybe && !setting.maybe_whole && !setting.maybe_text) return;
    const std::string type = setting.option->get_type_name();
    std::string value = setting.maybe_text.value_or(setting.text);
    if (is_flag(*setting.option)) value = setting.flag ? "true" : "false";
    if (type.starts_with("INT")) value = std::to_string(setting.maybe_whole.value_or(setting.whole));
    if (type.starts_with("FLOAT")) value = fmt::format("{}", setting.number);
    setting.option->clear();
    setting.option->add_result(value);
    setting.option->run_callback();
  }

  config::Layer layer_of(const char* key) const { return schema_.find(std::string("launch.") + key)->origin().layer; }

  std::deque<Setting> settings_;  // fields of the schema's keys: they do not move
  std::vector<int> device_ids_;
  std::vector<std::string> program_;
  bool program_given_ = false;  // by the command line
  config::Schema schema_;
  config::Section section_;
};

Result<std::string> apply_config(CLI::App& command, SiteArguments& site, RunArguments& run) {
  LaunchSection section(command);
  LOCKSTEP_RETURN_IF_ERROR(section.read(site.config));
  try {
    LOCKSTEP_RETURN_IF_ERROR(section.apply(site, run));
  } catch (const CLI::Error& error) {
    return Status(ErrorCode::kInvalidArgument, fmt::format("{}: {}", site.config, error.what()));
  }
  return site.print_config ? section.print() : std::string();
}

}  // namespace

int main(int argc, char** argv) {
  lockstep::fill_standard_descriptors();
  return lockstep::cli::run_program(argc, argv, apply_config);
}
