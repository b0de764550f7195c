// What one needs to know to repeat the run: configuration, versions, command, starts, notes.
#include <fmt/format.h>

#include <iterator>
#include <variant>

#include "report/page/page.h"

namespace lockstep::report {
namespace {

constexpr std::size_t kMostNotes = 100;

std::string value_text(const Value& value) {
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  if (const auto* whole = std::get_if<std::int64_t>(&value)) return std::to_string(*whole);
  if (const auto* number = std::get_if<double>(&value)) return fmt::format("{}", *number);
  return escaped(std::get<std::string>(value));
}

std::string list(std::string_view title, const Values& values) {
  if (values.empty()) return "";
  std::string text = fmt::format("<div class='card'><h3>{}</h3><dl>", title);
  for (const auto& [name, value] : values) {
    fmt::format_to(std::back_inserter(text), "<dt>{}</dt><dd>{}</dd>", escaped(name), value_text(value));
  }
  return text + "</dl></div>\n";
}

// As one would type it.
std::string command_text(const std::vector<std::string>& command) {
  constexpr std::string_view kPlain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-./=:,+@%";
  std::string text;
  for (const std::string& word : command) {
    if (!text.empty()) text += ' ';
    if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) {
      text += word;
      continue;
    }
    text += '\'';
    for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
    text += '\'';
  }
  return escaped(text);
}

std::string starts(const RunRecord& run) {
  if (run.sessions.size() < 2) return "";
  std::string text =
      "<div class='card double scroll'><h3>Starts</h3><table "
      "class='full'><tr><th>began</th><th>host</th><th>processes</th>"
      "<th>from epoch</th></tr>\n";
  for (const Session& session : run.sessions) {
    fmt::format_to(std::back_inserter(text), "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
                   utc_text(session.started), escaped(session.host), session.world_size, session.first_epoch + 1);
  }
  return text + "</table></div>\n";
}

std::string notes(const RunRecord& run) {
  if (run.notes.empty()) return "";
  std::string text = "<div class='card wide'><h3>Notes</h3><ul>";
  const std::size_t first = run.notes.size() > kMostNotes ? run.notes.size() - kMostNotes : 0;
  if (first > 0) text += fmt::format("<li class='soft'>{} earlier ones are left out</li>", first);
  for (std::size_t i = first; i < run.notes.size(); ++i) {
    fmt::format_to(std::back_inserter(text), "<li><span class='soft'>{}</span> {}</li>", utc_text(run.notes[i].time),
                   escaped(run.notes[i].text));
  }
  return text + "</ul></div>\n";
}

}  // namespace

std::string settings_section(const RunRecord& run) {
  std::string cards = list("Configuration", run.configuration) + list("Versions", run.versions);
  if (!run.command.empty()) {
    cards += fmt::format("<div class='card'><h3>Command</h3><pre>{}</pre></div>\n", command_text(run.command));
  }
  cards += starts(run) + notes(run);
  return cards.empty() ? "" : "<section><h2>Settings</h2><div class='grid'>" + cards + "</div></section>\n";
}

}  // namespace lockstep::report
