// What evaluations, predictions and exports with the file of a trained model have in common.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/atomic_file.h"
#include "lockstep/options/table.h"
#include "trainer/command/model_file.h"

namespace lockstep::trainer_detail {

// Sets the options of the training to those of the file, but for what the command line gives.
TrainedModel open_model(const std::string& path, TrainCommandOptions& training, options::Table& table);

// Whether the model has so many classes.
Status check_top_k(std::int64_t top_k, std::int64_t num_classes);

// Whether the file that `option` names is none of these files. Empty paths are none.
Status check_output_path(const std::string& output, const std::vector<std::string>& inputs,
                         const char* option = "--output");

// The name of a class. A model may have more classes than the data of its training.
std::string class_name(const std::vector<std::string>& classes, std::int64_t number);

// A field of a line of CSV, in quotes where it needs them.
std::string csv_field(const std::string& text);

// Standard output, or a file that appears when it is complete. `option` names the file in errors. One at a time. While
// a file is open, SIGINT, SIGTERM and SIGHUP, where they would end the process, remove the temporary file first. Throws
// std::runtime_error.
class ResultFile {
 public:
  explicit ResultFile(const std::string& path, const char* option = "--output");
  ~ResultFile();
  ResultFile(const ResultFile&) = delete;
  ResultFile& operator=(const ResultFile&) = delete;
  void write(std::string_view text);
  void close();

 private:
  std::optional<AtomicFile> file_;
};

// Calls `work`. Its c10::Error becomes a std::runtime_error without LibTorch's functions.
int with_plain_errors(const std::function<int()>& work);

}  // namespace lockstep::trainer_detail
