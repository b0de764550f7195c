// Runs a GoogleTest's ranks under Open MPI's mpirun.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "support/process.h"

namespace lockstep::test {

// Whether this process is a rank that mpirun_current_test started.
bool is_mpi_rank();

// Runs this test program with a filter for the current test, as `ranks` processes under mpirun. In a rank mpi_word()
// returns `word`; elsewhere it is empty.
Finished mpirun_current_test(int ranks, const std::string& word = "run",
                             std::chrono::seconds limit = std::chrono::seconds(100));
std::string mpi_word();

// Runs fn(rank) in `ranks` processes under mpirun: in a rank it calls fn, elsewhere it starts the ranks. Failures in a
// rank fail the current test with its output, and so does anything that is left afterwards.
void run_under_mpirun(int ranks, const std::function<void(int rank)>& fn);

}  // namespace lockstep::test
