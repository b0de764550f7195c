#include "lockstep/report/report.h"

#include <fmt/format.h>

#include <cstdint>
#include <span>

#include "base/printable.h"
#include "lockstep/base/atomic_file.h"
#include "lockstep/report/run_log.h"
#include "report/page/markup.h"
#include "report/page/sections.h"
#include "report/page/style.h"

namespace lockstep::report {
namespace {

std::string page(const std::string& title, const std::string& body) {
  return fmt::format(
      "{}<main>\n{}<footer>Made by <code>lockstep report</code> {} from run.jsonl.</footer></main></body></html>\n",
      data::page_head(title, kStyle), body, LOCKSTEP_VERSION);
}

}  // namespace

std::string html_report(const RunRecord& run, const ScalingTable& scaling) {
  return page(run.name, summary_section(run) + scaling_section(scaling) + curves_section(run) + times_section(run) +
                            confusion_section(run) + samples_section(run) + settings_section(run));
}

Status write_report(const std::filesystem::path& folder, const std::filesystem::path& file) {
  ScalingTable table;
  Result<ScalingTable> scaling = read_scaling(folder);
  if (scaling.ok()) {
    table = std::move(scaling).value();
  } else if (scaling.status().code() != ErrorCode::kNotFound) {
    return scaling.status();
  }
  Result<RunRecord> run = read_run(folder);
  std::string html;
  if (run.ok()) {
    html = html_report(run.value(), table);
  } else if (run.status().code() == ErrorCode::kNotFound && !table.rows.empty()) {
    html = page("Scaling", "<h1>Scaling</h1>\n" + scaling_section(table));
  } else if (run.status().code() == ErrorCode::kNotFound) {
    return Status(ErrorCode::kNotFound,
                  fmt::format("{}: expected the folder of a run, with its log {} (`output` of lockstep train), or of "
                              "lockstep scaling; found neither",
                              printable(folder.native()), kRunLogName));
  } else {
    return run.status();
  }
  LOCKSTEP_ASSIGN_OR_RETURN(AtomicFile out, AtomicFile::create(file.empty() ? folder / "report.html" : file));
  LOCKSTEP_RETURN_IF_ERROR(out.append({reinterpret_cast<const std::uint8_t*>(html.data()), html.size()}));
  return out.commit();
}

}  // namespace lockstep::report
