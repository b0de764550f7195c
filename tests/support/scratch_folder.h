// A fresh folder, removed with its owner.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <stdexcept>
#include <string>

namespace lockstep::test {

class ScratchFolder {
 public:
  ScratchFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "lockstep-test-XXXXXX").native();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make a scratch folder " + name);
    path_ = name;
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::string path(const std::string& name) const { return path_ / name; }

  void write(const std::string& name, const std::string& bytes) const {
    std::filesystem::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name, std::ios::binary) << bytes;
  }

 private:
  std::filesystem::path path_;
};

// The same folder in a test and in the ranks that it starts afterwards, also those that run the test's body up to
// there. The test's object removes it, also when ranks have been killed. One at a time.
class SharedScratchFolder {
 public:
  SharedScratchFolder() {
    if (const char* of_the_test = ::getenv(kVariable)) {
      path_ = of_the_test;
      return;
    }
    path_ = own_.emplace().path();
    ::setenv(kVariable, path_.c_str(), 1);
  }
  ~SharedScratchFolder() {
    if (own_) ::unsetenv(kVariable);
  }
  SharedScratchFolder(const SharedScratchFolder&) = delete;
  SharedScratchFolder& operator=(const SharedScratchFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::string path(const std::string& name) const { return path_ / name; }

 private:
  static constexpr const char* kVariable = "LOCKSTEP_TEST_SHARED_FOLDER";

  std::optional<ScratchFolder> own_;  // empty in a rank
  std::filesystem::path path_;
};

}  // namespace lockstep::test
