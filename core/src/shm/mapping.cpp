#include "shm/mapping.h"

#include <sys/mman.h>

#include "shm/map_shared.h"

namespace lockstep::comm {

Result<std::shared_ptr<Mapping>> Mapping::map(int fd, std::size_t bytes) {
  LOCKSTEP_ASSIGN_OR_RETURN(std::byte* const base, map_shared(fd, 0, bytes));
  return std::shared_ptr<Mapping>(new Mapping(base, bytes));
}

// In a fork something else may be mapped at this address.
Mapping::~Mapping() {
  if (origin_.is_this_process()) munmap(base_, bytes_);
}

}  // namespace lockstep::comm
