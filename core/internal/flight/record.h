// What a flight recorder holds, as values. Reads live recorders, dumps, and whatever else a file may hold: sizes are
// bounded, and entries that were being written are left out.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "flight/ring.h"
#include "lockstep/base/status.h"

namespace lockstep::flight {

// Times are nanoseconds of the machine's steady clock.
struct Operation {
  std::uint64_t serial = 0;  // among all operations of the process, from 1
  std::uint64_t called = 0;
  std::uint64_t waited = 0;  // when the program began to wait for it; 0: it has not
  std::uint64_t ended = 0;   // 0: it is under way
  Outcome outcome = Outcome::kUnderWay;
  Op op = Op::kOther;
  std::uint8_t type = 0;
  int peer = -1;             // group rank of the root or the other end
  std::uint64_t number = 0;  // among the group's collectives; of a message its tag
  std::uint64_t input = 0;   // elements
  std::uint64_t output = 0;
  int group = -1;     // index in RankRecord::groups; -1: not known any more
  std::string place;  // "src/train.cpp:41 (gradient of fc1.weight)", or one of both; empty: not known

  bool under_way() const { return outcome == Outcome::kUnderWay; }
};

struct GroupInfo {
  std::string name;
  int rank = 0;
  int size = 0;
  std::vector<int> ranks;      // of the world, by group rank
  bool left = false;           // by this rank
  std::uint64_t identity = 0;  // the same on all ranks of the group, and on no other group; 0: not known
};

struct StepEnd {
  std::uint64_t ended = 0;
  std::uint64_t input = 0;  // RankRecord::input at that time
};

struct RankRecord {
  std::string source;  // the file
  int rank = 0;
  int pid = 0;
  int attempt = 0;
  std::string host;
  std::string job;
  std::uint64_t now = 0;   // when it was read or dumped
  std::uint64_t real = 0;  // what to add to times for nanoseconds since 1970
  bool is_dump = false;
  std::string process;      // what its process does, for people; empty: not known
  bool ended = false;       // the process has
  std::uint64_t total = 0;  // operations begun
  std::uint64_t input = 0;  // nanoseconds for which the program waited for batches
  std::uint64_t steps_done = 0;
  std::vector<GroupInfo> groups;        // in the order in which they were made
  std::vector<Operation> operations{};  // by serial
  std::vector<StepEnd> steps{};         // the last ones, by time
};

// The text of a dump whose process has ended begins with this.
inline constexpr std::string_view kEnded = "ended";

// kCorrupt: it is no recorder, of another version, or cut off; kNotFound: it is empty yet; what open() says.
Result<RankRecord> read_record(const std::string& path);

// Every dump in a folder and the folders within it; kNotFound: there is none.
Result<std::vector<std::string>> dumps_in(const std::string& folder);

// "all_reduce".
std::string_view name_of(Op op);
// "float32"; "type 77" for one that has no name here.
std::string type_name(std::uint8_t type);
// Of an element; 0 for a type that has no name here.
std::size_t type_bytes(std::uint8_t type);

// One group as several ranks have recorded it: the records have the same name, members and identity. A rank may not
// know the identity. Then its last group of a name and members belongs to the last such group of each other rank, its
// last but one to their last but one, and so on: processes may have joined later.
struct SharedGroup {
  struct Member {
    std::size_t record = 0;  // index in the records
    int group = 0;           // index in RankRecord::groups
  };
  std::string name;
  std::size_t turn = 0;    // 0: the last one of this name and these members
  std::vector<int> ranks;  // of the world
  std::vector<Member> members;
};
std::vector<SharedGroup> shared_groups(std::span<const RankRecord> records);

}  // namespace lockstep::flight
