#include "lockstep/report/report.h"

#include <fmt/format.h>

#include <cstdint>
#include <string_view>

#include "base/printable.h"
#include "lockstep/base/atomic_file.h"
#include "lockstep/report/run_log.h"
#include "report/page/page.h"
#include "report/scaling/runs.h"

namespace lockstep::report {
namespace {

// How report.html looks: light and dark, from 400 pixels on.
constexpr std::string_view kStyle = R"css(
:root{color-scheme:light dark;--page:#f5f6f8;--card:#fff;--text:#1a1f27;--soft:#5b6573;--edge:#e1e5ea;--grid:#eceff3;
--c1:#2563eb;--c2:#d9730d;--c3:#0d9488;--c4:#8b5cf6;--heat:37,99,235;--miss:217,95,13;--good:#12805c;--bad:#c0362c;--badbg:#fdecea}
@media (prefers-color-scheme:dark){:root{--page:#0e1116;--card:#161b22;--text:#e6eaf0;--soft:#98a3b1;--edge:#28303a;
--grid:#222a34;--c1:#6ea0ff;--c2:#f2a154;--c3:#3cc8b8;--c4:#b79bff;--heat:110,160,255;--miss:242,161,84;--good:#4fd1a1;--bad:#ff8a80;
--badbg:#3a1d1d}}
*{box-sizing:border-box}
body{overflow-wrap:anywhere;margin:0;background:var(--page);color:var(--text);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
main{max-width:1480px;margin:0 auto;padding:28px 20px 48px}
h1{font-size:26px;line-height:1.25;margin:0}
h2{font-size:18px;margin:36px 0 12px}
h3{font-size:14px;margin:0;font-weight:600}
p{margin:6px 0}.bars+p{margin-top:14px}
.soft,.note{color:var(--soft)}.note{font-size:13px}
header .title{display:flex;gap:12px;align-items:center;flex-wrap:wrap}
.badge{font-size:13px;font-weight:600;padding:2px 10px;border-radius:99px;border:1px solid currentColor;color:var(--soft)}
.badge.finished{color:var(--good)}.badge.failed,.badge.interrupted{color:var(--bad)}.badge.running{color:var(--c1)}
.error{background:var(--badbg);border-left:4px solid var(--bad);padding:10px 14px;border-radius:6px;margin:16px 0;
white-space:pre-wrap}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:12px;margin:20px 0 0}
.card,.tile{background:var(--card);border:1px solid var(--edge);border-radius:10px;margin:0;min-width:0}
.tile{padding:12px 16px}.tile .name{color:var(--soft);font-size:13px}.tile .value{font-size:24px;font-weight:650;line-height:1.3}
.tile .more{color:var(--soft);font-size:12px}
.card{padding:14px 16px}
.grid{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,400px),1fr));gap:16px}
.wide{grid-column:1/-1}
@media (min-width:920px){.double{grid-column:span 2}}
.legend{display:flex;flex-wrap:wrap;gap:2px 16px;font-size:13px;color:var(--soft);margin:4px 0 10px;min-height:20px}
.legend b{color:var(--text)}
.key::before{content:"";display:inline-block;width:14px;height:3px;border-radius:2px;background:var(--c);margin-right:6px;vertical-align:middle}
.key.dashed::before{background:repeating-linear-gradient(90deg,var(--c) 0 4px,transparent 4px 6px)}
.key.faint::before{opacity:.4}
.key.box::before{width:10px;height:10px}
.c1{--c:var(--c1)}.c2{--c:var(--c2)}.c3{--c:var(--c3)}.c4{--c:var(--c4)}
.plot{display:grid;grid-template-columns:50px 1fr;grid-template-rows:190px 20px auto;font-size:12px;color:var(--soft);padding-right:12px}
.plot svg{width:100%;height:100%;overflow:visible;display:block}
.ys,.xs{position:relative}.ys span{position:absolute;right:8px;transform:translateY(-50%);white-space:nowrap}
.xs{grid-column:2}.xs span{position:absolute;top:4px;transform:translateX(-50%);white-space:nowrap}
.xname{grid-column:2;text-align:center;padding-top:4px}
.plot path{fill:none;vector-effect:non-scaling-stroke;stroke-linecap:round;stroke-linejoin:round}
.plot .grid{display:inline;stroke:var(--grid);stroke-width:1}
.line{stroke:var(--c);stroke-width:2}.line.faint{stroke-width:1;opacity:.3}.line.dashed{stroke-dasharray:5 5;stroke-width:1.5;opacity:.7}
.dot{stroke:var(--c);stroke-width:5}.dot.hidden{stroke-opacity:0;stroke-width:9}.dot:hover{stroke-width:9;stroke-opacity:1}
.scroll{overflow-x:auto}
table{border-collapse:collapse;font-size:14px;font-variant-numeric:tabular-nums}
th,td{padding:5px 12px;text-align:right;border-bottom:1px solid var(--edge);white-space:nowrap}
th{color:var(--soft);font-weight:600;font-size:13px}
th:first-child,td:first-child,.left{text-align:left}
tr:last-child td{border-bottom:0}
.full{width:100%}
.bars{display:grid;grid-template-columns:auto 1fr auto;gap:7px 12px;align-items:center;font-size:13px}
.bars .who{max-width:170px;overflow:hidden;text-overflow:ellipsis;white-space:nowrap}
.bars .sum{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.bar{display:flex;height:18px;border-radius:4px;overflow:hidden;background:var(--grid)}
.bar i{display:block;background:var(--c);height:100%}
.matrix{font-size:12px;width:auto;margin:0}
.matrix th,.matrix td{padding:0 4px;border:0;text-align:center;height:26px;min-width:26px}
.matrix td{border:1px solid var(--card)}
.matrix th.row{text-align:right;max-width:130px;overflow:hidden;text-overflow:ellipsis;padding-right:8px;font-weight:500}
.matrix th.column{writing-mode:vertical-rl;transform:rotate(180deg);height:auto;max-height:110px;padding:6px 0;text-align:left;
font-weight:500;overflow:hidden;text-overflow:ellipsis}
.matrix .strong{color:#fff}
@media (prefers-color-scheme:dark){.matrix .strong{color:#0e1116}}
dl{display:grid;grid-template-columns:minmax(90px,auto) 1fr;gap:4px 16px;margin:10px 0 0;font-size:14px}
dt{color:var(--soft)}dd{margin:0}
pre{white-space:pre-wrap;font:13px/1.5 ui-monospace,"DejaVu Sans Mono",monospace;margin:10px 0 0}
details{margin-top:16px}summary{cursor:pointer;color:var(--soft);font-size:14px;padding:4px 0}
ul{margin:8px 0;padding-left:20px}
footer{margin-top:40px;color:var(--soft);font-size:13px}
@media (max-width:560px){main{padding:18px 12px 36px}h1{font-size:21px}.tiles{grid-template-columns:1fr 1fr}
.tile .value{font-size:19px}.plot{grid-template-columns:46px 1fr}.card{padding:12px}.bars .who{max-width:84px}}
@media print{body{background:#fff}.card,.tile{break-inside:avoid}}
)css";

std::string page(const std::string& title, const std::string& body) {
  return fmt::format(
      "{}<main>\n{}<footer>Made by <code>lockstep report</code> {} from run.jsonl.</footer></main></body></html>\n",
      data::page_head(title, kStyle), body, LOCKSTEP_VERSION);
}

// The page of `lockstep scaling`. The log of a run knows where and when it was measured, and with which versions.
std::string scaling_page(const ScalingTable& table, const std::filesystem::path& folder) {
  RunRecord settings;
  std::string measured;
  for (const ScalingRow& row : table.rows) {
    const Result<RunRecord> run = read_run(folder_of_run(folder, row.processes, 1));
    if (!run.ok()) continue;  // the program writes no log
    settings.versions = run.value().versions;
    if (run.value().sessions.empty()) break;
    const Session& first = run.value().sessions.front();
    measured = fmt::format("<p class='soft'>measured on {}, {}</p>\n", escaped(first.host), utc_text(first.started));
    break;
  }
  settings.command = table.command;
  return page("Scaling", "<h1>Scaling</h1>\n" + measured + scaling_section(table) + settings_section(settings));
}

}  // namespace

std::string html_report(const RunRecord& run, const ScalingTable& scaling) {
  return page(run.name, summary_section(run) + scaling_section(scaling) + curves_section(run) + times_section(run) +
                            confusion_section(run) + settings_section(run));
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
    html = scaling_page(table, folder);
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
