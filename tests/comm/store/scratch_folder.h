// A folder of its own for a test, removed afterwards.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <string>

namespace lockstep::test {

class ScratchFolder {
 public:
  ScratchFolder() : folder_((std::filesystem::temp_directory_path() / "lockstep_store_XXXXXX").string()) {
    EXPECT_NE(::mkdtemp(folder_.data()), nullptr);
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  std::string path(const std::string& name) const { return folder_ + "/" + name; }

 private:
  std::string folder_;
};

}  // namespace lockstep::test
