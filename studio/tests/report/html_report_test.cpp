// report.html: what is in it, what cannot get into it, how large it is. Chromium looks at it in
// browser_parity_test.cpp.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "lockstep/report/report.h"
#include "report/contains.h"
#include "report/example_run.h"
#include "report/page/chart.h"
#include "report/page/page.h"
#include "support/read_file.h"
#include "support/scratch_folder.h"

namespace lockstep::report {
namespace {

using test::read_file;
using test::ScratchFolder;

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++found;
  return found;
}

std::string page_of(const ScratchFolder& folder, const ExampleRun& run) {
  write_example(folder.path(), run);
  const Status status = write_report(folder.path());
  EXPECT_TRUE(status.ok()) << status.message();
  return read_file(folder.path("report.html"));
}

TEST(HtmlReport, ShowsEveryPartOfARun) {
  const ScratchFolder folder;
  const std::string page = page_of(folder, {});
  for (const char* part : {"<h1>first run</h1>", "badge finished", "4 processes on 3 machines", "Best accuracy",
                           "Curves", "Loss, each step", "Learning rate", "Speed of training", "Where the time went",
                           "Stragglers", "<b>rank 2</b>", "Confusion, epoch 10", "Most confused", "optimizer.momentum",
                           "2.15.0", "All epochs as a table", "saved first run"}) {
    EXPECT_PRED2(contains, page, part);
  }
  EXPECT_EQ(count(page, "<figure"), count(page, "</figure>"));
  EXPECT_EQ(count(page, "<div"), count(page, "</div>"));
  EXPECT_EQ(count(page, "<section>"), count(page, "</section>"));
}

// As the system is: the page has colours for both, and tells the browser so for its own parts.
TEST(HtmlReport, IsLightOrDark) {
  const ScratchFolder folder;
  const std::string page = page_of(folder, {.epochs = 2});
  EXPECT_PRED2(contains, page, "color-scheme:light dark");
  EXPECT_PRED2(contains, page, "@media (prefers-color-scheme:dark){:root{--page:");
}

// No script, nothing from the network.
TEST(HtmlReport, NeedsNothingElse) {
  const ScratchFolder folder;
  const std::string page = page_of(folder, {});
  EXPECT_EQ(count(page, "<script"), 0U);
  EXPECT_EQ(count(page, "http://"), 0U);
  EXPECT_EQ(count(page, "https://"), 0U);
  EXPECT_EQ(count(page, "url("), 0U);
  EXPECT_EQ(count(page, "src="), 0U);
}

TEST(HtmlReport, EscapesWhateverNamesAre) {
  const ScratchFolder folder;
  const std::string hostile = "</title><script>alert(1)</script>'\" onload=x &amp; \x1b[2J\xff {}";
  const std::string page = page_of(
      folder,
      {.epochs = 3, .classes = 3, .name = hostile, .class_name = hostile, .scalar_name = hostile, .finished = false});
  EXPECT_EQ(count(page, "<script"), 0U);
  EXPECT_EQ(count(page, "</title>"), 1U + count(page, "</title></path>"));
  EXPECT_EQ(count(page, "\x1b"), 0U);
  EXPECT_EQ(count(page, "\xff"), 0U);
  EXPECT_EQ(count(page, "' onload"), 0U);
  EXPECT_EQ(count(page, "\" onload"), 0U);
  EXPECT_PRED2(contains, page, "&lt;script&gt;alert(1)&lt;/script&gt;&#39;&quot; onload=x &amp;amp; \\x1b[2J");
  EXPECT_PRED2(contains, page, "badge failed");
}

// A run of 100 epochs has at most 2 MB.
TEST(HtmlReport, StaysSmall) {
  const ScratchFolder folder;
  const std::string page = page_of(folder, {.epochs = 100, .steps = 400, .ranks = 64, .classes = 100});
  EXPECT_LT(page.size(), 2'000'000U);
  EXPECT_PRED2(contains, page, "The 16 of 64 ranks");
  EXPECT_PRED2(contains, page, "The 12 worst of 100 classes");
}

// Time that grew with the square of their number would be more than the test has.
TEST(HtmlReport, OfARunWithManyScalars) {
  RunRecord run;
  run.epochs.emplace_back();
  for (int i = 0; i < 500'000; ++i) run.epochs[0].scalars.emplace_back("scalar " + std::to_string(i), i);
  const std::string page = html_report(run);
  EXPECT_LT(page.size(), 2'000'000U);
  EXPECT_PRED2(contains, page, "Of each kind the first 24 curves are drawn.");
}

TEST(HtmlReport, OfARunThatHasJustBegun) {
  const ScratchFolder folder;
  RunLog log = RunLog::open(folder.path()).value();
  log.start({});
  ASSERT_TRUE(write_report(folder.path(), folder.path("page.html")).ok());
  const std::string page = read_file(folder.path("page.html"));
  EXPECT_PRED2(contains, page, "badge running");
  EXPECT_PRED2(contains, page, "<h1>" + folder.path().filename().native() + "</h1>");
  // Values that are not finite, a curve of one point, an epoch without anything.
  log.step(0, 0, {{"loss", std::nan("")}});
  log.step(0, 1, {{"loss", std::nan("")}});
  log.epoch(0, {.seconds = std::nan(""), .scalars = {{"loss", 1e300}, {"accuracy", -1.0}}});
  log.times(0, std::vector<RankTimes>{{0, "", {{"input", std::nan("")}, {"compute", -1.0}}}});
  log.confusion(0, {});
  log.end({{"accuracy", INFINITY}});
  EXPECT_TRUE(write_report(folder.path()).ok());
}

TEST(HtmlReport, SaysWhyThereIsNone) {
  const ScratchFolder folder;
  EXPECT_EQ(write_report(folder.path()).code(), ErrorCode::kNotFound);
  folder.write("run.jsonl", "{}\n");
  EXPECT_EQ(write_report(folder.path()).code(), ErrorCode::kCorrupt);
  folder.write("scaling.json", "{}\n");
  EXPECT_EQ(write_report(folder.path()).code(), ErrorCode::kCorrupt);
  write_example(folder.path() / "run", {.epochs = 2});
  EXPECT_EQ(write_report(folder.path() / "run", folder.path() / "nowhere" / "page.html").code(), ErrorCode::kNotFound);
}

TEST(Chart, TicksAreRoundAndCoverTheRange) {
  EXPECT_EQ(ticks(0.0, 1.0, 6), (std::vector<double>{0.0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0}));
  EXPECT_EQ(ticks(3.0, 17.0, 4), (std::vector<double>{0.0, 5.0, 10.0, 15.0, 20.0}));
  EXPECT_EQ(ticks(2.0, 2.0, 5), (std::vector<double>{2.0}));
  for (const double size : {1e-300, 1e-9, 1.0, 12345.0, 1e300}) {
    const std::vector<double> marks = ticks(-size, 3 * size, 5);
    EXPECT_GE(marks.size(), 3U);
    EXPECT_LE(marks.size(), 8U);
    EXPECT_LE(marks.front(), -size);
    EXPECT_GE(marks.back(), 3 * size);
  }
  EXPECT_EQ(ticks(0.0, std::numeric_limits<double>::infinity(), 5).size(), 1U);
}

// No value is lost among many: each bundle keeps its smallest and largest.
TEST(Chart, ThinnedCurvesKeepExtremes) {
  std::vector<Point> points;
  for (int i = 0; i < 10000; ++i) points.push_back({0, i, i == 5000 ? 99.0 : 1.0});
  points[7000].value = std::nan("");
  const Thinned few = thinned(points, 100);
  EXPECT_EQ(few.means.size(), 100U);
  EXPECT_EQ(few.extremes.size(), 200U);
  EXPECT_EQ(few.extremes[101].y, 99.0);
  EXPECT_NEAR(few.means[50].y, 1.98, 1e-9);
  EXPECT_EQ(few.means[70].y, 1.0);
  points.resize(150);
  EXPECT_EQ(thinned(points, 100).means.size(), 150U);
  EXPECT_TRUE(thinned(points, 100).extremes.empty());
}

TEST(Markup, NumbersForPeople) {
  EXPECT_EQ(number_text(0.123456), "0.1235");
  EXPECT_EQ(number_text(0.0), "0");
  EXPECT_EQ(number_text(1.5e-5), "1.5e-05");
  EXPECT_EQ(number_text(123456.0), "123.5k");
  EXPECT_EQ(number_text(-INFINITY), "-infinite");
  EXPECT_EQ(percent_text(0.91234), "91.2 %");
  EXPECT_EQ(seconds_text(3.14159), "3.14 s");
  EXPECT_EQ(seconds_text(3723.0), "1:02:03");
  EXPECT_EQ(utc_text(0.0), "at an unknown time");
  EXPECT_EQ(utc_text(1e12), "at an unknown time");
  EXPECT_EQ(utc_text(1700000000.0), "2023-11-14 22:13 UTC");
}

}  // namespace
}  // namespace lockstep::report
