// Finds the faults of a folder of pictures.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/base/status.h"

namespace lockstep::data {

enum class FindingKind { kCorrupt, kTiny, kDuplicate };

struct Finding {
  FindingKind kind = FindingKind::kCorrupt;
  std::string path;
  std::string detail;
};

struct FolderReport {
  std::int64_t pictures = 0;
  std::int64_t classes = 0;
  std::vector<Finding> findings;  // in the order of the index
};

struct CheckOptions {
  int least_side = 32;  // pictures with a shorter side are tiny
  int threads = 0;      // 0: one for each core
};

// Decodes every picture strictly (DecodeOptions) and compares contents. Reads all files once, and files with equal
// hashes of their content again.
Result<FolderReport> check_folder(const std::filesystem::path& folder, const CheckOptions& options = {});

}  // namespace lockstep::data
