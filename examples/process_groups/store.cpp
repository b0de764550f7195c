// A store without a world: processes agree on a leader and read its words. Arguments: a file that all processes can
// reach, and the number of processes.
#include <lockstep/store/file_store.h>

#include <cstdlib>
#include <iostream>

int main(int argc, char** argv) {
  using lockstep::Deadline;
  if (argc != 3) {
    std::cerr << "usage: store FILE PROCESSES" << std::endl;
    return 2;
  }
  auto opened = lockstep::comm::FileStore::open(argv[1]);
  if (!opened.ok()) {
    std::cerr << opened.status().message() << std::endl;
    return 1;
  }
  lockstep::comm::Store& store = **opened;
  const auto count = store.add("processes", 1);
  if (!count.ok()) return 1;
  if (count.value() == 1 && !store.set("words of the first", "hello").ok()) return 1;
  // The contents live while a process has the file open, so no process exits before all have come.
  if (count.value() == std::atoi(argv[2]) && !store.set("all are here", "").ok()) return 1;
  const std::string keys[] = {"all are here"};
  const auto words = store.get("words of the first", Deadline::after(std::chrono::seconds(60)));
  if (!words.ok() || !store.wait(keys, Deadline::after(std::chrono::seconds(60))).ok()) return 1;
  std::cout << "Rank " << count.value() - 1 << " reads " << words.value() << std::endl;
}
