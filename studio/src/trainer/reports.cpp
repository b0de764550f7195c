#include "lockstep/trainer/reports.h"

#include <cmath>

namespace lockstep {

std::vector<std::pair<std::string, double>> EpochReport::seconds_by_part(int world_size) const {
  const double rest = seconds - input_seconds;
  if (world_size == 1) return {{"input", input_seconds}, {"compute", rest}};
  if (!std::isfinite(communication_seconds)) return {{"input", input_seconds}, {"compute and communication", rest}};
  return {
      {"input", input_seconds}, {"compute", rest - communication_seconds}, {"communication", communication_seconds}};
}

}  // namespace lockstep
