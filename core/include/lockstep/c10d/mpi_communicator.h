// A world, or a group, of the ranks of an MPI communicator: MPI_COMM_WORLD or any other that is no inter-communicator.
//
//   MPI_Init(&argc, &argv);
//   ...                                             // hours of simulation
//   lockstep::init_process_group(communicator);     // collective over its ranks, which keep their order
//   lockstep::DistributedDataParallel<Net> ddp(model);
//   ...
//   lockstep::destroy_process_group();
//   MPI_Finalize();
//
// From Fortran: lockstep::init_process_group(MPI_Comm_f2c(*handle)) in a C++ function that gets the integer handle.
//
// This header makes the calls of MPI in the program's own code, so it works with the program's own MPI. Nothing else of
// Lockstep includes it or mpi.h. docs/mpi_programs.md says more.
//
// Threads: MPI is called by the calling thread alone, and only during the calls below. At MPI_THREAD_SINGLE and
// MPI_THREAD_FUNNELED that must be the thread that has initialised MPI, at MPI_THREAD_SERIALIZED no other thread may
// call MPI at the same time. (Backend mpi calls MPI all the time: docs/backends.md.)
//
// The communicator: these calls make some pairs of MPI_Igather and MPI_Ibcast on it, three if all goes well on one
// machine. Its error handler is MPI_ERRORS_RETURN during the call. Afterwards the program uses it as before, and may
// free it. If a rank does not come before the timeout, one MPI_Igather or MPI_Ibcast stays under way: messages and
// blocking collectives still work, and a second call is refused.
#pragma once

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/c10d/errors.h"
#include "lockstep/c10d/process_groups.h"
#include "lockstep/c10d/program_communicator.h"

namespace lockstep {

// For internal use.
namespace mpi_detail {

[[noreturn]] inline void reject(ErrorCode code, const std::string& text) {
  throw ArgumentError(code, "MPI communicator: " + text);
}

inline const char* level_name(int level) {
  if (level == MPI_THREAD_SINGLE) return "MPI_THREAD_SINGLE";
  if (level == MPI_THREAD_FUNNELED) return "MPI_THREAD_FUNNELED";
  return level == MPI_THREAD_SERIALIZED ? "MPI_THREAD_SERIALIZED" : "MPI_THREAD_MULTIPLE";
}

inline Status status_of(int code, const char* call) {
  if (code == MPI_SUCCESS) return {};
  char text[MPI_MAX_ERROR_STRING + 1] = "";  // NOLINT(modernize-avoid-c-arrays): MPI's
  int length = 0;
  MPI_Error_string(code, text, &length);
  return {ErrorCode::kIo, std::string(call) + ": " + text};
}

// While it lives, MPI returns this communicator's errors, and does not end the program.
class ReturnedErrors {
 public:
  explicit ReturnedErrors(MPI_Comm communicator)
      : communicator_(communicator), set_(MPI_Comm_get_errhandler(communicator, &before_) == MPI_SUCCESS) {
    if (set_) MPI_Comm_set_errhandler(communicator_, MPI_ERRORS_RETURN);
  }
  ~ReturnedErrors() {
    if (!set_) return;
    MPI_Comm_set_errhandler(communicator_, before_);
    MPI_Errhandler_free(&before_);
  }
  ReturnedErrors(const ReturnedErrors&) = delete;
  ReturnedErrors& operator=(const ReturnedErrors&) = delete;

