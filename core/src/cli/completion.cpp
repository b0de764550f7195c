#include "cli/completion.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

namespace lockstep::cli {
namespace {

std::vector<const CLI::App*> commands_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

std::vector<const CLI::Option*> options_of(const CLI::App& command) {
  return command.get_options([](const CLI::Option* option) { return !option->get_positional(); });
}

// "--max-restarts", or the spelling with underscores too where `all` is set; short ones.
std::vector<std::string> names_of(const CLI::Option& option, bool all) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) {
    if (all || name.find('_') == std::string::npos) names.push_back("--" + name);
  }
  return names;
}

bool takes_value(const CLI::Option& option) {
  return option.get_expected_max() > 0;
}

// The words of an option that allows few: CLI11 shows them as "TEXT:{c10d,static}".
std::vector<std::string> choices_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const std::size_t open = type.find(":{");
  const std::size_t close = type.find('}');
  if (open == std::string::npos || close == std::string::npos) return {};
  return CLI::detail::split(type.substr(open + 2, close - open - 2), ',');
}

// A command whose options are not defined here: a program of its own.
bool is_other_program(const CLI::App& command) {
  return command.get_options().size() <= 1;
}

bool takes_job(const CLI::App& command) {
  return command.get_option_no_throw("JOB") != nullptr;
}

// For a text between single quotes.
std::string escaped(const std::string& text, const std::string& special) {
  std::string result;
  for (const char c : text) {
    if (c == '\'') {
      result += "'\\''";
      continue;
    }
    if (special.find(c) != std::string::npos) result += '\\';
    result += c;
  }
  return result;
}

// Roff takes a dot or a quote at the beginning of a line for a request, and a backslash for the start of an escape.
std::string roff(const std::string& text) {
  std::string result;
  bool line_begin = true;
  for (const char c : text) {
    if (line_begin && (c == '.' || c == '\'')) result += "\\&";
    if (c == '\\') {
      result += "\\e";
    } else if (c == '-') {
      result += "\\-";
    } else {
      result += c;
    }
    line_begin = c == '\n';
  }
  return result;
}

std::string bash_case(const CLI::App& command) {
  std::vector<std::string> words;
  std::vector<std::string> with_values;
  std::string values;
  for (const CLI::Option* option : options_of(command)) {
    const auto shown = names_of(*option, false);
    words.insert(words.end(), shown.begin(), shown.end());
    if (!takes_value(*option)) continue;
    const auto all = names_of(*option, true);
    with_values.insert(with_values.end(), all.begin(), all.end());
    const auto choices = choices_of(*option);
    if (choices.empty()) continue;
    values += fmt::format("        {}) COMPREPLY=($(compgen -W '{}' -- \"$cur\")); return ;;\n", fmt::join(all, "|"),
                          fmt::join(choices, " "));
  }
  std::string text = fmt::format("    {})\n      options='{}'\n", command.get_name(), fmt::join(words, " "));
  if (!with_values.empty()) text += fmt::format("      valued='{}'\n", fmt::join(with_values, " "));
  if (!values.empty()) text += fmt::format("      case $prev in\n{}      esac\n", values);
  if (takes_job(command)) text += "      operands=$(lockstep ps --quiet 2>/dev/null)\n";
  if (is_other_program(command)) {
    text +=
        "      options=$(lockstep \"${COMP_WORDS[@]:1:COMP_CWORD-1}\" --help 2>/dev/null |\n"
        "        grep -oE -- '(^| )--?[a-z][a-z-]*|^  [a-z]+ ' | tr -d ' ')\n";
  }
  return text + "      ;;\n";
}

std::string zsh_option(const CLI::Option& option) {
  const std::string help = escaped(option.get_description(), "[]:");
  const auto names = names_of(option, false);
  std::string value;
  if (takes_value(option)) {
    const auto choices = choices_of(option);
    value = choices.empty() ? ":value:_files" : fmt::format(":value:({})", fmt::join(choices, " "));
  }
  std::string text;
  for (const std::string& name : names) {
    const bool equals = takes_value(option) && name.starts_with("--");
    text += fmt::format(" \\\n        '({}){}{}[{}]{}'", fmt::join(names, " "), name, equals ? "=" : "", help, value);
  }
  return text;
}

