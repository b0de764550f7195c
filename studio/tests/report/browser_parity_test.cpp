// Chromium opens report.html, light and dark: no message on its console, nothing wider than the window, all readable.
#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "lockstep/report/report.h"
#include "report/example_run.h"
#include "support/process.h"
#include "support/scratch_folder.h"

namespace lockstep::report {
namespace {

// Frames of the widths that a page must fit, and the width that it needs there. The contrast of a text is W3C's ratio
// of its luminance and that of the background; 4.5 is their least for text of common size.
constexpr const char* kFrames = R"html(<!DOCTYPE html><body><script>
// rgb(0-255 ...), or color(srgb 0-1 ...) where colours are mixed: red, green, blue, opacity.
function parts(colour) {
  const numbers = colour.match(/[0-9.]+/g).map(Number);
  const scale = colour.startsWith("color(") ? 1 : 255;
  return [...numbers.slice(0, 3).map(c => c / scale), numbers[3] ?? 1];
}
function luminance(colour) {
  const linear = colour.map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
}
function background(element) {
  if (!element) return [1, 1, 1];
  const [red, green, blue, opacity] = parts(getComputedStyle(element).backgroundColor);
  if (opacity == 1) return [red, green, blue];
  const behind = background(element.parentElement);
  return [red, green, blue].map((c, i) => opacity * c + (1 - opacity) * behind[i]);
}
function leastContrast(page) {
  let least = [99, ""];
  for (const element of page.querySelectorAll("body *")) {
    const text = [...element.childNodes].filter(node => node.nodeType == 3).map(node => node.data.trim()).join("");
    if (!text || element.closest("svg,script,style,.hidden") || !element.getClientRects().length) continue;
    const [a, b] = [luminance(parts(getComputedStyle(element).color).slice(0, 3)), luminance(background(element))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < least[0]) least = [contrast, text];
  }
  return least;
}
function look(frame) {
  const page = frame.contentDocument;
  const [contrast, text] = leastContrast(page);
  document.body.append("width " + frame.width + ": " + page.documentElement.scrollWidth + ", " +
    page.querySelectorAll("section").length + " sections; dark " + matchMedia("(prefers-color-scheme:dark)").matches +
    "; " + (contrast >= 4.5 ? "readable" : "contrast " + contrast + " of '" + text + "'") + "; ");
}
</script><iframe src="report.html" width="400" height="3000" onload="look(this)"></iframe>
<iframe src="report.html" width="1600" height="3000" onload="look(this)"></iframe></body>)html";

struct Page {
  const char* name;
  bool dark = false;
};
void PrintTo(const Page& page, std::ostream* out) {
  *out << page.name << (page.dark ? ", dark" : "");
}

class BrowserParity : public ::testing::TestWithParam<Page> {};

TEST_P(BrowserParity, ShowsThePageWithoutComplaint) {
  const auto [name, dark] = GetParam();
  const test::ScratchFolder folder;
  write_example(folder.path(), {.name = name, .class_name = name, .scalar_name = name});
  const std::vector<Measurement> runs = {{1, 128.84, 0.95, 0.9}, {2, 66.5, 0.94, 0.8}, {4, 37.8, 0.94, 0.7}};
  ASSERT_TRUE(write_scaling(scaling_table(runs, ScalingKind::kStrong, {}), folder.path()).ok());
  ASSERT_TRUE(write_report(folder.path()).ok());
  folder.write("frames.html", kFrames);
  std::vector<std::string> command = {LOCKSTEP_CHROMIUM,
                                      "--headless=new",
                                      "--no-sandbox",
                                      "--disable-gpu",
                                      "--disable-dev-shm-usage",
                                      "--no-first-run",
                                      "--hide-scrollbars",
                                      "--user-data-dir=" + folder.path("profile"),
                                      "--allow-file-access-from-files",
                                      "--enable-logging=stderr",
                                      "--log-level=0",
                                      "--virtual-time-budget=10000"};
  if (dark) command.emplace_back("--force-dark-mode");
  command.insert(command.end(), {"--dump-dom", "file://" + folder.path("frames.html")});
  test::Process browser(command);
  const test::Finished finished = browser.finish(std::chrono::seconds(100));
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  const std::string found = std::string(", 5 sections; dark ") + (dark ? "true" : "false") + "; readable";
  EXPECT_NE(finished.out.find("width 400: 400" + found), std::string::npos) << finished.out;
  EXPECT_NE(finished.out.find("width 1600: 1600" + found), std::string::npos) << finished.out;
  EXPECT_EQ(finished.err.find("CONSOLE"), std::string::npos) << finished.err;
}

INSTANTIATE_TEST_SUITE_P(
    Pages, BrowserParity,
    ::testing::Values(Page{"a run"}, Page{"a run", /*dark=*/true}, Page{"<script>alert(1)</script>'\""},
                      Page{"AVeryLongNameWithoutAnySpaceAtAllThatGoesOnAndOnAndOnAndOnForMoreThanFourHundredPixels"}));

}  // namespace
}  // namespace lockstep::report
