// CallPlace: from where an operation was called, in one word that other ranks can read: the numbers of two texts of
// this process, the call site ("src/train.cpp:41") and, where the library itself calls, a label ("gradient of
// fc1.weight").
//
// The texts of a process have the numbers 1, 2, ... They never change, and are kept as long as the process lives.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/base/call_site.h"

namespace lockstep {

// 0: no text.
using TextNumber = std::uint32_t;

struct CallPlace {
  TextNumber site = 0;
  TextNumber label = 0;

  std::uint64_t word() const { return static_cast<std::uint64_t>(label) << 32 | site; }
  static CallPlace of_word(std::uint64_t word) {
    return {static_cast<TextNumber>(word), static_cast<TextNumber>(word >> 32)};
  }
};

// Later texts have no number: a process has that many call sites and labels at most.
inline constexpr std::size_t kMostTexts = 1024;
// A line of cache; longer texts are cut. Ends with a zero byte.
inline constexpr std::size_t kPlaceBytes = 64;
using PlaceText = std::array<char, kPlaceBytes>;

// The number of the call site: its file with the folder, and its line. 0 of a line of the library itself, which calls
// without a program's line at hand. Without a lock, unless the site is new.
TextNumber number_of(CallSite site);
// The number of a label. Takes a lock: for setting up, not for every call.
TextNumber number_of_label(std::string_view label);
// How many texts there are.
TextNumber texts_so_far();
// The text with this number; of 0 an empty one.
const PlaceText& text_of(TextNumber number);

// The place from which this thread calls now.
CallPlace current_call_place();

// While it lives, what this thread calls has the label; 0: none. The innermost one counts.
class CallLabel {
 public:
  explicit CallLabel(TextNumber label) : outer_(current_) { current_ = label; }
  ~CallLabel() { current_ = outer_; }
  CallLabel(const CallLabel&) = delete;
  CallLabel& operator=(const CallLabel&) = delete;

  static TextNumber current() { return current_; }

 private:
  static constinit thread_local TextNumber current_;
  const TextNumber outer_;
};

// " at src/train.cpp:41 (gradient of fc1.weight)": for the end of a phrase. Empty if both texts are.
std::string describe_place(std::string_view site, std::string_view label);
// The same of a place of this process.
std::string describe_place(CallPlace place);

}  // namespace lockstep
