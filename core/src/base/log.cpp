#include "lockstep/base/log.h"

#include <fmt/format.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/base_sink.h>

#include <atomic>
#include <cstdio>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "base/host.h"
#include "lockstep/base/environment.h"
#include "lockstep/base/fork.h"

namespace lockstep::log {
namespace {

constinit std::atomic<int> current_rank{-1};

std::string pattern_for(int rank) {
  const std::string rank_text = rank < 0 ? "" : fmt::format("rank {} ", rank);
  return fmt::format("[lockstep {}{}] %l: %v", rank_text, host_name());
}

// `known` is false for a word that is not a level; the result is then the default.
spdlog::level::level_enum level_from(std::string_view name, bool& known) {
  known = true;
  if (name == "debug") return spdlog::level::debug;
  if (name == "info") return spdlog::level::info;
  if (name == "error") return spdlog::level::err;
  if (name == "off") return spdlog::level::off;
  known = name.empty() || name == "warning";
  return spdlog::level::warn;
}

// Writes whole lines to the output that set_output was given, or to stderr.
class Sink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  void set_output(Output output) {
    const std::lock_guard lock(mutex_);
    output_ = std::move(output);
  }

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    if (output_) {
      output_(std::string_view(line.data(), line.size()));
    } else {
      std::fwrite(line.data(), 1, line.size(), stderr);
    }
  }
  void flush_() override { std::fflush(stderr); }

  Output output_;
};

std::shared_ptr<spdlog::logger> make_logger(const std::shared_ptr<Sink>& sink) {
  auto logger = std::make_shared<spdlog::logger>("lockstep", sink);
  logger->set_pattern(pattern_for(current_rank.load()));
  const std::string value = Environment::of_process().get("LOCKSTEP_LOG_LEVEL").value_or("");
  bool known = false;
  logger->set_level(level_from(value, known));
  if (!known) {
    logger->warn("LOCKSTEP_LOG_LEVEL is '{}', expected debug, info, warning, error or off; using warning", value);
  }
  return logger;
}

// A logger outside spdlog's registry, so that a program that uses spdlog itself is not affected.
struct Logger {
  const std::shared_ptr<Sink> sink = std::make_shared<Sink>();
  const std::shared_ptr<spdlog::logger> logger = make_logger(sink);
};

// A fork needs a new one: another thread of the parent may have held its lock.
Logger& of_process() {
  static constinit OfProcess<Logger> logger;
  return logger.get();
}

void write(spdlog::level::level_enum level, std::string_view message) {
  of_process().logger->log(level, spdlog::string_view_t(message.data(), message.size()));
}

}  // namespace

void debug(std::string_view message) {
  write(spdlog::level::debug, message);
}
void info(std::string_view message) {
  write(spdlog::level::info, message);
}
void warning(std::string_view message) {
  write(spdlog::level::warn, message);
}
void error(std::string_view message) {
  write(spdlog::level::err, message);
}

void set_rank(int rank) {
  current_rank = rank;
  of_process().logger->set_pattern(pattern_for(rank));
}

void set_output(Output output) {
  of_process().sink->set_output(std::move(output));
}

}  // namespace lockstep::log
