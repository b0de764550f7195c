#include "group_memory.h"

#include <array>
#include <cstring>

#include "engine/core/failure.h"

namespace lockstep::comm {

void GroupMemory::share_texts() const {
  for (const TextNumber last = texts_so_far(); texts_shared_ < last;) {
    ++texts_shared_;
    at<PlaceText>(layout_.text(rank_, texts_shared_)) = text_of(texts_shared_);
  }
}

std::string GroupMemory::call_place(int rank, std::uint64_t sequence) const {
  const CallPlace place = CallPlace::of_word(place_word(rank, sequence).load(std::memory_order_acquire));
  const auto text = [&](TextNumber number) -> const char* {
    return number == 0 || number > kMostTexts ? "" : at<PlaceText>(layout_.text(rank, number)).data();
  };
  return describe_place(text(place.site), text(place.label));
}

// Of two threads that write at once, one gives up.
void WaitNote::write(const std::string& text) {
  std::uint64_t version = version_.load(std::memory_order_relaxed);
  if (version % 2 == 1 || !version_.compare_exchange_strong(version, version + 1, std::memory_order_seq_cst)) return;
  std::array<std::uint64_t, kWords> words{};
  const std::string fitting = shortened(text, sizeof words - 1);
  std::memcpy(words.data(), fitting.data(), fitting.size());
  for (std::size_t i = 0; i < kWords; ++i) words_[i].store(words[i], std::memory_order_release);
  version_.store(version + 2, std::memory_order_release);
}

std::string WaitNote::read() const {
  const std::uint64_t version = version_.load(std::memory_order_acquire);
  std::array<std::uint64_t, kWords> words{};
  for (std::size_t i = 0; i < kWords; ++i) words[i] = words_[i].load(std::memory_order_acquire);
  if (version % 2 == 1 || version_.load(std::memory_order_relaxed) != version) return {};
  return reinterpret_cast<const char*>(words.data());
}

}  // namespace lockstep::comm
