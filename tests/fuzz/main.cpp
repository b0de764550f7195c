// libFuzzer's entry points, in each target.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <string_view>

#include "fuzz/fuzz.h"

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  if (*argc != 3 || std::string_view((*argv)[1]) != "--write-seeds") return 0;
  try {
    const std::filesystem::path folder = (*argv)[2];
    std::filesystem::create_directories(folder);
    int number = 0;
    for (const std::string& seed : lockstep::fuzz::seeds()) {
      lockstep::fuzz::take(seed);
      std::ofstream(folder / ("seed-" + std::to_string(number++)), std::ios::binary) << seed;
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fuzz: %s\n", error.what());
    std::exit(1);
  }
  std::exit(0);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  lockstep::fuzz::take({reinterpret_cast<const char*>(data), size});
  return 0;
}
