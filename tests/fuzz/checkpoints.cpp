// Files of torch.save (zip and pickle) and of safetensors.
#include <torch/torch.h>

#include "fuzz/fuzz.h"
#include "fuzz/memory_path.h"
#include "lockstep/checkpoint/errors.h"
#include "lockstep/checkpoint/tensor_file.h"
#include "lockstep/checkpoint/torch_file.h"

namespace lockstep::fuzz {

void take(std::string_view bytes) {
  if (bytes.empty()) return;
  const MemoryPath file(bytes.substr(1));
  try {
    if (bytes[0] == 0) (void)checkpoint::read_torch_file(file.path());
    // A checksum would keep libFuzzer from all that is behind it.
    if (bytes[0] == 1) (void)checkpoint::read_tensor_file(file.path(), checkpoint::Checksum::kIgnored);
    if (bytes[0] == 2) (void)checkpoint::read_tensor_file_metadata(file.path());
  } catch (const checkpoint::CheckpointError&) {
  }
}

std::vector<std::string> seeds() {
  const std::string torch_file = bytes_written([](const std::filesystem::path& path) {
    c10::impl::GenericDict dict(c10::StringType::get(), c10::AnyType::get());
    dict.insert("weight", torch::ones({2, 3}));
    dict.insert("epoch", 7);
    dict.insert("names", c10::List<std::string>({"a", "b"}));
    checkpoint::write_torch_file(path, dict);
  });
  const std::string tensor_file = bytes_written([](const std::filesystem::path& path) {
    checkpoint::write_tensor_file(path,
                                  {.tensors = {{"w", torch::ones({2, 3})}, {"b", torch::zeros({3}, torch::kLong)}},
                                   .metadata = {{"epoch", "7"}}});
  });
  // The pickle alone, as files before PyTorch 1.6 begin: a number, a list, a dict, a name.
  const std::string pickle("\x80\x02}q\0(X\1\0\0\0aK\1X\1\0\0\0b](K\2K\3eu.", 28);
  return {for_parser(0, torch_file), for_parser(0, pickle), for_parser(1, tensor_file), for_parser(2, tensor_file)};
}

}  // namespace lockstep::fuzz
