// The GPUs of this machine, leases on them, and which of them a job gets.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/environment.h"
#include "lockstep/base/fd.h"
#include "lockstep/base/status.h"
#include "lockstep/launch/spawn.h"

namespace lockstep::site {

// The GPUs of this machine as NVIDIA's management library (NVML) sees them. It is loaded when it is asked for, because
// most machines that run the launcher have none.
struct GpuUser {
  int pid = 0;
  std::uint64_t bytes = 0;  // 0: the driver does not say
};

struct Gpu {
  int index = 0;     // in the order of the PCI bus, as nvidia-smi counts
  std::string uuid;  // "GPU-..."
  std::string name;
  std::string pci;  // "0000:3b:00.0"
  std::uint64_t total_bytes = 0;
  std::uint64_t free_bytes = 0;
  int numa_node = -1;  // -1: the machine has one, or does not say
  std::vector<GpuUser> users;
  Status health;  // why the GPU cannot be used; the fields above are then not complete
};

struct GpuInventory {
  std::string driver;  // "580.65.06"
  std::vector<Gpu> gpus;
};

// Blocks for the driver, a few milliseconds up to a second. kUnavailable, with the reason: no driver here, or it does
// not work. A single GPU that does not work is in the list with its reason.
Result<GpuInventory> list_gpus();

// "GPU 2 (NVIDIA H100, 71.2 of 79.6 GiB free)"
std::string describe(const Gpu& gpu);

// Leases on what only one job should use, such as a GPU. A lease is a lock (flock) on a file in a folder of its user,
// which is in a folder that all users of the machine share. The kernel drops it with the process that holds it, however
// that process dies, so there is no stale lease. Other users see that the file is locked (/proc/locks), but cannot lock
// or remove it. Nobody is forced to ask for a lease: it keeps Lockstep's jobs apart.

// A lease that is held until it is destroyed. The file is removed then.
class Lease {
 public:
  Lease(Fd fd, std::filesystem::path path) : fd_(std::move(fd)), path_(std::move(path)) {}
  Lease(Lease&& other) noexcept = default;
  Lease& operator=(Lease&& other) = delete;
  ~Lease();
  std::filesystem::path folder() const { return path_.parent_path(); }

 private:
  Fd fd_;
  std::filesystem::path path_;
};

class LeaseFolder {
 public:
  // $LOCKSTEP_LEASES if it is set; else /run/lock or /tmp, whichever is first open to all users with the sticky bit
  // set. So all users come to the same choice. kUnavailable: there is none.
  static Result<LeaseFolder> find(const Environment& environment);
  explicit LeaseFolder(std::filesystem::path path) : path_(std::move(path)) {}

  // No value: another process holds it, of any user. `name`: letters, digits and dashes; others become '_'.
  // kPermission, kIo, kCorrupt when something else has the file's name.
  Result<std::optional<Lease>> try_take(std::string_view name) const;
  // Waits for a lease that matters among this user's jobs only. kTimeout names the holder.
  Result<Lease> take(std::string_view name, Deadline deadline) const;
  // "process 4711 of alice (lockstep run ./train)"; "another process" when the system does not say.
  std::string holder_of(std::string_view name) const;

 private:
  static std::string file_of(std::string_view name);
  // The folders of all users.
  std::set<std::filesystem::path> folders() const;
  // This user's, which is made if there is none.
  Result<std::filesystem::path> own_folder() const;
  // No value: another job of this user has it.
  Result<std::optional<Lease>> lock_own(std::string_view name) const;
  // The process that has locked the file of this name in a folder other than `own`, by that folder's owner; 0: none.
  int holder_elsewhere(std::string_view name, const std::filesystem::path& own) const;

  std::filesystem::path path_;
};

// Which GPUs a job gets, on a machine that it shares with other jobs.

// `--devices`: "0,2" (numbers as below), "auto:2" (the two with the most free memory), "all".
struct DeviceRequest {
  enum class Kind { kList, kAuto, kAll };
  Kind kind = Kind::kList;
  std::vector<int> numbers;  // kList
  int count = 0;             // kAuto
};
Result<DeviceRequest> parse_devices(std::string_view text);

// The GPUs that this process may use, in the order of CUDA_VISIBLE_DEVICES if that is set (numbers of the PCI order or
// UUIDs, as a batch system gives them): the number of a GPU is its place in this list. As for CUDA, the list ends at
// the first entry that names no GPU.
std::vector<Gpu> visible_gpus(const std::vector<Gpu>& all, const std::optional<std::string>& visible_devices);

// CUDA_VISIBLE_DEVICES of this process. Unlike other variables, it means "none" when it is set to nothing.
std::optional<std::string> visible_devices_variable();

// How many GPUs a worker can use: those of visible_gpus(). 0 where there is no driver. One where the variable names
// parts of GPUs (MIG): CUDA shows a process one part at most. Blocks as list_gpus() does.
int count_visible_gpus();

// GPUs with the leases on them.
struct TakenDevices {
  std::vector<Gpu> gpus;
  std::vector<Lease> leases;
};

// Takes leases on what is asked for. GPUs that another job holds, or that do not work, are passed over by `auto` and
// are errors for a list and for `all`. kUnavailable names what is missing and who holds it; kInvalidArgument a number
// that is not there. Blocks while other jobs choose, at most 10 s.
Result<TakenDevices> take_devices(const DeviceRequest& request, const std::vector<Gpu>& visible,
                                  const LeaseFolder& leases);

// Equal shares of the GPUs for the workers, in order. kInvalidArgument: more workers than GPUs, or a rest.
Result<std::vector<std::vector<Gpu>>> share_gpus(const std::vector<Gpu>& gpus, int workers);

// What makes exactly these GPUs cuda:0, cuda:1, ... of a program.
launch::Variables cuda_variables(const std::vector<Gpu>& gpus);

}  // namespace lockstep::site
