// Chromium opens report.html: no message on its console, nothing wider than the window.
#include <gtest/gtest.h>

#include <string>

#include "lockstep/report/report.h"
#include "report/example_run.h"
#include "support/process.h"
#include "support/scratch_folder.h"

namespace lockstep::report {
namespace {

// Frames of the widths that a page must fit, and the width that it needs there.
constexpr const char* kFrames = R"html(<!DOCTYPE html><body><script>
function look(frame) {
  const page = frame.contentDocument;
  document.body.append("width " + frame.width + ": " + page.documentElement.scrollWidth + ", " +
    page.querySelectorAll("section").length + " sections; ");
}
</script><iframe src="report.html" width="400" height="3000" onload="look(this)"></iframe>
<iframe src="report.html" width="1600" height="3000" onload="look(this)"></iframe></body>)html";

class BrowserParity : public ::testing::TestWithParam<const char*> {};

TEST_P(BrowserParity, ShowsThePageWithoutComplaint) {
  const test::ScratchFolder folder;
  write_example(folder.path(), {.name = GetParam(), .class_name = GetParam(), .scalar_name = GetParam()});
  const std::vector<Measurement> runs = {{1, 128.84, 0.95, 0.9}, {2, 66.5, 0.94, 0.8}, {4, 37.8, 0.94, 0.7}};
  ASSERT_TRUE(write_scaling(scaling_table(runs, ScalingKind::kStrong, {}), folder.path()).ok());
  ASSERT_TRUE(write_report(folder.path()).ok());
  folder.write("frames.html", kFrames);
  test::Process browser({LOCKSTEP_CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu",
                         "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars",
                         "--user-data-dir=" + folder.path("profile"), "--allow-file-access-from-files",
                         "--enable-logging=stderr", "--log-level=0", "--virtual-time-budget=10000", "--dump-dom",
                         "file://" + folder.path("frames.html")});
  const test::Finished finished = browser.finish(std::chrono::seconds(100));
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_NE(finished.out.find("width 400: 400, 6 sections"), std::string::npos) << finished.out;
  EXPECT_NE(finished.out.find("width 1600: 1600, 6 sections"), std::string::npos) << finished.out;
  EXPECT_EQ(finished.err.find("CONSOLE"), std::string::npos) << finished.err;
}

INSTANTIATE_TEST_SUITE_P(
    Names, BrowserParity,
    ::testing::Values("a run", "<script>alert(1)</script>'\"",
                      "AVeryLongNameWithoutAnySpaceAtAllThatGoesOnAndOnAndOnAndOnForMoreThanFourHundredPixels"));

}  // namespace
}  // namespace lockstep::report
