#include "trainer/command/use_of_model.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <stdexcept>
#include <utility>

#include "base/printable.h"
#include "c10d/backend/group_errors.h"

namespace lockstep::trainer_detail {
namespace {

// What the handler removes. A signal may come at any time, so its name does not change while the handler is there.
std::array<char, 4096> unfinished_file;
constexpr std::array<int, 3> kEndingSignals{SIGINT, SIGTERM, SIGHUP};

void remove_and_end(int signal) {
  ::unlink(unfinished_file.data());
  struct sigaction usual {};
  usual.sa_handler = SIG_DFL;
  ::sigaction(signal, &usual, nullptr);
  ::raise(signal);
}

// Where a signal has this handler it gets the other one: a program that ignores a signal goes on ignoring it.
void replace_handlers(void (*present)(int), void (*other)(int)) {
  for (const int signal : kEndingSignals) {
    struct sigaction action {};
    if (::sigaction(signal, nullptr, &action) != 0 || action.sa_handler != present) continue;
    action.sa_handler = other;
    ::sigaction(signal, &action, nullptr);
  }
}

}  // namespace

TrainedModel open_model(const std::string& path, TrainCommandOptions& training, options::Table& table) {
  TrainedModel model = read_trained_model(path);
  training = model.options;
  options::Sources given;
  for (const options::Key& key : table.keys()) {
    if (key.is_option() && key.is_given()) given.options.push_back({table.option_of(key), key.origin().text});
  }
  if (const Status read = table.read(given); !read.ok()) throw std::runtime_error(read.message());
  if (training.test_batch_size == 0) training.test_batch_size = model.options.test_batch_size;
  return model;
}

Status check_top_k(std::int64_t top_k, std::int64_t num_classes) {
  if (top_k <= num_classes) return {};
  return {ErrorCode::kInvalidArgument,
          fmt::format("--top-k: {} is more than the model's {} classes", top_k, num_classes)};
}

Status check_output_path(const std::string& output, const std::vector<std::string>& inputs, const char* option) {
  if (output.empty()) return {};
  // AtomicFile replaces both.
  for (const std::string& path : {output, output + std::string(AtomicFile::kTemporarySuffix)}) {
    std::error_code ignored;
    if (!std::filesystem::exists(path, ignored)) continue;
    for (const std::string& input : inputs) {
      if (!std::filesystem::equivalent(path, input, ignored)) continue;
      return {ErrorCode::kInvalidArgument,
              fmt::format("{}: {} would replace {}, which the command reads; give another name", option,
                          printable(output), printable(input))};
    }
  }
  return {};
}

std::string class_name(const std::vector<std::string>& classes, std::int64_t number) {
  return number < std::ssize(classes) ? classes[static_cast<std::size_t>(number)] : std::to_string(number);
}

std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + '"';
}

ResultFile::ResultFile(const std::string& path, const char* option) {
  if (path.empty()) return;
  Result<AtomicFile> file = AtomicFile::create(path);
  if (!file.ok()) throw std::runtime_error(std::string(option) + ": " + file.status().message());
  file_.emplace(std::move(file).value());
  const std::string& temporary = file_->temporary_path().native();
  if (temporary.size() >= unfinished_file.size()) return;  // open() takes no longer path
  unfinished_file.fill('\0');
  temporary.copy(unfinished_file.data(), temporary.size());
  replace_handlers(SIG_DFL, remove_and_end);
}

ResultFile::~ResultFile() {
  if (file_) replace_handlers(remove_and_end, SIG_DFL);
}

void ResultFile::write(std::string_view text) {
  Status status;
  if (file_) {
    status = file_->append({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
  } else if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) {
    status = Status::from_errno("cannot write to standard output", errno);
  }
  if (!status.ok()) throw std::runtime_error(status.message());
}

void ResultFile::close() {
  Status status;
  if (file_) {
    status = file_->commit();
  } else if (std::fflush(stdout) != 0) {
    status = Status::from_errno("cannot write to standard output", errno);
  }
  if (!status.ok()) throw std::runtime_error(status.message());
}

int with_plain_errors(const std::function<int()>& work) {
  try {
    return work();
  } catch (const c10::Error& error) {  // what() has twenty lines of LibTorch's functions
    throw std::runtime_error(plain_text(error));
  }
}

}  // namespace lockstep::trainer_detail
