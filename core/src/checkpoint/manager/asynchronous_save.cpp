#include "asynchronous_save.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <memory>
#include <new>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "base/arithmetic.h"
#include "base/thread.h"
#include "checkpoint/file/error_context.h"
#include "checkpoint/file/file_checksum.h"
#include "checkpoint/file/tensor_rules.h"
#include "lockstep/base/log.h"
#include "lockstep/base/mutex.h"
#include "lockstep/checkpoint/errors.h"
#include "reduce/copy.h"

namespace lockstep::checkpoint {
namespace {

constexpr int kMostThreads = 4;  // more do not make memory faster
constexpr std::size_t kPiece = 2 << 20;
constexpr std::size_t kWorthAThread = 16 << 20;
constexpr std::size_t kHugePage = 2 << 20;

struct CopyPart {
  void* to;
  const void* from;
  std::size_t bytes;
};

int cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return ::sched_getaffinity(0, sizeof(set), &set) == 0 ? std::max(CPU_COUNT(&set), 1) : 1;
}

std::vector<CopyPart> pieces_of(std::span<const CopyPart> parts) {
  std::vector<CopyPart> pieces;
  for (const CopyPart& part : parts) {
    for (std::size_t at = 0; at < part.bytes; at += kPiece) {
      pieces.push_back({static_cast<std::byte*>(part.to) + at, static_cast<const std::byte*>(part.from) + at,
                        std::min(kPiece, part.bytes - at)});
    }
  }
  return pieces;
}

// Makes all copies. Other threads help, as many as there are cores and as the bytes are worth. The stores go past the
// caches: nobody reads the copies soon, and what the training has there stays.
void copy_all(std::span<const CopyPart> parts) {
  std::size_t bytes = 0;
  for (const CopyPart& part : parts) bytes += part.bytes;
  const std::vector<CopyPart> pieces = pieces_of(parts);
  std::atomic<std::size_t> next = 0;
  const auto work = [&] {
    for (std::size_t i = next++; i < pieces.size(); i = next++) {
      comm::copy_past_caches(pieces[i].to, pieces[i].from, pieces[i].bytes);
    }
  };
  const auto most = static_cast<int>(std::min<std::size_t>(bytes / kWorthAThread + 1, 64));
  std::vector<std::jthread> helpers;
  for (int i = 1; i < std::min({kMostThreads, most, cores()}); ++i) {
    auto helper = start_thread("a copy", work);
    if (!helper.ok()) break;  // the others do its work
    helpers.push_back(std::move(helper).value());
  }
  work();
}

// Asks the system for huge pages for memory that has just been allocated, which then costs a fraction of the page
// faults. Does nothing for little memory, or where there are none.
void prefer_huge_pages(void* memory, std::size_t bytes) {
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  const auto begin = round_up(address, kHugePage);
  const auto end = (address + bytes) / kHugePage * kHugePage;
  if (begin < end) ::madvise(static_cast<std::byte*>(memory) + (begin - address), end - begin, MADV_HUGEPAGE);
}

// Whether the bytes in memory are the values, one after the other.
bool is_plain(const torch::Tensor& tensor) {
  return why_not_saved(tensor).empty() && tensor.is_cpu() && tensor.is_contiguous() && !tensor.is_conj() &&
         !tensor.is_neg() && !tensor._is_zerotensor();
}

bool fits(const torch::Tensor& memory, const torch::Tensor& tensor) {
  return why_not_overwritten(memory).empty() && memory.sizes() == tensor.sizes() && memory.dtype() == tensor.dtype() &&
         memory.device() == tensor.device();
}

// Memory for the copies of several tensors, in one block: with huge pages all of it has some, while most tensors by
// themselves are too small for a whole one.
class Block {
 public:
  void add(const torch::Tensor& tensor) { bytes_ += padded(tensor.nbytes()); }
  void allocate() {
    if (bytes_ == 0) return;
    const std::size_t alignment = bytes_ < kHugePage ? kAlignment : kHugePage;
    void* const data = std::aligned_alloc(alignment, padded(bytes_, alignment));
    if (data == nullptr) throw std::bad_alloc();
    memory_ = std::shared_ptr<void>(data, std::free);
    prefer_huge_pages(data, bytes_);
  }
  // Uninitialized memory of the shape and dtype of `tensor`, which has been added. Each has a storage of its own.
  torch::Tensor take(const torch::Tensor& tensor) {
    if (tensor.numel() == 0) return torch::empty(tensor.sizes(), torch::dtype(tensor.scalar_type()));
    void* const place = static_cast<std::byte*>(memory_.get()) + taken_;
    taken_ += padded(tensor.nbytes());
    const auto release = [memory = memory_](void*) {};
    return torch::from_blob(place, tensor.sizes(), release, torch::dtype(tensor.scalar_type()));
  }

