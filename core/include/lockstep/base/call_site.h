// CallSite: the line of a program from which a function of this library is called. Errors of collectives and messages
// name it on every rank.
//
// Collectives, messages, functions that make groups, and wrappers have it as their last argument, and the compiler
// fills it in: `CallSite site = CallSite::here()`. Other functions that communicate have no site, unless the program
// makes a CallScope around them.
//
// `lockstep::all_reduce(tensor)` in line 41 of src/train.cpp has the call site "src/train.cpp:41".
//
// A helper of a program that calls such functions can have this argument too, and make a CallScope of it: errors then
// name the caller of the helper. std::source_location would do the same, but clang 14 has none.
#pragma once

#include <cstdint>

namespace lockstep {

struct CallSite {
  const char* file = nullptr;  // lives as long as the process, as __FILE__ does; null: the site is not known
  std::uint32_t line = 0;

  // As the default of an argument, here() gives the line of the call.
  static constexpr CallSite here(const char* file = __builtin_FILE(), std::uint32_t line = __builtin_LINE()) {
    return {file, line};
  }
};

// While a CallScope lives, `site` is the call site of everything that this thread calls. Of nested scopes the outermost
// counts. Costs a few instructions.
class CallScope {
 public:
  explicit CallScope(CallSite site) : outermost_(current_.file == nullptr) {
    if (outermost_) current_ = site;
  }
  ~CallScope() {
    if (outermost_) current_ = CallSite();
  }
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;

  // The site of the outermost scope of this thread.
  static CallSite current() { return current_; }

 private:
  static constinit thread_local CallSite current_;
  const bool outermost_;
};

}  // namespace lockstep
