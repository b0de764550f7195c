// The checks of a call's arguments that one rank can do alone, and their error texts. Shared by the backends.
#pragma once

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cstdint>
#include <exception>
#include <string>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "lockstep/reduce/types.h"

namespace lockstep {

// "0-3,7".
std::string ranks_text(const std::vector<int>& ranks);

// "rank 1 (rank 3 of the world), group 'odd'": how errors name a member. `global_ranks` may be empty.
std::string describe_member(int rank, const std::string& group, const std::vector<int>& global_ranks);

// Ends an error that names ranks of the group only: ". These are ranks of the group: ...". Empty where group ranks and
// ranks of the world are the same. (The engine names ranks of the world.)
std::string explain_ranks(const std::vector<int>& global_ranks);

class CallChecks {
 public:
  // `who` as from describe_member; `operation` is the public name of the called function; both outlive this.
  CallChecks(const std::string& who, const char* operation, int group_size)
      : who_(who), operation_(operation), group_size_(group_size) {}

  const std::string& who() const { return who_; }
  const char* operation() const { return operation_; }
  int group_size() const { return group_size_; }

  // `name` is the argument's, for errors. `words` are those of PyTorch's own backends, since people search for them.
  const at::Tensor& only(const std::vector<at::Tensor>& tensors, const char* name,
                         const char* words = "requires a single-element tensor list") const;
  void check_count(std::size_t count, std::size_t expected, const char* name, const char* words) const;
  void check_root(std::int64_t root) const;
  // `index` names one of the caller's `count` tensors.
  void check_root_tensor(std::int64_t index, std::size_t count) const;
  // At least one, all of one dtype, size and device.
  void check_alike(const std::vector<at::Tensor>& tensors, const char* name, const char* words) const;
  // The lists of a rooted operation: on the root one list with a tensor per rank, elsewhere none. `way` is "input" or
  // "output".
  void check_root_lists(const std::vector<std::vector<at::Tensor>>& lists, const char* name, const char* way, int rank,
                        std::int64_t root) const;
  // `what` is "source" or "destination".
  void check_peer(int peer, const char* what) const;
  void check_tag(int tag) const;
  void check_same_dtype(const at::Tensor& a, const char* a_name, const at::Tensor& b, const char* b_name,
                        std::size_t index = 0) const;
  void check_elements(const at::Tensor& tensor, const char* name, std::int64_t expected, const char* why) const;
  // A dense tensor on a device that the host can copy from; in outputs, no two elements may share memory.
  void check_readable(const at::Tensor& tensor, const char* name) const;
  void check_writable(const at::Tensor& tensor, const char* name) const;

  struct Reduction {
    comm::DataType type;
    comm::ReduceOp op;
    double factor;
  };
  Reduction reduction(const c10d::ReduceOp& op, at::ScalarType dtype) const;

  // Elements for each rank: equal parts of the first dimension, or the rows in `splits`.
  std::vector<std::int64_t> split_elements(const at::Tensor& tensor, const char* name,
                                           const std::vector<std::int64_t>& splits) const;

  // Throws "rank 1, group 'world', all_reduce: `tensor` ..." with code kInvalidArgument.
  template <typename... Args>
  [[noreturn]] void reject(fmt::format_string<Args...> format, Args&&... args) const {
    reject_text(fmt::format(format, std::forward<Args>(args)...));
  }

  // Why this rank takes no part in the call, for the other ranks. They add its name, so that is left out.
  std::string reason_to_refuse(const std::exception& error) const;

 private:
  [[noreturn]] void reject_text(const std::string& text) const;

  const std::string& who_;
  const char* operation_;
  int group_size_;
};

}  // namespace lockstep
