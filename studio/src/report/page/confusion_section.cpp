#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <vector>

#include "report/page/page.h"

namespace lockstep::report {
namespace {

constexpr std::int64_t kMostInMatrix = 25;
constexpr std::size_t kMostClassRows = 12;
constexpr double kStrong = 0.6;  // from this shade on, text is in the colour of the page

struct ClassCounts {
  std::int64_t labels = 0;     // samples of the class
  std::int64_t predicted = 0;  // samples that were taken for it
  std::int64_t right = 0;

  double recall() const { return labels > 0 ? static_cast<double>(right) / static_cast<double>(labels) : std::nan(""); }
  double precision() const {
    return predicted > 0 ? static_cast<double>(right) / static_cast<double>(predicted) : std::nan("");
  }
};

std::string class_name(const RunRecord& run, std::int64_t index) {
  const auto known = static_cast<std::size_t>(index) < run.classes.size();
  return known ? escaped(run.classes[static_cast<std::size_t>(index)]) : fmt::format("class {}", index);
}

// Only classes that occur: a file may claim any number of them.
std::map<std::int64_t, ClassCounts> count_classes(const RunRecord& run) {
  std::map<std::int64_t, ClassCounts> counts;
  for (const ConfusionCell& cell : run.confusion) {
    counts[cell.label].labels += cell.count;
    counts[cell.predicted].predicted += cell.count;
    if (cell.label == cell.predicted) counts[cell.label].right += cell.count;
  }
  return counts;
}

std::string matrix(const RunRecord& run) {
  const std::int64_t classes = run.confusion_classes;
  std::vector<std::int64_t> counts(static_cast<std::size_t>(classes * classes));
  for (const ConfusionCell& cell : run.confusion) {
    counts[static_cast<std::size_t>(cell.label * classes + cell.predicted)] = cell.count;
  }
  std::string text =
      "<div class='card'><h3>Matrix</h3><p class='note'>Rows: the label. Columns: what the model predicted. "
      "The darker, the larger the part of the row; mistakes are orange.</p><div class='scroll'><table "
      "class='matrix'><tr><th></th>";
  const auto out = std::back_inserter(text);
  for (std::int64_t c = 0; c < classes; ++c) fmt::format_to(out, "<th class='column'>{}</th>", class_name(run, c));
  text += "</tr>\n";
  for (std::int64_t r = 0; r < classes; ++r) {
    std::int64_t sum = 0;
    for (std::int64_t c = 0; c < classes; ++c) sum += counts[static_cast<std::size_t>(r * classes + c)];
    fmt::format_to(out, "<tr><th class='row'>{}</th>", class_name(run, r));
    for (std::int64_t c = 0; c < classes; ++c) {
      const std::int64_t count = counts[static_cast<std::size_t>(r * classes + c)];
      const double part = sum > 0 ? static_cast<double>(count) / static_cast<double>(sum) : 0.0;
      if (count == 0) {
        text += "<td></td>";
        continue;
      }
      // The square root makes a few mistakes in a hundred visible too.
      const double shade = std::sqrt(part);
      fmt::format_to(out, "<td{} style='background:rgba(var(--{}),{:.2f})'>{}</td>",
                     shade > kStrong ? " class='strong'" : "", r == c ? "heat" : "miss", shade, count);
    }
    text += "</tr>\n";
  }
  return text + "</table></div></div>\n";
}

std::string confused_pairs(const RunRecord& run) {
  std::vector<ConfusionCell> wrong;
  for (const ConfusionCell& cell : run.confusion) {
    if (cell.label != cell.predicted) wrong.push_back(cell);
  }
  if (wrong.empty()) return "";
  std::stable_sort(wrong.begin(), wrong.end(), [](const auto& a, const auto& b) { return a.count > b.count; });
  if (wrong.size() > kMostClassRows) wrong.resize(kMostClassRows);
  std::string text =
      "<div class='card scroll'><h3>Most confused</h3><table class='full'><tr><th>label</th><th class='left'>taken "
      "for</th>"
      "<th>samples</th></tr>\n";
  for (const ConfusionCell& cell : wrong) {
    fmt::format_to(std::back_inserter(text), "<tr><td>{}</td><td class='left'>{}</td><td>{}</td></tr>\n",
                   class_name(run, cell.label), class_name(run, cell.predicted), cell.count);
  }
  return text + "</table></div>\n";
}

std::string class_table(const RunRecord& run, const std::map<std::int64_t, ClassCounts>& counts) {
  std::vector<std::pair<std::int64_t, ClassCounts>> rows(counts.begin(), counts.end());
  std::erase_if(rows, [](const auto& row) { return row.second.labels == 0; });
  std::stable_sort(rows.begin(), rows.end(),
                   [](const auto& a, const auto& b) { return a.second.recall() < b.second.recall(); });
  const std::size_t all = rows.size();
  if (rows.size() > kMostClassRows) rows.resize(kMostClassRows);
  std::string text = fmt::format(
      "<div class='card scroll'><h3>{}</h3><table class='full'><tr><th>class</th><th>samples</th><th>recall</th>"
      "<th>precision</th></tr>\n",
      all > rows.size() ? fmt::format("The {} worst of {} classes", rows.size(), all) : "Classes, worst first");
  for (const auto& [index, count] : rows) {
    fmt::format_to(std::back_inserter(text), "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
                   class_name(run, index), count.labels, percent_text(count.recall()), percent_text(count.precision()));
  }
  return text + "</table></div>\n";
}

}  // namespace

std::string confusion_section(const RunRecord& run) {
  if (run.confusion_epoch < 0 || run.confusion.empty()) return "";
  const auto counts = count_classes(run);
  std::string text = fmt::format("<section><h2>Confusion, epoch {}</h2><div class='grid'>", run.confusion_epoch + 1);
  if (run.confusion_classes <= kMostInMatrix) text += matrix(run);
  return text + confused_pairs(run) + class_table(run, counts) + "</div></section>\n";
}

}  // namespace lockstep::report
