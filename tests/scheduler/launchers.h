// Shared by the tests with other launchers.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>
#include <sstream>
#include <string>
#include <vector>

#include "support/process.h"

namespace lockstep::test {

using Words = std::vector<std::string>;

// Gives a machine its name, and the names of the others. Arguments: the file of names, the name, a command. The shell
// stays: as the first process of a machine it collects those that have lost their parent.
inline constexpr const char* kEnter = R"(mount --bind "$1" /etc/hosts && hostname "$2" && shift 2 && "$@"; exit $?)";

struct Mpi {
  std::string name;
  std::string mpirun;
  std::string source;  // as World::source says it
  std::string size;    // its variable
  Words options;
  Words on_machines;  // options for a list of hosts, which follows; before it the command in place of ssh, as "SSH"
  std::string communicator_program;  // join_communicator, compiled with this MPI
};

inline void PrintTo(const Mpi& mpi, std::ostream* out) {
  *out << mpi.name;
}

inline const Mpi kMpis[] = {
    {"OpenMpi4",
     LOCKSTEP_MPIRUN,
     "Open MPI",
     "OMPI_COMM_WORLD_SIZE",
     {"--allow-run-as-root", "--oversubscribe"},
     {"--mca", "plm_rsh_agent", "SSH", "-H"},
     LOCKSTEP_JOIN_COMMUNICATOR},
    {"OpenMpi5",
     LOCKSTEP_MPIRUN_5,
     "Open MPI",
     "OMPI_COMM_WORLD_SIZE",
     {"--allow-run-as-root", "--map-by", "slot:OVERSUBSCRIBE"},
     {"--prtemca", "plm_ssh_agent", "SSH", "-H"},
     LOCKSTEP_JOIN_COMMUNICATOR_5},
    {"Hydra",
     LOCKSTEP_HYDRA,
     "PMI",
     "PMI_SIZE",
     {},
     {"-launcher", "ssh", "-launcher-exec", "SSH", "-hosts"},
     LOCKSTEP_JOIN_COMMUNICATOR_MPICH},
};

// The output of join_world, in the order of the ranks. `nodes`: how many ranks each node has.
inline std::string world_lines(const std::vector<int>& nodes, const std::string& source) {
  std::ostringstream lines;
  int world = 0;
  for (const int ranks : nodes) world += ranks;
  int rank = 0;
  for (std::size_t node = 0; node < nodes.size(); ++node) {
    for (int local = 0; local < nodes[node]; ++local) {
      lines << "rank " << rank++ << " of " << world << ", local " << local << " of " << nodes[node] << ", node " << node
            << " of " << nodes.size() << ", by " << source << ", sum " << world * (world + 1) / 2 << '\n';
    }
  }
  return lines.str();
}

// The output of join_communicator, sorted. `local`: by rank of the world.
inline std::string communicator_lines(const std::vector<int>& local) {
  const int world = static_cast<int>(local.size());
  std::ostringstream lines;
  for (int rank = 0; rank < world; ++rank) {
    lines << "rank " << rank << " of " << world << ", in MPI_COMM_WORLD " << world - 1 - rank << ", local "
          << local[rank] << ", sum " << world * (world + 1) / 2 << '\n';
  }
  for (int rank = 0; rank < world; ++rank) lines << "then " << world << " ranks of MPI\n";
  return lines.str();
}

// Without the prefixes of `lockstep run` ("[rank 3]: ") and without lines of the log.
inline std::string sorted_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    if (line.starts_with("[rank ")) line.erase(0, line.find("]: ") + 3);
    if (line.starts_with("[lockstep ")) continue;
    lines.push_back(line + '\n');
  }
  std::sort(lines.begin(), lines.end());
  std::string result;
  for (const std::string& line : lines) result += line;
  return result;
}

inline void expect_world(const Finished& end, const std::vector<int>& nodes, const std::string& source) {
  EXPECT_EQ(end.exit_code, 0) << end.out << end.err;
  EXPECT_EQ(sorted_lines(end.out), world_lines(nodes, source)) << end.err;
}

}  // namespace lockstep::test
