// "epoch 3/10 [#########         ] 412/938" on one line of a terminal. Prints nothing to other outputs.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

class ProgressBar {
 public:
  ProgressBar(std::string label, std::int64_t total, bool wanted)
      : label_(std::move(label)), total_(total), shown_(wanted && total > 0 && ::isatty(STDOUT_FILENO) == 1) {}
  ~ProgressBar() {
    if (shown_) std::fputs("\r\033[K", stdout);
  }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void step() {
    ++done_;
    // More updates than the eye can see would only cost time.
    const auto now = std::chrono::steady_clock::now();
    if (!shown_ || now - drawn_ < std::chrono::milliseconds(50)) return;
    drawn_ = now;
    constexpr std::int64_t kWidth = 40;
    const auto filled = static_cast<std::size_t>(kWidth * done_ / total_);
    const std::string bar = std::string(filled, '#') + std::string(kWidth - filled, ' ');
    std::printf("\r%s [%s] %lld/%lld", label_.c_str(), bar.c_str(), static_cast<long long>(done_),
                static_cast<long long>(total_));
    std::fflush(stdout);
  }

 private:
  std::string label_;
  std::int64_t total_;
  std::int64_t done_ = 0;
  bool shown_;
  std::chrono::steady_clock::time_point drawn_{};
};
