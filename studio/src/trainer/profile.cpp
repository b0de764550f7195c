#include <fmt/format.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#include <torch/cuda.h>

#include <exception>
#include <utility>

#include "lockstep/base/log.h"
#include "loop.h"

namespace lockstep::trainer_detail {
namespace {

namespace profiler = torch::profiler::impl;

std::set<profiler::ActivityType> activities() {
  std::set<profiler::ActivityType> wanted{profiler::ActivityType::CPU};
  if (torch::cuda::is_available()) wanted.insert(profiler::ActivityType::CUDA);
  return wanted;
}

}  // namespace

Profile::Profile(std::int64_t steps, std::filesystem::path file) : left_(steps), file_(std::move(file)) {
  const profiler::ProfilerConfig config(profiler::ProfilerState::KINETO);
  torch::autograd::profiler::prepareProfiler(config, activities());
  torch::autograd::profiler::enableProfiler(config, activities());
}

Profile::~Profile() {
  if (left_ > 0) write();
}

void Profile::step() {
  if (left_ <= 0) return;
  --left_;
  if (left_ == 0) write();
}

// A trace that cannot be written does not end the training.
void Profile::write() {
  left_ = 0;
  try {
    torch::autograd::profiler::disableProfiler()->save(file_.native());
    std::error_code missing;
    if (!std::filesystem::exists(file_, missing)) log::warning(fmt::format("cannot write {}", file_.native()));
  } catch (const std::exception& error) {
    log::warning(fmt::format("cannot write the trace {}: {}", file_.native(), error.what()));
  }
}

}  // namespace lockstep::trainer_detail