 private:
  static constexpr std::size_t kAlignment = 64;  // as LibTorch's own memory
  static std::size_t padded(std::size_t bytes, std::size_t to = kAlignment) { return round_up(bytes, to); }

  std::size_t bytes_ = 0;
  std::size_t taken_ = 0;
  std::shared_ptr<void> memory_;
};

// Whether the bytes of `tensor` can be copied to `memory`.
bool is_reused(const torch::Tensor& memory, const torch::Tensor& tensor) {
  return fits(memory, tensor) && memory.is_contiguous();
}

// By LibTorch: devices, views, lazy values.
torch::Tensor copied(const torch::Tensor& tensor, const torch::Tensor& old) {
  if (!tensor.defined()) return tensor;  // which write_tensor_file() refuses
  if (!why_not_saved(tensor).empty() || !fits(old, tensor)) return tensor.detach().clone();
  const torch::NoGradGuard no_grad;
  old.copy_(tensor);
  return old;
}

}  // namespace

Tensors stage(const Tensors& tensors, Tensors& kept, const std::string& origin) {
  Tensors staged;
  std::vector<CopyPart> parts;
  const auto old_copy = [&](const std::string& name) {
    const auto before = kept.find(name);
    return before == kept.end() ? torch::Tensor() : before->second;
  };
  Block fresh;
  for (const auto& [name, tensor] : tensors) {
    if (is_plain(tensor) && !is_reused(old_copy(name), tensor)) fresh.add(tensor);
  }
  in_context(origin, [&] { fresh.allocate(); });
  for (const auto& entry : tensors) {
    const std::string& name = entry.first;
    const torch::Tensor& tensor = entry.second;
    const torch::Tensor old = old_copy(name);
    staged[name] = in_context(fmt::format("{}: tensor \"{}\"", origin, name), [&] {
      if (!is_plain(tensor)) return copied(tensor, old);
      torch::Tensor to = is_reused(old, tensor) ? old : fresh.take(tensor);
      if (tensor.nbytes() > 0) parts.push_back({to.mutable_data_ptr(), tensor.const_data_ptr(), tensor.nbytes()});
      return to;
    });
  }
  copy_all(parts);
  // Another thread writes them, and does not know the stream of the copies on devices.
  in_context(origin, [&] {
    for (const auto& entry : staged) wait_for_copy(entry.second);
  });
  kept = staged;
  return staged;
}

namespace {

// Of all managers.
struct Unfinished {
  Mutex mutex;
  std::vector<std::weak_ptr<Saving>> savings LOCKSTEP_GUARDED_BY(mutex);
  bool exit_waits LOCKSTEP_GUARDED_BY(mutex) = false;  // finish_all() is going to run
};
Unfinished& unfinished() {
  static constinit OfProcess<Unfinished> all;
  return all.get();
}

void finish_all() {
  std::vector<std::shared_ptr<Saving>> left;
  {
    const MutexLock lock(unfinished().mutex);
    unfinished().exit_waits = false;  // for saves of handlers that exit() runs after this one
    for (const std::weak_ptr<Saving>& known : std::exchange(unfinished().savings, {})) {
      if (auto saving = known.lock()) left.push_back(std::move(saving));
    }
  }
  for (const std::shared_ptr<Saving>& saving : left) {
    saving->thread.join();
    if (saving->reported.exchange(true)) continue;
    try {
      saving->result.get();
    } catch (const std::exception& error) {
      log::error(fmt::format("the last checkpoint was not saved: {}", error.what()));
    }
  }
}

}  // namespace

Result<std::shared_ptr<Saving>> start_saving(std::function<void()> work) {
  keep_openssl_at_exit();  // exit() runs last what was registered first: OpenSSL's end, if it has one
  const auto task = std::make_shared<std::packaged_task<void()>>(std::move(work));
  std::shared_future<void> result = task->get_future();
  LOCKSTEP_ASSIGN_OR_RETURN(std::jthread thread, start_thread("the save", [task] { (*task)(); }));
  std::shared_ptr<Saving> saving(new Saving{{}, std::move(result), false, std::move(thread)}, LeakInForks());
  const MutexLock lock(unfinished().mutex);
  if (!std::exchange(unfinished().exit_waits, true)) static_cast<void>(std::atexit(finish_all));
  std::erase_if(unfinished().savings, [](const std::weak_ptr<Saving>& known) { return known.expired(); });
  unfinished().savings.push_back(saving);
  return saving;
}

}  // namespace lockstep::checkpoint
