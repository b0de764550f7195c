// What `lockstep checkpoint` does. No header of LibTorch: the program that has only arguments does not see it.
//
// Paths are those of read_any_file() (any_file.h): files of torch.save, safetensors, checkpoints of Lockstep, folders.
// Functions throw CheckpointError, whose text names the file. Texts may hold names from files: escape them
// (base/printable.h) line by line.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::checkpoint {

using Lines = std::vector<std::string>;

// A short file can have any number of values. What is beyond so many lines is left out.
inline constexpr std::size_t kMostLines = 1'000'000;

struct ShowOptions {
  std::string entry = {};        // show the value under this key alone
  bool ignore_checksum = false;  // of a safetensors file
};
// What a file holds: a line for the file, then one for each value.
Lines show(const std::filesystem::path& path, const ShowOptions& options);

struct Verified {
  bool good = true;
  Lines lines;
};
// Reads all of a file and compares its checksums, where it has some. In a folder of a CheckpointManager: each file.
// Does not throw for what is wrong with a file: it is in the result.
Verified verify(const std::filesystem::path& path);

struct ConvertOptions {
  std::string entry = {};         // convert the value under this key
  std::string dtype = {};         // "float16": convert tensors of floating point; only a state dict
  std::string strip_prefix = {};  // take off the names' prefix, leave out other names; only a state dict
  std::string add_prefix = {};    // put in front of all names; only a state dict
  bool ignore_checksum = false;   // of a safetensors file
};
// Why no conversion can have these options, whatever the files hold; empty: some can. convert() throws this text.
std::string wrong_options(const std::filesystem::path& to, const ConvertOptions& options);
// Replaces `to` in one step. Its ending says the format: .safetensors, or for all others a file of torch.save.
// Returns lines that say what has another type now.
Lines convert(const std::filesystem::path& from, const std::filesystem::path& to, const ConvertOptions& options);

}  // namespace lockstep::checkpoint
