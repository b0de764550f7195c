#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.h"

namespace lockstep::cli {
namespace {

using options::Command;
using options::Key;

std::vector<const Key*> options_of(const Command& command) {
  std::vector<const Key*> keys;
  for (const Key& key : command.table->keys()) {
    if (key.is_option()) keys.push_back(&key);
  }
  return keys;
}

// "-r", "--redirects", with the spelling with underscores too where `all` is set.
std::vector<std::string> names_of(const Command& command, const Key& key, bool all) {
  std::vector<std::string> names;
  if (!key.letter().empty()) names.push_back("-" + key.letter());
  names.push_back(command.table->option_of(key));
  if (all && names.back() != "--" + key.name()) names.push_back("--" + key.name());
  return names;
}

// A command whose options are not defined here: a program of its own.
bool is_other_program(const Command& command) {
  return !command.run;
}

bool takes_job(const Command& command) {
  return command.table->find("JOB") != nullptr;
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

std::string bash_case(const options::Command& command) {
  std::vector<std::string> words;
  std::vector<std::string> with_values;
  std::string values;
  for (const Key* key : options_of(command)) {
    const auto shown = names_of(command, *key, false);
    words.insert(words.end(), shown.begin(), shown.end());
    if (key->is_flag()) continue;
    const auto all = names_of(command, *key, true);
    with_values.insert(with_values.end(), all.begin(), all.end());
    if (key->words().empty()) continue;
    values += fmt::format("        {}) COMPREPLY=($(compgen -W '{}' -- \"$cur\")); return ;;\n", fmt::join(all, "|"),
                          fmt::join(key->words(), " "));
  }
  words.emplace_back("--help");
  std::string text = fmt::format("    {})\n      options='{}'\n", command.name, fmt::join(words, " "));
  if (!with_values.empty()) text += fmt::format("      valued='{}'\n", fmt::join(with_values, " "));
  if (!values.empty()) text += fmt::format("      case $prev in\n{}      esac\n", values);
  if (takes_job(command)) text += "      operands=$(lockstep ps --quiet 2>/dev/null)\n";
  if (is_other_program(command)) {
    text +=
        "      options=$({ lockstep \"${COMP_WORDS[@]:1:COMP_CWORD-1}\" --help-all ||\n"
        "        lockstep \"${COMP_WORDS[@]:1:COMP_CWORD-1}\" --help; } 2>/dev/null |\n"
        "        grep -oE -- '(^| )--?[a-z][a-z-]*|^  [a-z]+ ' | tr -d ' ')\n";
  }
  return text + "      ;;\n";
}

std::string zsh_option(const Command& command, const Key& key) {
  const std::string help = escaped(key.help(), "[]:");
  const auto names = names_of(command, key, false);
  std::string value;
  if (!key.is_flag()) {
    value = key.words().empty() ? ":value:_files" : fmt::format(":value:({})", fmt::join(key.words(), " "));
  }
  std::string text;
  for (const std::string& name : names) {
    const bool equals = !key.is_flag() && name.starts_with("--");
    text += fmt::format(" \\\n        '({}){}{}[{}]{}'", fmt::join(names, " "), name, equals ? "=" : "", help, value);
  }
  return text;
}

std::string man_command(const Command& command) {
  std::string text = fmt::format(".SS lockstep {}\n{}.\n", roff(command.name), roff(command.help));
  if (is_other_program(command)) {
    text += fmt::format("Its options: lockstep {} \\-\\-help\n", roff(command.name));
    return text;
  }
  for (const Key& key : command.table->keys()) {
    if (!key.is_option() && !key.is_word()) continue;
    std::string names = key.is_word() ? key.name() : fmt::format("{}", fmt::join(names_of(command, key, false), ", "));
    if (!key.is_flag() && !key.is_word()) names += " VALUE";
    text += fmt::format(".TP\n.B {}\n{}\n", roff(names), roff(key.help()));
  }
  if (!command.footer.empty()) text += fmt::format(".PP\n.nf\n{}\n.fi\n", roff(command.footer));
  return text;
}

std::string bash_completion(const Command& app) {
  std::vector<std::string> names;
  std::string cases;
  for (const Command& command : app.commands) {
    names.push_back(command.name);
    cases += bash_case(command);
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

std::string zsh_completion(const Command& app) {
  std::string commands;
  std::string cases;
  for (const Command& command : app.commands) {
    commands += fmt::format(" \\\n        '{}:{}'", command.name, escaped(command.help, ":"));
    std::string options;
    for (const Key* key : options_of(command)) options += zsh_option(command, *key);
    std::string operands = "'*:argument:_files'";
    if (command.runs_program) operands = "'*::program:_normal'";
    if (takes_job(command)) operands = "'1:job:($(lockstep ps --quiet 2>/dev/null))'";
    cases +=
        fmt::format("    {})\n      _arguments -s -S{} \\\n        {}\n      ;;\n", command.name, options, operands);
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

std::string man_page(const Command& app, const std::string& version) {
  std::string text = fmt::format(
      ".TH LOCKSTEP 1 \"\" \"{}\" \"User commands\"\n.SH NAME\nlockstep \\- {}\n.SH SYNOPSIS\n.B lockstep\nCOMMAND "
      "[options]\n"
      ".SH COMMANDS\n",
      roff(version), roff(app.help));
  for (const Command& command : app.commands) text += man_command(command);
  return text;
}

}  // namespace

void add_completion_command(Command& app, const std::string& version) {
  const auto kind = std::make_shared<std::string>();
  const auto& command = app.add("completion", "Print a script for the completion of bash or zsh, or the page for man",
                                [&app, kind, version] {
                                  const std::string text = *kind == "bash"  ? bash_completion(app)
                                                           : *kind == "zsh" ? zsh_completion(app)
                                                                            : man_page(app, version);
                                  std::fputs(text.c_str(), stdout);
                                  return 0;
                                });
  command.key("KIND", *kind, "bash, zsh or man").word().choices({"bash", "zsh", "man"});
}

}  // namespace lockstep::cli
