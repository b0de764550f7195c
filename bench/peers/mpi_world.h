// MPI_COMM_WORLD in the peers' programs. MPI's errors are fatal by default, so calls are not checked.
#pragma once

#include <mpi.h>

#include <span>

namespace lockstep::bench {

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
