#include "report/page/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "report/page/page.h"

namespace lockstep::report {
namespace {

// The SVG's own units; it is stretched.
constexpr double kWidth = 2000;
constexpr double kHeight = 600;
constexpr std::size_t kMostDots = 250;
constexpr std::size_t kMostVisibleDots = 50;  // more of them appear under the mouse only

// The smallest and the largest of some values.
struct Limits {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();

  void add(double value) {
    if (!std::isfinite(value)) return;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  bool empty() const { return low > high; }
};

// Where values are drawn, from 0 (low) to 1.
struct Axis {
  Limits limits;
  bool logarithmic = false;

  double place(double value) const {
    const auto at = [&](double v) { return logarithmic ? std::log10(v) : v; };
    const double span = at(limits.high) - at(limits.low);
    return span > 0.0 ? (at(value) - at(limits.low)) / span : 0.5;
  }
};

std::string tick_text(double value, bool percent) {
  return percent ? fmt::format("{:.4g} %", 100.0 * value) : number_text(value);
}

std::vector<double> powers_of_ten(const Limits& limits) {
  std::vector<double> marks;
  const int first = static_cast<int>(std::ceil(std::log10(limits.low) - 1e-9));
  const int last = static_cast<int>(std::floor(std::log10(limits.high) + 1e-9));
  const int step = std::max(1, (last - first) / 5);
  for (int power = first; power <= last; power += step) marks.push_back(std::pow(10.0, power));
  return marks;
}

// Whether most values would lie at the bottom of a linear axis.
bool are_of_all_sizes(std::vector<double> values, const Limits& limits) {
  if (values.empty() || limits.low <= 0.0 || limits.high / limits.low <= 100.0) return false;
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle < limits.high / 10.0;
}

Axis y_axis(const Chart& chart, std::vector<double>& marks) {
  Axis axis;
  std::vector<double> values;
  for (const Curve& curve : chart.curves) {
    for (const PlotPoint& point : curve.points) {
      axis.limits.add(point.y);
      if (std::isfinite(point.y)) values.push_back(point.y);
    }
  }
  if (chart.from_zero) axis.limits.add(0.0);
  if (!chart.percent && are_of_all_sizes(std::move(values), axis.limits)) {
    axis.logarithmic = true;
    marks = powers_of_ten(axis.limits);
    return axis;
  }
  if (axis.limits.high - axis.limits.low <= 1e-12 * std::abs(axis.limits.high)) {
    // A constant is in the middle.
    const double margin = axis.limits.high == 0.0 ? 1.0 : std::abs(axis.limits.high) / 2;
    axis.limits = {axis.limits.low - margin, axis.limits.high + margin};
  }
  marks = ticks(axis.limits.low, axis.limits.high, 5);
  for (const double mark : marks) axis.limits.add(mark);
  return axis;
}

std::string path(const std::vector<PlotPoint>& points, const Axis& x, const Axis& y) {
  std::string text;
  bool pen_down = false;
  for (const PlotPoint& point : points) {
    if (!std::isfinite(point.y)) {
      pen_down = false;
      continue;
    }
    fmt::format_to(std::back_inserter(text), "{}{:.0f} {:.0f}", pen_down ? 'L' : 'M', kWidth * x.place(point.x),
                   kHeight * (1.0 - y.place(point.y)));
    // A point alone would be invisible.
    if (!pen_down) text += "h0";
    pen_down = true;
  }
  return text;
}

std::string dots(const Curve& curve, const Chart& chart, const Axis& x, const Axis& y) {
  std::string text;
  if (!curve.dots || curve.points.size() > kMostDots) return text;
  for (const PlotPoint& point : curve.points) {
    if (!std::isfinite(point.y)) continue;
    // A line of no length with round ends stays round in a stretched picture.
    fmt::format_to(std::back_inserter(text),
                   "<path class='dot c{}{}' d='M{:.0f} {:.0f}h0'><title>{}, {} {}: {}</title></path>", curve.colour,
                   curve.points.size() > kMostVisibleDots ? " hidden" : "", kWidth * x.place(point.x),
                   kHeight * (1.0 - y.place(point.y)), escaped(curve.name), escaped(chart.x_name), number_text(point.x),
                   tick_text(point.y, chart.percent));
  }
  return text;
}

std::string_view style_class(CurveStyle style) {
  switch (style) {
    case CurveStyle::kLine: return "";
    case CurveStyle::kFaint: return " faint";
    case CurveStyle::kDashed: return " dashed";
  }
  return "";
}

std::string legend(const Chart& chart) {
  std::string text;
  for (const Curve& curve : chart.curves) {
    if (curve.name.empty()) continue;
    fmt::format_to(std::back_inserter(text), "<span class='key c{}{}'>{}{}</span>", curve.colour,
                   style_class(curve.style), escaped(curve.name),
                   curve.value.empty() ? "" : fmt::format(" <b>{}</b>", escaped(curve.value)));
  }
  return text;
}

}  // namespace

std::vector<double> ticks(double low, double high, int count) {
  const double rough = (high - low) / std::max(1, count - 1);
  if (!(rough > 0.0) || !std::isfinite(rough)) return {low};
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  double step = 10.0 * power;
  for (const double factor : {1.0, 2.0, 2.5, 5.0}) {
    if (factor * power >= rough * (1 - 1e-9)) {
      step = factor * power;
      break;
    }
  }
  std::vector<double> marks;
  const double first = std::floor(low / step + 1e-9);
  const double last = std::ceil(high / step - 1e-9);
  for (int i = 0; first + i <= last && i < 20; ++i) marks.push_back((first + i) * step);
  return marks;
}

Thinned thinned(const std::vector<Point>& points, std::size_t bundles) {
  Thinned result;
  if (points.size() <= 2 * bundles) {
    for (const Point& point : points) result.means.push_back({static_cast<double>(point.step), point.value});
    return result;
  }
  for (std::size_t bundle = 0; bundle < bundles; ++bundle) {
    const std::size_t begin = points.size() * bundle / bundles;
    const std::size_t end = points.size() * (bundle + 1) / bundles;
    Limits limits;
    double sum = 0.0;
    int finite = 0;
    for (std::size_t i = begin; i < end; ++i) {
      limits.add(points[i].value);
      if (!std::isfinite(points[i].value)) continue;
      sum += points[i].value;
      ++finite;
    }
    const std::size_t middle = (begin + end) / 2;
    const auto x = static_cast<double>(points[middle].step);
    const double none = std::numeric_limits<double>::quiet_NaN();
    result.means.push_back({x, finite > 0 ? sum / finite : none});
    result.extremes.push_back({x, finite > 0 ? limits.low : none});
    result.extremes.push_back({x, finite > 0 ? limits.high : none});
  }
  return result;
}

std::string to_html(const Chart& chart) {
  std::vector<double> y_marks;
  const Axis y = y_axis(chart, y_marks);
  Axis x;
  for (const Curve& curve : chart.curves) {
    for (const PlotPoint& point : curve.points) x.limits.add(point.x);
  }
  if (y.limits.empty() || x.limits.empty()) return "";
  std::string lines;
  std::string y_labels;
  for (const double mark : y_marks) {
    const double top = 100.0 * (1.0 - y.place(mark));
    fmt::format_to(std::back_inserter(lines), "M0 {:.0f}H{}", kHeight / 100.0 * top, kWidth);
    fmt::format_to(std::back_inserter(y_labels), "<span style='top:{:.1f}%'>{}</span>", top,
                   tick_text(mark, chart.percent));
  }
  std::string x_labels;
  for (const double mark : ticks(x.limits.low, x.limits.high, 6)) {
    if (mark < x.limits.low || mark > x.limits.high || mark != std::floor(mark)) continue;
    fmt::format_to(std::back_inserter(x_labels), "<span style='left:{:.1f}%'>{}</span>", 100.0 * x.place(mark),
                   number_text(mark));
  }
  std::string curves;
  for (const Curve& curve : chart.curves) {
    fmt::format_to(std::back_inserter(curves), "<path class='line c{}{}' d='{}'/>", curve.colour,
                   style_class(curve.style), path(curve.points, x, y));
  }
  for (const Curve& curve : chart.curves) curves += dots(curve, chart, x, y);
  return fmt::format(
      "<figure class='card'><figcaption><h3>{0}</h3><div class='legend'>{1}</div></figcaption>"
      "<div class='plot'><div class='ys'>{2}</div>"
      "<svg viewBox='0 0 {3} {4}' preserveAspectRatio='none' role='img' aria-label='{0}'><path class='grid' "
      "d='{5}'/>{6}</svg>"
      "<div class='xs'>{7}</div><div class='xname'>{8}</div></div>{9}</figure>\n",
      escaped(chart.title), legend(chart), y_labels, kWidth, kHeight, lines, curves, x_labels, escaped(chart.x_name),
      chart.note.empty() ? "" : fmt::format("<p class='note'>{}</p>", escaped(chart.note)));
}

}  // namespace lockstep::report
