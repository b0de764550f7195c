#include "lockstep/config/command_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <utility>

#include "options/command.h"
#include "options/value.h"

namespace lockstep::config {

Result<bool> configure(Schema& schema, int argc, const char* const* argv, std::vector<std::string>* words,
                       const std::function<void()>& complete) {
  options::Command program{.name = argc > 0 ? argv[0] : "", .help = ""};
  program.table = std::shared_ptr<options::Table>(std::shared_ptr<void>(), &schema);  // the caller's
  program.allows_beginnings = false;
  for (const auto& [name, help] : schema.sections()) {
    if (name.empty()) program.help = help;
  }
  LOCKSTEP_ASSIGN_OR_RETURN(options::CommandLine line,
                            options::parse(program, {argv + std::min(argc, 1), argv + argc}));
  if (!line.text.empty()) {
    std::fputs(line.text.c_str(), stdout);
    return false;
  }
  if (words != nullptr) {
    *words = std::move(line.words);
  } else if (!line.words.empty()) {
    return Status(
        ErrorCode::kInvalidArgument,
        fmt::format("expected options alone, found the word {}; a file of options is given with --config FILE, "
                    "and the value of a flag with '=': --FLAG=false",
                    options::shown(line.words.front())));
  }
  LOCKSTEP_RETURN_IF_ERROR(schema.read({{}, Environment::of_process(), std::move(line.options)}));
  if (complete) complete();
  if (!schema.print_config()) return true;
  std::fputs(schema.print().c_str(), stdout);
  return false;
}

}  // namespace lockstep::config