 private:
  MPI_Comm communicator_;
  MPI_Errhandler before_ = MPI_ERRHANDLER_NULL;
  bool set_;
};

// Returns MPI's thread level.
inline int check_mpi() {
  int yes = 0;
  MPI_Finalized(&yes);
  if (yes != 0) reject(ErrorCode::kInvalidArgument, "the program has called MPI_Finalize already");
  MPI_Initialized(&yes);
  if (yes == 0) reject(ErrorCode::kInvalidArgument, "call MPI_Init or MPI_Init_thread first");
  int level = MPI_THREAD_SINGLE;
  MPI_Query_thread(&level);
  MPI_Is_thread_main(&yes);
  if (level < MPI_THREAD_SERIALIZED && yes == 0) {
    reject(ErrorCode::kUnsupported,
           std::string("MPI was initialised with ") + level_name(level) +
               ", so only the thread that has initialised it may call it, and this is another thread; make the call "
               "there, or initialise MPI with MPI_THREAD_SERIALIZED");
  }
  return level;
}

inline void check_communicator(MPI_Comm communicator) {
  // Where a handle is a pointer, MPI_Comm_f2c gives null for an integer that stands for nothing.
  if (communicator == MPI_COMM_NULL || communicator == MPI_Comm{}) {
    reject(ErrorCode::kInvalidArgument,
           "expected a communicator, found MPI_COMM_NULL (this rank is in none, or the communicator was freed)");
  }
  // MPI reports a handle that stands for nothing by the handlers of these two.
  const ReturnedErrors of_world(MPI_COMM_WORLD);
  const ReturnedErrors of_self(MPI_COMM_SELF);
  int inter = 0;
  if (MPI_Comm_f2c(MPI_Comm_c2f(communicator)) != communicator ||
      MPI_Comm_test_inter(communicator, &inter) != MPI_SUCCESS) {
    reject(ErrorCode::kInvalidArgument, "the communicator was freed, or the handle is not one");
  }
  if (inter == 0) return;
  reject(ErrorCode::kUnsupported,
         "this is an inter-communicator, of two groups of ranks; make one group with MPI_Intercomm_merge");
}

// A communicator on which a collective has never ended has an attribute with this key.
inline int key_of_unfinished() {
  static const int key = [] {
    int made = MPI_KEYVAL_INVALID;
    MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, MPI_COMM_NULL_DELETE_FN, &made, nullptr);
    return made;
  }();
  return key;
}

inline void check_finished(MPI_Comm communicator) {
  void* mark = nullptr;
  int found = 0;
  MPI_Comm_get_attr(communicator, key_of_unfinished(), static_cast<void*>(&mark), &found);
  if (found == 0) return;
  reject(ErrorCode::kAborted,
         "an earlier call on this communicator has timed out, and its collective is still under way; use another "
         "communicator of these ranks, which was made before that call");
}

// What MPI reads and writes. It stays when a collective does not end.
struct Exchange {
  std::vector<char> own;
  std::vector<char> all;
};

// Waits for a collective of MPI that has been started with the result `code`.
inline Status finish(int code, const char* call, MPI_Request& request, Deadline deadline) {
  if (code != MPI_SUCCESS) return status_of(code, call);
  // Many ranks may share a core. A waiting rank sleeps, so that the ranks that have not called yet get the core.
  constexpr int kSpins = 20;
  constexpr auto kLongestPause = std::chrono::microseconds(1000);
  auto pause = std::chrono::microseconds(10);
  int done = 0;
  for (int round = 0; done == 0; ++round) {
    code = MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    if (code != MPI_SUCCESS) return status_of(code, call);
    if (done != 0 || deadline.expired()) break;
    if (round < kSpins) continue;
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, kLongestPause);
  }
  if (done != 0) return {};
  return {ErrorCode::kTimeout,
          "not all ranks of the MPI communicator have made this call in time: some are late, have failed before it, or "
          "have called it with another communicator"};
}

