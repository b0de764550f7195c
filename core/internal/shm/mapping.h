// Memory of a file descriptor, mapped shared while the object lives. Forks of the process do not have it.
#pragma once

#include <cstddef>
#include <memory>

#include "lockstep/base/fork.h"
#include "lockstep/base/status.h"

namespace lockstep::comm {

class Mapping {
 public:
  static Result<std::shared_ptr<Mapping>> map(int fd, std::size_t bytes);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  std::byte* base() const { return base_; }
  std::size_t bytes() const { return bytes_; }

 private:
  Mapping(std::byte* base, std::size_t bytes) : base_(base), bytes_(bytes) {}
  const Origin origin_;
  std::byte* base_;
  std::size_t bytes_;
};

}  // namespace lockstep::comm
