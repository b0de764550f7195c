#include "launch/error_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <nlohmann/json.hpp>

#include "launch/signals.h"

namespace lockstep::launch {
namespace {

using nlohmann::json;

constexpr std::size_t kMostBytes = std::size_t{64} << 10;
constexpr std::size_t kMostText = std::size_t{8} << 10;

// The end of a long call stack says where the exception came from.
std::string end_of(const std::string& text) {
  return text.size() <= kMostText ? text : text.substr(text.size() - kMostText);
}

std::string text_in(const json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? end_of(found->get<std::string>()) : std::string();
}

}  // namespace

Result<ErrorFile> ErrorFile::make() {
  Fd fd(memfd_create("lockstep_error_file", MFD_CLOEXEC));
  if (!fd.valid()) return Status::from_errno("cannot make a worker's error file", errno);
  return ErrorFile(std::move(fd));
}

std::string ErrorFile::path() const {
  return fmt::format("/proc/{}/fd/{}", getpid(), fd_.get());
}

void ErrorFile::read_into(Failure& failure) const {
  std::string bytes(kMostBytes, '\0');
  const ssize_t size = pread(fd_.get(), bytes.data(), bytes.size(), 0);
  if (size <= 0) return;
  bytes.resize(static_cast<std::size_t>(size));
  const json file = json::parse(bytes, nullptr, false);
  if (!file.is_object()) return;
  failure.error = text_in(file, "message");
  const auto message = file.find("message");
  if (message == file.end() || !message->is_object()) return;
  failure.error = text_in(*message, "message");
  const auto more = message->find("extraInfo");
  if (more != message->end() && more->is_object()) failure.call_stack = text_in(*more, "py_callstack");
}

std::string error_report(const Failure* failure, const std::string& reason, int exit_code) {
  json more{{"timestamp", std::to_string(std::time(nullptr))}};
  std::string text = reason;
  if (failure != nullptr) {
    text = failure->error.empty() ? fmt::format("rank {}: {}", failure->rank, describe_exit(failure->exit))
                                  : failure->error;
    more.update({{"rank", failure->rank},
                 {"local_rank", failure->local_rank},
                 {"node", std::max(0, failure->node_rank)},
                 {"host", failure->host},
                 {"pid", failure->exit.pid},
                 {"exit_code", failure->exit.code},
                 {"signal", failure->exit.signal},
                 {"stderr", fmt::format("{}", fmt::join(failure->stderr_tail, "\n"))}});
    if (!failure->call_stack.empty()) more["py_callstack"] = failure->call_stack;
  }
  const json report{{"message", {{"message", text}, {"errorCode", exit_code}, {"extraInfo", more}}}};
  return report.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

}  // namespace lockstep::launch
