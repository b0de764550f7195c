#include "lockstep/checkpoint/checkpoint_manager.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <exception>
#include <set>
#include <system_error>
#include <utility>

#include "asynchronous_save.h"
#include "base/number_text.h"
#include "checkpoint/file/error_context.h"
#include "checkpoint/file/file_kind.h"
#include "checkpoint/state/value_text.h"
#include "lockstep/base/atomic_file.h"
#include "lockstep/base/log.h"
#include "writer_lock.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;

// Training comes first: when all cores are busy, this thread gets about a third of what the others get.
void lower_priority() {
  constexpr int kNicer = 5;
  const auto thread = static_cast<id_t>(::syscall(SYS_gettid));
  errno = 0;
  const int nice = ::getpriority(PRIO_PROCESS, thread);
  if (errno == 0) ::setpriority(PRIO_PROCESS, thread, nice + kNicer);
}

// What a rank answers for a checkpoint that a writer has removed since it was listed.
constexpr std::int64_t kGone = -1;

// The steps that every rank has, ascending.
std::vector<std::int64_t> in_all(const std::vector<std::vector<std::int64_t>>& ranks) {
  std::vector<std::int64_t> common = ranks.front();
  for (const std::vector<std::int64_t>& steps : ranks) {
    std::erase_if(common,
                  [&](std::int64_t step) { return std::find(steps.begin(), steps.end(), step) == steps.end(); });
  }
  std::sort(common.begin(), common.end());
  return common;
}

CheckpointError unreadable(const fs::path& path, const std::string& why) {
  return CheckpointError(ErrorCode::kIo, fmt::format("{}: cannot be read: {}", path.native(), why));
}

// The program may change its folder later.
fs::path whole(fs::path folder) {
  std::error_code error;
  fs::path found = fs::absolute(folder, error);
  return error ? std::move(folder) : found;
}

// While a save was under way, another program may have put its own folder in this one's place.
void require_same_folder(const SaveTurn& turn, const fs::path& folder) {
  if (turn.is_in(folder)) return;
  throw CheckpointError(
      ErrorCode::kUnavailable,
      fmt::format("{}: the folder has been replaced or removed while a checkpoint was being saved; the "
                  "save removes nothing in it",
                  folder.native()));
}

}  // namespace

CheckpointManager::CheckpointManager(fs::path folder, CheckpointManagerOptions options)
    : folder_(whole(std::move(folder))), options_(options) {
  if (options_.keep_last < 1) {
    throw CheckpointError(ErrorCode::kInvalidArgument,
                          fmt::format("keep_last must be at least 1, got {}", options_.keep_last));
  }
  std::error_code error;
  fs::create_directories(folder_, error);
  if (error || !fs::is_directory(folder_)) {
    throw CheckpointError(ErrorCode::kIo, fmt::format("cannot make the checkpoint folder {}: {}", folder_.native(),
                                                      error ? error.message() : "a file has that name"));
  }
}

CheckpointManager::~CheckpointManager() {
  try {
    wait();
  } catch (const std::exception& error) {
    log::error(fmt::format("the last checkpoint was not saved: {}", error.what()));
  }
}

void CheckpointManager::take_folder() {
  wait();
  if (writer_lock_ != nullptr && writer_lock_->is_held(folder_)) return;
  Result<std::shared_ptr<WriterLock>> lock = WriterLock::take(folder_);
  if (!lock.ok()) throw CheckpointError(lock.status().code(), lock.status().message());
  writer_lock_ = std::move(lock).value();
}

void CheckpointManager::save(std::int64_t step, const Checkpoint& checkpoint, std::optional<double> metric) {
  if (step < 0) throw CheckpointError(ErrorCode::kInvalidArgument, fmt::format("step must be >= 0, got {}", step));
  take_folder();
  Checkpoint state = checkpoint;
  state.file_.metadata["step"] = text_of(step);
  state.file_.metadata.erase("metric");
  if (metric) state.file_.metadata["metric"] = text_of(*metric);
  std::shared_ptr<const SaveTurn> turn = writer_lock_->next_turn();
  if (!options_.asynchronous) return write(step, state, *turn);
  // No save is in progress: the memory of the last one's copies is free.
  state.file_.tensors = stage(checkpoint.file_.tensors, copies_, checkpoint.origin_);
  save_in_thread(step, std::move(state), std::move(turn));
}

void CheckpointManager::save_in_thread(std::int64_t step, Checkpoint state, std::shared_ptr<const SaveTurn> turn) {
  auto work = [this, step, state = std::move(state), turn = std::move(turn)]() mutable {
    const auto until_the_end = std::move(turn);  // the save's future keeps this function for longer
    lower_priority();
    write(step, state, *until_the_end);
  };
  Result<std::shared_ptr<Saving>> saving = start_saving(std::move(work));
  if (!saving.ok()) {
    throw CheckpointError(saving.status().code(),
                          fmt::format("checkpoint of step {} is not saved: {}", step, saving.status().message()));
  }
  saving_ = std::move(saving).value();
}

