// StepRecord: what the ranks tell one another in shared memory about the step that is under way, so that the survivors
// of a death know what was done. The meetings of the group are what orders a step that goes well; these words say who
// is where when a meeting fails.
//
// A step begins or is abandoned: one word decides, and the first rank that writes it decides for all. A rank that has
// seen all others at the meeting before the step begins it. A rank whose meeting has failed abandons it, unless another
// rank has begun: then that rank will wait for this one's part.
//
// A rank changes a tile in parts, one after the other. Before it changes a part, it saves the part in its undo place.
// The tile's word says which part that is, whether it is being changed, and the place. The own kernels write this word
// themselves (step_kernels.h); their parts are units.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace lockstep::nn_detail {

class StepRecord {
 public:
  // How many tiles a rank changes at a time, at most.
  static constexpr int kMostLanes = 64;
  static constexpr std::uint64_t kOnePart = std::uint64_t{1} << 8;

  static std::size_t bytes(int ranks, std::size_t tiles) {
    return sizeof(Line) * (1 + static_cast<std::size_t>(ranks)) + sizeof(Word) * tiles;
  }
  // `memory`: zeros at first, and the same for all ranks.
  StepRecord(std::byte* memory, int ranks)
      : lines_(reinterpret_cast<Line*>(memory)), tiles_(reinterpret_cast<Word*>(memory + bytes(ranks, 0))) {}

  // Whether step `number` is to be done, by the word of the rank that came first.
  bool begin(std::uint64_t number) { return decide(lines_[0].done, 2 * number) == 2 * number; }
  bool abandon(std::uint64_t number) { return decide(lines_[0].done, 2 * number + 1) != 2 * number; }

  // A rank has done its part of the step; it cannot go on with it.
  void set_done(int rank, std::uint64_t number) { line(rank).done.store(number, std::memory_order_release); }
  void set_failed(int rank, std::uint64_t number) { line(rank).failed.store(number, std::memory_order_release); }
  bool is_done(int rank, std::uint64_t number) const {
    return line(rank).done.load(std::memory_order_acquire) == number;
  }
  bool has_failed(int rank, std::uint64_t number) const {
    return line(rank).failed.load(std::memory_order_acquire) == number;
  }

  // Whether a step that was begun counts as finished, by the word of the rank that came first: a rank that saw all
  // others done, or one that gave up waiting. So a rank that is slow cannot finish it for itself alone.
  bool finish(std::uint64_t number, bool whole) {
    return decide(lines_[0].failed, 2 * number + (whole ? 0 : 1)) == 2 * number;
  }
  bool is_given_up(std::uint64_t number) const {
    return lines_[0].failed.load(std::memory_order_acquire) == 2 * number + 1;
  }
  // Another value after ranks have begun or ended some of the first `tiles` tiles.
  std::uint64_t progress(std::size_t tiles) const {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < tiles; ++i) sum += std::atomic_ref(tiles_[i].value).load(std::memory_order_relaxed);
    return sum;
  }

  // Who does the rest of a rank's part in its place, or -1 where nobody does yet. take_over() succeeds for one rank.
  // After give_back(), which is for that rank, another one may.
  int repairer(int rank, std::uint64_t number) const {
    const std::uint64_t word = line(rank).repairer.load(std::memory_order_acquire);
    return word >> 16 == number ? static_cast<int>(word & 0xffff) : -1;
  }
  bool take_over(int rank, std::uint64_t number, int from, int by) {
    std::uint64_t word = line(rank).repairer.load(std::memory_order_acquire);
    const int now = word >> 16 == number ? static_cast<int>(word & 0xffff) : -1;
    return now == from && line(rank).repairer.compare_exchange_strong(word, number << 16 | static_cast<unsigned>(by),
                                                                      std::memory_order_acq_rel);
  }

  void give_back(int rank) { line(rank).repairer.store(0, std::memory_order_release); }

  // The word of a tile, and what is written there while `part` is being changed: kOnePart more for the next part.
  // `lane`: of the rank that changes the part; it tells the undo place.
  std::uint64_t* word(std::size_t tile) const { return &tiles_[tile].value; }
  static std::uint64_t begun(std::uint64_t number, std::size_t part, int lane) {
    return number << kNumberShift | part << kPartShift | static_cast<unsigned>(lane) << 2 | 1;
  }
  void begin_part(std::size_t tile, std::uint64_t number, std::size_t part, int lane) {
    std::atomic_ref(tiles_[tile].value).store(begun(number, part, lane), std::memory_order_release);
    std::atomic_thread_fence(std::memory_order_release);  // no change comes before this word
  }
  void end_tile(std::size_t tile, std::uint64_t number) {
    std::atomic_ref(tiles_[tile].value).store(number << kNumberShift | 2, std::memory_order_release);
  }
  struct Tile {
    bool done = false;
    bool begun = false;    // `part` is being changed
    std::size_t part = 0;  // those before it are done
    int lane = 0;          // where it is begun
  };
  Tile tile(std::size_t tile, std::uint64_t number) const {
    const std::uint64_t word = std::atomic_ref(tiles_[tile].value).load(std::memory_order_acquire);
    if (word >> kNumberShift != number) return {};
    return {.done = (word & 2) != 0,
            .begun = (word & 1) != 0,
            .part = word >> kPartShift & 0xffff,
            .lane = static_cast<int>(word >> 2 & 0x3f)};
  }

 private:
  static constexpr int kPartShift = std::countr_zero(kOnePart);  // above: the part, of 16 bits
  static constexpr int kNumberShift = 24;                        // above: the number of the step

  struct alignas(64) Line {
    std::atomic<std::uint64_t> done;    // in the first line: the decision that it begins
    std::atomic<std::uint64_t> failed;  // in the first line: the decision that it is finished
    std::atomic<std::uint64_t> repairer;
  };

  // Each in a line of the cache of its own: kernels write their word every few nanoseconds.
  struct alignas(64) Word {
    std::uint64_t value;
  };

  Line& line(int rank) const { return lines_[1 + rank]; }
  static std::uint64_t decide(std::atomic<std::uint64_t>& word, std::uint64_t wish) {
    std::uint64_t now = word.load(std::memory_order_acquire);
    while (now / 2 < wish / 2) {
      if (word.compare_exchange_weak(now, wish, std::memory_order_acq_rel)) return wish;
    }
    return now;
  }

  Line* const lines_;
  Word* const tiles_;
};

}  // namespace lockstep::nn_detail
