// The staging through which streams pass private data: an area a rank, and how far each rank has come.
//
// Data passes in pieces, numbered alike on every rank; a piece has the same place in the staging of all. A rank has
// "laid out" a piece when its part of it is in its staging, and by then it is done with all pieces before: so a place
// may be written again once all ranks have laid out the piece after the one that was there.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>

#include "group_memory.h"
#include "waiting.h"

namespace lockstep::comm {

class StagingRing {
 public:
  // `wait_for(awaited)` waits as the Communicator does: deadline, abort and deaths included.
  using Step = std::function<bool()>;
  using WaitFor = std::function<Status(const Step&)>;

  StagingRing(const GroupMemory& memory, const Waiting& waiting);

  // The next piece, of at most stream_chunk_bytes(), which every rank begins. With `writes`, waits for its place.
  enum class Use { kReads, kWrites };
  Status begin_chunk(std::size_t bytes, Use use, const WaitFor& wait_for);
  // Of the piece at hand.
  std::uint64_t number() const { return number_; }
  std::byte* of(int rank) const { return memory_.stream(rank) + place_; }
  void lay_out();  // this rank's part is there
  Status wait_for_rank(int rank, const WaitFor& wait_for) const;
  Status wait_for_everyone(const WaitFor& wait_for);

 private:
  struct Used {
    std::uint64_t number;
    std::size_t begin;
    std::size_t end;
  };

  template <typename Reached>
  Status wait(Reached reached, const WaitFor& wait_for) const;
  Status laid_out_by_all(std::uint64_t number, const WaitFor& wait_for);

  const GroupMemory& memory_;
  const Waiting& waiting_;
  const std::size_t bytes_;
  bool touched_ = false;
  std::uint64_t number_ = 0;
  std::uint64_t common_ = 0;  // pieces that all ranks are known to have laid out
  std::size_t place_ = 0;
  std::size_t next_place_ = 0;
  std::deque<Used> used_;  // places that may still be read, oldest first
};

}  // namespace lockstep::comm
