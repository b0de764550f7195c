// A trace of the first steps, in the format of chrome://tracing and Perfetto.
#pragma once

#include <cstdint>
#include <filesystem>

namespace lockstep::trainer_detail {

class Profile {
 public:
  Profile(std::int64_t steps, std::filesystem::path file);
  ~Profile();
  Profile(const Profile&) = delete;
  Profile& operator=(const Profile&) = delete;

  // After each step; writes the file after the last one.
  void step();

 private:
  void write();

  std::int64_t left_;
  std::filesystem::path file_;
};

}  // namespace lockstep::trainer_detail
