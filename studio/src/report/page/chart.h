// Charts of lines: labels are HTML, and the lines an SVG that is stretched to the room there is, so that a chart is
// readable at any width.
#pragma once

#include <string>
#include <vector>

#include "lockstep/report/run.h"

namespace lockstep::report {

struct PlotPoint {
  double x = 0.0;
  double y = 0.0;  // NaN and infinity: a gap
};

enum class CurveStyle {
  kLine,
  kFaint,   // behind the others
  kDashed,  // what would be ideal
};

struct Curve {
  std::string name = {};
  int colour = 1;  // 1 to 4
  std::vector<PlotPoint> points = {};
  CurveStyle style = CurveStyle::kLine;
  bool dots = false;       // a dot at each point, with its value for the mouse
  std::string value = {};  // shown beside the name
};

struct Chart {
  std::string title = {};
  std::string x_name = {};
  std::vector<Curve> curves = {};
  bool percent = false;    // values are parts of 1
  bool from_zero = false;  // the axis begins at 0
  std::string note = {};
};

// A <figure>. Values over several powers of ten have a logarithmic axis.
std::string to_html(const Chart& chart);

// Round numbers that cover the range, at most about `count`.
std::vector<double> ticks(double low, double high, int count);

// Fewer points: of each of `bundles` parts of the curve the mean, and the smallest and the largest value (as a line
// that goes up and down). Fewer points than two for each bundle stay as they are, and `extremes` is empty.
struct Thinned {
  std::vector<PlotPoint> means;
  std::vector<PlotPoint> extremes;
};
Thinned thinned(const std::vector<Point>& points, std::size_t bundles);

}  // namespace lockstep::report
