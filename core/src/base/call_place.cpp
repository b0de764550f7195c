#include "base/call_place.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>

#include "lockstep/base/fork.h"
#include "lockstep/base/mutex.h"

namespace lockstep {

constinit thread_local CallSite CallScope::current_;
constinit thread_local TextNumber CallLabel::current_ = 0;

namespace {

// "src/train.cpp:41"; of a long one the end.
std::string site_text(CallSite site) {
  std::string_view file = site.file;
  if (const std::size_t name = file.rfind('/'); name != std::string_view::npos && name > 0) {
    const std::size_t folder = file.rfind('/', name - 1);
    if (folder != std::string_view::npos) file.remove_prefix(folder + 1);
  }
  std::string text = fmt::format("{}:{}", file, site.line);
  return text.size() < kPlaceBytes ? text : "..." + text.substr(text.size() - (kPlaceBytes - 4));
}

// Whether the file says nothing to a program: a public header of this library, wherever it is installed; a header of
// LibTorch or of the C++ library, as for an object that a module holder or std::optional::emplace makes; or a source of
// this library, which the compiler is told to name "lockstep/core/src/..." (lockstep_layer() in
// cmake/LockstepLayer.cmake).
bool is_of_library(std::string_view file) {
  constexpr std::array<std::string_view, 4> kFolders = {"lockstep/core/src/", "lockstep/core/internal/",
                                                        "lockstep/vision/src/", "lockstep/studio/src/"};
  constexpr std::array<std::string_view, 3> kHeaders = {"/include/lockstep/", "/include/torch/", "/include/c++/"};
  return std::any_of(kHeaders.begin(), kHeaders.end(), [&](auto folder) { return file.find(folder) != file.npos; }) ||
         std::any_of(kFolders.begin(), kFolders.end(), [&](auto folder) { return file.starts_with(folder); });
}

constexpr std::size_t kSites = 2 * kMostTexts;
struct Site {
  std::atomic<const char*> file{nullptr};  // stored last
  std::uint32_t line = 0;
  TextNumber number = 0;
};

// Static, because most of their pages are never touched. The first text is empty.
constinit std::array<Site, kSites> sites;
constinit std::array<PlaceText, kMostTexts + 1> place_texts = {};

// All texts of the process. Readers take no lock: a text is complete before its number is known.
class Texts {
 public:
  Texts() { hold_during_forks(mutex_.native()); }

  TextNumber find(CallSite site) {
    std::size_t at = place_of(site);
    for (std::size_t tries = 0; tries < kSites; ++tries, at = (at + 1) % kSites) {
      const char* const file = sites[at].file.load(std::memory_order_acquire);
      if (file == nullptr) return add(site, at);
      if (file == site.file && sites[at].line == site.line) return sites[at].number;
    }
    return 0;
  }

  TextNumber find_label(std::string_view label) {
    MutexLock lock(mutex_);
    if (const auto known = labels_.find(label); known != labels_.end()) return known->second;
    const TextNumber number = add_text(label);
    if (number != 0) labels_.emplace(label, number);
    return number;
  }

  TextNumber count() const { return count_.load(std::memory_order_acquire); }

 private:
  static std::size_t place_of(CallSite site) {
    constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15;
    const auto key = reinterpret_cast<std::uintptr_t>(site.file) + (static_cast<std::uint64_t>(site.line) << 32);
    return (key * kOdd) >> 53;
  }
  static_assert(kSites == std::size_t{1} << (64 - 53));

  TextNumber add(CallSite site, std::size_t at) {
    if (count() == kMostTexts) return 0;
    MutexLock lock(mutex_);
    for (; sites[at].file.load(std::memory_order_relaxed) != nullptr; at = (at + 1) % kSites) {
      if (sites[at].file.load(std::memory_order_relaxed) == site.file && sites[at].line == site.line)
        return sites[at].number;  // another thread was first
    }
    const bool is_hidden = is_of_library(site.file);
    const TextNumber number = is_hidden ? 0 : add_text(site_text(site));
    if (number == 0 && !is_hidden) return 0;
    sites[at].line = site.line;
    sites[at].number = number;
    sites[at].file.store(site.file, std::memory_order_release);
    return number;
  }

  TextNumber add_text(std::string_view text) LOCKSTEP_REQUIRES(mutex_) {
    const TextNumber count = count_.load(std::memory_order_relaxed);
    if (count == kMostTexts) return 0;
    std::memcpy(place_texts[count + 1].data(), text.data(), std::min(text.size(), kPlaceBytes - 1));
    count_.store(count + 1, std::memory_order_release);
    return count + 1;
  }

  Mutex mutex_;
  std::atomic<TextNumber> count_{0};
  std::map<std::string, TextNumber, std::less<>> labels_ LOCKSTEP_GUARDED_BY(mutex_);
};

Texts& texts() {
  static Texts& all = *new Texts;  // never destroyed: threads may call until the process ends
  return all;
}

}  // namespace

TextNumber number_of(CallSite site) {
  return site.file == nullptr ? 0 : texts().find(site);
}
TextNumber number_of_label(std::string_view label) {
  return texts().find_label(label);
}
TextNumber texts_so_far() {
  return texts().count();
}
const PlaceText& text_of(TextNumber number) {
  return place_texts[number];
}

CallPlace current_call_place() {
  return {number_of(CallScope::current()), CallLabel::current()};
}

std::string describe_place(std::string_view site, std::string_view label) {
  std::string text = site.empty() ? std::string() : fmt::format(" at {}", site);
  if (!label.empty()) text += fmt::format(" ({})", label);
  return text;
}

std::string describe_place(CallPlace place) {
  return describe_place(text_of(place.site).data(), text_of(place.label).data());
}

}  // namespace lockstep
