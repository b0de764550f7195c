// The samples with the largest loss, with their pictures.
#include <fmt/format.h>

#include <filesystem>
#include <iterator>

#include "report/page/markup.h"
#include "report/page/sections.h"

namespace lockstep::report {

std::string samples_section(const RunRecord& run) {
  if (run.samples_epoch < 0 || run.samples.empty()) return "";
  std::string text = fmt::format(
      "<section><h2>Worst samples, epoch {}</h2><p class='note'>Those with the largest loss. Look here for wrong "
      "labels.</p>"
      "<div class='samples'>\n",
      run.samples_epoch + 1);
  for (const SampleRecord& sample : run.samples) {
    const std::string picture = sample.jpeg_base64.empty() ? "no picture" : data::picture_element(sample.jpeg_base64);
    // The end of a path tells more than its beginning.
    const std::string file = std::filesystem::path(sample.name).filename().native();
    fmt::format_to(std::back_inserter(text),
                   "<div class='sample'><div class='picture'>{}</div><div class='text'><div>{} taken for "
                   "<span class='wrong'>{}</span></div><div class='soft'>loss {}, {} sure</div>"
                   "<div class='path' title='{}'>{}</div></div></div>\n",
                   picture, escaped(sample.label), escaped(sample.predicted), number_text(sample.loss),
                   percent_text(sample.probability), escaped(sample.name), escaped(file));
  }
  return text + "</div></section>\n";
}

}  // namespace lockstep::report