void CheckpointManager::wait() {
  const std::shared_ptr<Saving> saving = std::move(saving_);
  if (saving == nullptr || !saving->origin.is_this_process()) return;
  saving->reported.exchange(true) ? saving->result.wait() : saving->result.get();
}

void CheckpointManager::write(std::int64_t step, const Checkpoint& checkpoint, const SaveTurn& turn) {
  turn.wait();
  require_same_folder(turn, folder_);
  remove_abandoned();
  checkpoint.save(path_of(step));
  require_same_folder(turn, folder_);
  set_aside_higher(step);  // after the save: a save that fails, or a kill, leaves them
  remove_unneeded(step);
}

std::filesystem::path CheckpointManager::set_aside(const std::vector<std::int64_t>& steps) {
  take_folder();
  return move_aside(steps);
}

fs::path CheckpointManager::move_aside(const Steps& steps) {
  // A folder of its own each time: whoever starts again twice, or is killed here, still loses nothing.
  fs::path aside;
  std::error_code error;
  for (int number = 1; !error; ++number) {
    aside = folder_ / fmt::format("earlier-{}", number);
    if (fs::create_directory(aside, error)) break;
  }
  for (const std::int64_t step : steps) {
    const fs::path file = path_of(step);
    if (!error) fs::rename(file, aside / file.filename(), error);
  }
  if (!error) return aside;
  throw CheckpointError(ErrorCode::kIo, fmt::format("cannot move the checkpoints of an earlier training to {}: {}",
                                                    aside.native(), error.message()));
}

// Else they would count as the last ones, so that this training's own were removed and the next start loaded theirs.
void CheckpointManager::set_aside_higher(std::int64_t step) {
  std::vector<std::int64_t> higher = steps();
  std::erase_if(higher, [step](std::int64_t other) { return other <= step; });
  if (higher.empty()) return;
  const std::string aside = move_aside(higher).native();
  log::warning(
      fmt::format("step {} is saved after higher ones, up to step {}: the training has gone back, and their "
                  "checkpoints are now in {}",
                  step, higher.back(), aside));
}

// Removes temporary files of writers that were killed.
void CheckpointManager::remove_abandoned() {
  std::error_code ignored;
  std::error_code listed;
  for (fs::directory_iterator entry(folder_, listed), end; !listed && entry != end; entry.increment(listed)) {
    const fs::path& path = entry->path();
    if (path.extension() == AtomicFile::kTemporarySuffix && step_of_checkpoint(path.stem().native()))
      fs::remove(path, ignored);
  }
}

void CheckpointManager::remove_unneeded(std::int64_t just_saved) {
  const std::vector<std::int64_t> all = steps();
  std::set<std::int64_t> keep = {just_saved};
  const auto last = static_cast<std::size_t>(options_.keep_last);
  keep.insert(all.size() > last ? all.end() - options_.keep_last : all.begin(), all.end());
  if (const auto best = steps_by_metric(); !best.empty()) keep.insert(best.front());
  for (const std::int64_t step : all) {
    if (keep.contains(step)) continue;
    std::error_code error;
    fs::remove(path_of(step), error);
    if (error)
      log::warning(fmt::format("cannot remove the old checkpoint {}: {}", path_of(step).native(), error.message()));
  }
}

std::optional<double> CheckpointManager::metric_of(std::int64_t step) {
  try {
    const auto metadata = read_tensor_file_metadata(path_of(step));
    const auto found = metadata.find("metric");
    return found == metadata.end() ? std::nullopt : number_from_text<double>(found->second);
  } catch (const std::exception&) {
    return std::nullopt;  // a damaged file: load_latest and load_best report it
  }
}

// Steps that have a metric, the best first; among equal metrics the later step first.
std::vector<std::int64_t> CheckpointManager::steps_by_metric() {
  if (options_.best == Best::kNotKept) return {};
  const double sign = options_.best == Best::kHighestMetric ? 1.0 : -1.0;
  std::vector<std::pair<double, std::int64_t>> ranked;
  std::vector<std::int64_t> all;
  do {  // again when a writer has changed the folder: a file without a metric may be one that it has just removed
    all = steps();
    ranked.clear();
    for (const std::int64_t step : all) {
      const auto metric = metric_of(step);
      if (metric && !std::isnan(*metric)) ranked.emplace_back(sign * *metric, step);
    }
  } while (steps() != all);
  std::sort(ranked.rbegin(), ranked.rend());
  std::vector<std::int64_t> result;
  result.reserve(ranked.size());
  for (const auto& [metric, step] : ranked) result.push_back(step);
  return result;
}

std::optional<Checkpoint> CheckpointManager::load_latest() {
  wait();
  return load_first_good([this] {
    std::vector<std::int64_t> latest_first = steps();
    std::reverse(latest_first.begin(), latest_first.end());
    return latest_first;
  });
}