std::string man_command(const CLI::App& command) {
  std::string text = fmt::format(".SS lockstep {}\n{}.\n", roff(command.get_name()), roff(command.get_description()));
  if (is_other_program(command)) {
    text += fmt::format("Its options: lockstep {} \\-\\-help\n", roff(command.get_name()));
    return text;
  }
  for (const CLI::Option* option : command.get_options()) {
    std::string names = option->get_positional() ? option->get_name(true)
                                                 : fmt::format("{}", fmt::join(names_of(*option, false), ", "));
    if (takes_value(*option) && !option->get_positional()) names += " VALUE";
    text += fmt::format(".TP\n.B {}\n{}\n", roff(names), roff(option->get_description()));
  }
  if (!command.get_footer().empty()) text += fmt::format(".PP\n.nf\n{}\n.fi\n", roff(command.get_footer()));
  return text;
}

}  // namespace

std::string bash_completion(const CLI::App& app) {
  std::vector<std::string> names;
  std::string cases;
  for (const CLI::App* command : commands_of(app)) {
    names.push_back(command->get_name());
    cases += bash_case(*command);
  }
  return fmt::format(
      R"(# Completion of lockstep for bash; `lockstep completion bash` writes it.
_lockstep() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}} options='' valued='' operands='' i word
  COMPREPLY=()
  if ((COMP_CWORD == 1)); then
    COMPREPLY=($(compgen -W '{} --help --version' -- "$cur"))
    return
  fi
  case ${{COMP_WORDS[1]}} in
{}  esac
  if [[ ${{COMP_WORDS[1]}} == run ]]; then
    # Behind the name of the program are its own arguments.
    for ((i = 2; i < COMP_CWORD; ++i)); do
      word=${{COMP_WORDS[i]}}
      if [[ $word != -* ]]; then
        COMPREPLY=($(compgen -f -- "$cur"))
        return
      fi
      [[ " $valued " == *" $word "* ]] && ((++i))
    done
  fi
  [[ " $valued " == *" $prev "* ]] && {{ COMPREPLY=($(compgen -f -- "$cur")); return; }}
  if [[ $cur == -* || -z $operands && ${{COMP_WORDS[1]}} != run ]]; then
    COMPREPLY=($(compgen -W "$options" -- "$cur"))
  elif [[ -n $operands ]]; then
    COMPREPLY=($(compgen -W "$operands" -- "$cur"))
  else
    COMPREPLY=($(compgen -f -c -- "$cur"))
  fi
}}
complete -o filenames -F _lockstep lockstep
)",
      fmt::join(names, " "), cases);
}

std::string zsh_completion(const CLI::App& app) {
  std::string commands;
  std::string cases;
  for (const CLI::App* command : commands_of(app)) {
    commands += fmt::format(" \\\n        '{}:{}'", command->get_name(), escaped(command->get_description(), ":"));
    std::string options;
    for (const CLI::Option* option : options_of(*command)) options += zsh_option(*option);
    std::string operands = "'*:argument:_files'";
    if (command->get_name() == "run") operands = "'*::program:_normal'";
    if (takes_job(*command)) operands = "'1:job:($(lockstep ps --quiet 2>/dev/null))'";
    cases += fmt::format("    {})\n      _arguments -s -S{} \\\n        {}\n      ;;\n", command->get_name(), options,
                         operands);
  }
  return fmt::format(
      R"(#compdef lockstep
# Completion of lockstep for zsh; `lockstep completion zsh` writes it.
_lockstep() {{
  local curcontext=$curcontext state line
  local -a commands
  commands=({}
  )
  _arguments -C '(- *)--help[help]' '(- *)--version[version]' '1: :->command' '*:: :->rest'
  [[ $state == command ]] && {{ _describe command commands; return; }}
  case $line[1] in
{}  esac
}}
_lockstep "$@"
)",
      commands, cases);
}

std::string man_page(const CLI::App& app, const std::string& version) {
  std::string text = fmt::format(
      ".TH LOCKSTEP 1 \"\" \"{}\" \"User commands\"\n.SH NAME\nlockstep \\- {}\n.SH SYNOPSIS\n.B lockstep\nCOMMAND "
      "[options]\n"
      ".SH COMMANDS\n",
      roff(version), roff(app.get_description()));
  for (const CLI::App* command : commands_of(app)) text += man_command(*command);
  return text;
}

void add_completion_command(CLI::App& app, const std::string& version, int& exit_code) {
  const auto kind = std::make_shared<std::string>();
  CLI::App* command =
      app.add_subcommand("completion", "Print a script for the completion of bash or zsh, or the page for man");
  command->add_option("KIND", *kind, "bash, zsh or man")->required()->check(CLI::IsMember({"bash", "zsh", "man"}));
  command->callback([&app, kind, version, &exit_code] {
    const std::string text = *kind == "bash"  ? bash_completion(app)
                             : *kind == "zsh" ? zsh_completion(app)
                                              : man_page(app, version);
    std::fputs(text.c_str(), stdout);
    exit_code = 0;
  });
}

}  // namespace lockstep::cli