// By a gather and a broadcast, because Open MPI's MPI_Iallgather sends a message from each rank to each other rank.
inline Status all_gather(MPI_Comm communicator, std::span<const char> own, std::span<char> all, Deadline deadline) {
  const ReturnedErrors errors(communicator);
  auto exchange = std::make_unique<Exchange>(Exchange{{own.begin(), own.end()}, std::vector<char>(all.size())});
  MPI_Request request = MPI_REQUEST_NULL;
  const int bytes = static_cast<int>(own.size());
  int code = MPI_Igather(exchange->own.data(), bytes, MPI_CHAR, exchange->all.data(), bytes, MPI_CHAR, /*root=*/0,
                         communicator, &request);
  Status end = finish(code, "MPI_Igather", request, deadline);
  if (end.ok()) {
    code = MPI_Ibcast(exchange->all.data(), static_cast<int>(all.size()), MPI_CHAR, /*root=*/0, communicator, &request);
    end = finish(code, "MPI_Ibcast", request, deadline);
  }
  if (end.ok()) {
    std::copy(exchange->all.begin(), exchange->all.end(), all.begin());
  } else {
    MPI_Comm_set_attr(communicator, key_of_unfinished(), exchange.release());
  }
  return end;
}

constexpr const char* library_name() {
#if defined(OPEN_MPI)
  return "Open MPI";
#elif defined(MPI_ABI_VERSION) && !defined(MPICH_VERSION)
  return "the standard ABI of MPI";
#elif defined(MPICH_VERSION) || defined(MPICH)
  return "MPICH";
#else
  return "another MPI";
#endif
}

}  // namespace mpi_detail

// Makes the value of InitOptions::communicator, for example for a ProcessGroupGuard. Throws ArgumentError: MPI is not
// initialised, or finalised already; its thread level forbids this thread to call it; the communicator is null, freed
// (as far as MPI can tell) or an inter-communicator; an earlier call on it has timed out.
inline std::shared_ptr<const ProgramCommunicator> mpi_communicator(MPI_Comm communicator) {
  const int level = mpi_detail::check_mpi();
  mpi_detail::check_communicator(communicator);
  mpi_detail::check_finished(communicator);
  ProgramCommunicator result;
  MPI_Comm_rank(communicator, &result.rank);
  MPI_Comm_size(communicator, &result.size);
  result.all_gather = [communicator](std::span<const char> own, std::span<char> all, Deadline deadline) {
    return mpi_detail::all_gather(communicator, own, all, deadline);
  };
  result.mpi = {mpi_detail::library_name(), static_cast<int>(MPI_Comm_c2f(communicator)),
                level >= MPI_THREAD_SERIALIZED, mpi_detail::level_name(level)};
  return std::make_shared<const ProgramCommunicator>(std::move(result));
}

// Makes the world of the ranks of `communicator`, in their order. Collective over these ranks. `options` must leave out
// init_method, store, rank and world_size.
inline void init_process_group(MPI_Comm communicator, std::string_view backend = "", InitOptions options = {}) {
  options.communicator = mpi_communicator(communicator);
  init_process_group(backend, options);
}

// Makes a group of the ranks of `communicator`, in their order. All of them must be ranks of the world. Collective over
// these ranks.
inline ProcessGroup new_group(MPI_Comm communicator, GroupOptions options = {}, CallSite site = CallSite::here()) {
  const auto members = mpi_communicator(communicator);
  const int own = is_initialized() ? get_rank() : -1;
  std::vector<int> ranks(static_cast<std::size_t>(members->size));
  const std::chrono::milliseconds timeout =
      options.timeout.count() > 0 ? options.timeout : std::chrono::milliseconds(InitOptions().timeout);
  const Status gathered = members->all_gather({reinterpret_cast<const char*>(&own), sizeof own},
                                              {reinterpret_cast<char*>(ranks.data()), ranks.size() * sizeof(int)},
                                              Deadline::after(timeout));
  if (!gathered.ok()) throw_status(gathered, "new_group");
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank] >= 0) continue;
    mpi_detail::reject(ErrorCode::kInvalidArgument, "new_group: rank " + std::to_string(rank) +
                                                        " of the communicator is in no world; a group has ranks of "
                                                        "the world of init_process_group only");
  }
  options.sort_ranks = false;
  return new_group(ranks, options, site);
}

}  // namespace lockstep