std::optional<Checkpoint> CheckpointManager::load_latest(const Gather& gather) {
  const auto list_of_all = [&] {
    std::exception_ptr failed;
    Steps mine;
    try {
      wait();
      mine = steps();
    } catch (...) {  // the others wait in gather()
      failed = std::current_exception();
    }
    std::vector<Steps> all = gather(mine);
    if (failed) std::rethrow_exception(failed);
    return all;
  };
  std::vector<Steps> all = list_of_all();
  if (std::all_of(all.begin(), all.end(), [](const Steps& steps) { return steps.empty(); })) return std::nullopt;
  for (Steps common = in_all(all); !common.empty();) {
    const std::int64_t step = common.back();
    common.pop_back();
    std::optional<Checkpoint> found;
    Steps answer;
    try {
      found = load(step);
      answer = {step};
    } catch (const std::exception& error) {
      const auto* known = dynamic_cast<const CheckpointError*>(&error);
      if (known != nullptr && known->code() == ErrorCode::kNotFound) answer = {kGone};
      log::warning(fmt::format("skipping a checkpoint that cannot be used: {}", error.what()));
    }
    const std::vector<Steps> answers = gather(answer);
    const auto is_answered = [](std::int64_t by) { return [by](const Steps& one) { return one == Steps{by}; }; };
    if (std::all_of(answers.begin(), answers.end(), is_answered(step))) return found;
    if (std::none_of(answers.begin(), answers.end(), is_answered(kGone))) continue;
    if (std::vector<Steps> now = list_of_all(); now != all) {
      all = std::move(now);
      common = in_all(all);
    }
  }
  std::vector<std::string> texts;
  texts.reserve(all.size());
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    texts.push_back(fmt::format("rank {} sees steps [{}]", rank, fmt::join(all[rank], ", ")));
  }
  throw CheckpointError(ErrorCode::kCorrupt, fmt::format("no checkpoint in {} that every rank can read: {}",
                                                         folder_.native(), fmt::join(texts, ", ")));
}

std::optional<Checkpoint> CheckpointManager::load_best() {
  wait();
  return load_first_good([this] { return steps_by_metric(); });
}

// Goes on after every kind of error: an older checkpoint is better than none. Begins again when a file is gone and the
// folder has others now: a writer removes a file when it has a newer one.
std::optional<Checkpoint> CheckpointManager::load_first_good(const std::function<Steps()>& list) {
  std::vector<CheckpointError> errors;
  Steps candidates = list();
  bool gone = candidates.empty();  // a listing may miss a file that is added, and one that is removed, meanwhile
  for (std::size_t next = 0; next <= candidates.size(); ++next) {
    if (std::exchange(gone, false)) {
      if (Steps now = list(); now != candidates) {
        candidates = std::move(now);
        errors.clear();
        next = 0;
      }
    }
    if (next == candidates.size()) break;
    const std::int64_t step = candidates[next];
    try {
      Checkpoint checkpoint = load(step);
      if (!errors.empty()) log::warning(fmt::format("going back to the good checkpoint {}", path_of(step).native()));
      return checkpoint;
    } catch (const CheckpointError& error) {
      gone = error.code() == ErrorCode::kNotFound;
      if (gone) continue;
      errors.push_back(error);
    } catch (const std::exception& error) {  // for example std::bad_alloc
      errors.push_back(unreadable(path_of(step), error.what()));
    }
    log::warning(fmt::format("skipping a checkpoint that cannot be used: {}", errors.back().what()));
  }
  if (errors.empty()) return std::nullopt;
  std::vector<std::string> texts;
  texts.reserve(errors.size());
  for (const CheckpointError& error : errors) texts.emplace_back(error.what());
  const bool alike = std::all_of(errors.begin(), errors.end(),
                                 [&](const CheckpointError& error) { return error.code() == errors.front().code(); });
  throw CheckpointError(alike ? errors.front().code() : ErrorCode::kCorrupt,
                        fmt::format("no good checkpoint in {}: {}", folder_.native(), fmt::join(texts, "; ")));
}

Checkpoint CheckpointManager::load(std::int64_t step) {
  wait();
  Checkpoint checkpoint = Checkpoint::load(path_of(step));
  checkpoint.file_.metadata["step"] = text_of(step);  // converted files may lack it
  return checkpoint;
}

std::vector<std::int64_t> CheckpointManager::steps() const {
  std::vector<std::int64_t> result;
  std::error_code error;
  for (fs::directory_iterator entry(folder_, error), end; !error && entry != end; entry.increment(error)) {
    const auto step = step_of_checkpoint(entry->path().filename().native());
    if (step && path_of(*step) == entry->path()) result.push_back(*step);
  }
  if (error) {
    throw CheckpointError(ErrorCode::kIo,
                          fmt::format("cannot list the checkpoint folder {}: {}", folder_.native(), error.message()));
  }
  std::sort(result.begin(), result.end());
  return result;
}

fs::path CheckpointManager::path_of(std::int64_t step) const {
  return folder_ / checkpoint_name(step);
}

}  // namespace lockstep::checkpoint
