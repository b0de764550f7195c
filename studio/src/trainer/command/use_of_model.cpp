#include "trainer/command/use_of_model.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <stdexcept>
#include <utility>

#include "base/printable.h"
#include "c10d/backend/group_errors.h"

namespace lockstep::trainer_detail {

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

Status check_output_path(const std::string& output, const std::vector<std::string>& inputs) {
  if (output.empty()) return {};
  // AtomicFile replaces both.
  for (const std::string& path : {output, output + std::string(AtomicFile::kTemporarySuffix)}) {
    std::error_code ignored;
    if (!std::filesystem::exists(path, ignored)) continue;
    for (const std::string& input : inputs) {
      if (!std::filesystem::equivalent(path, input, ignored)) continue;
      return {ErrorCode::kInvalidArgument,
              fmt::format("--output: {} would replace {}, which the command reads; give another name",
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

ResultFile::ResultFile(const std::string& path) {
  if (path.empty()) return;
  Result<AtomicFile> file = AtomicFile::create(path);
  if (!file.ok()) throw std::runtime_error("--output: " + file.status().message());
  file_.emplace(std::move(file).value());
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
