// MPI_COMM_WORLD in the peers' programs. MPI's errors are fatal by default, so calls are not checked.
#pragma once

#include <mpi.h>

#include <span>
#include <string>

#include "measure.h"

namespace lockstep::bench {

// A buffer of the program: --memory private (or none), as a program without MPI has it, or mpi, from MPI_Alloc_mem: an
// MPI may give memory there that other ranks reach without a copy.
class Memory {
 public:
  Memory(const std::string& kind, std::size_t bytes) {
    if (kind == "mpi") {
      MPI_Alloc_mem(MPI_Aint(bytes), MPI_INFO_NULL, &from_mpi_);
    } else if (kind.empty() || kind == "private") {
      own_ = allocate_private(bytes);
    } else {
      die("--memory", "expected private or mpi, found '" + kind + "'");
    }
  }
  ~Memory() {
    if (from_mpi_ != nullptr) MPI_Free_mem(from_mpi_);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  float* get() const { return own_ ? own_.get() : from_mpi_; }

 private:
  std::unique_ptr<float, Free> own_;
  float* from_mpi_ = nullptr;
};

// Initialises MPI; the destructor finalises it.
class MpiWorld {
 public:
  MpiWorld(int& argc, char**& argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
  }
  ~MpiWorld() { MPI_Finalize(); }
  MpiWorld(const MpiWorld&) = delete;
  MpiWorld& operator=(const MpiWorld&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  static void barrier() { MPI_Barrier(MPI_COMM_WORLD); }
  // The maximum over the ranks, in place.
  static void longest(std::span<double> seconds) {
    MPI_Allreduce(MPI_IN_PLACE, seconds.data(), int(seconds.size()), MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  }

 private:
  int rank_ = 0;
  int size_ = 0;
};

}  // namespace lockstep::bench
