// Many encoded pictures in one file with an index: read without opening a file a picture, mapped into memory, shared by
// all processes of a machine through the page cache. Made by `lockstep pack`, or here:
//
//   Result<PackSummary> packed = pack_folder("imagenet/train", "train.pack", {.shorter_side = 256});
//   PackedImages train("train.pack", Compose(...));   // packed_images.h
//
// Torch-free; errors are values that name the file, and the byte or the picture. docs/data.md describes the format.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/status.h"

namespace lockstep::data {

// The whole file, checked when it is opened: header and index have checksums, and every place that the index names is
// inside of the file. A value; copies share the mapping, as do threads. The file may be replaced (by rename) meanwhile,
// not written to: a mapped file that shrinks ends the process.
class PackReader {
 public:
  // kNotFound, kPermission, kIo, kUnsupported (a later version of the format), kCorrupt. Blocks for header and index.
  static Result<PackReader> open(const std::filesystem::path& path);

  std::int64_t size() const { return static_cast<std::int64_t>(entries_->size()); }
  const std::vector<std::string>& classes() const { return *classes_; }

  // Of picture `index` of 0..size()-1, which is not checked.
  std::span<const std::uint8_t> bytes(std::int64_t index) const;  // valid while a copy of the reader lives
  std::int64_t label(std::int64_t index) const { return entry(index).label; }
  std::string_view name(std::int64_t index) const;  // its path in the folder that was packed

  // Whether a picture's bytes are those that were packed: reads them all.
  Status verify(std::int64_t index) const;

 private:
  struct Mapping;
  struct Entry {
    std::uint64_t offset;
    std::uint32_t length;
    std::uint32_t label;
    std::uint32_t crc;
    std::uint32_t name_length;
    std::uint64_t name_offset;
  };

  PackReader() = default;
  Status read_index();
  Status read_classes(std::span<const std::uint8_t> names, std::uint64_t count);
  const Entry& entry(std::int64_t index) const { return (*entries_)[static_cast<std::size_t>(index)]; }

  std::shared_ptr<const Mapping> mapping_;
  std::shared_ptr<const std::vector<Entry>> entries_;
  std::shared_ptr<const std::vector<std::string>> classes_;
};

// Writes such a file. It appears under its name when finish() has succeeded, complete, or not at all.
class PackWriter {
 public:
  static Result<PackWriter> create(const std::filesystem::path& path, std::vector<std::string> classes);

  // An encoded picture, of class `label`. kInvalidArgument: no such class, an empty or an over 4 GiB large picture.
  Status add(std::span<const std::uint8_t> picture, std::int64_t label, std::string_view name);
  Status finish();
  // Bytes so far.
  std::uint64_t bytes() const { return file_.size(); }

 private:
  PackWriter(AtomicFile file, std::vector<std::string> classes);

  AtomicFile file_;
  std::vector<std::string> classes_;
  std::vector<std::uint8_t> index_;
  std::string names_;
};

struct PackOptions {
  // Pictures whose shorter side is longer are made that small, and JPEG of `quality`; antialiased as PIL's bilinear
  // resize. 0: the files' own bytes, whatever they are. Training with RandomResizedCrop(224) loses little by 256.
  int shorter_side = 0;
  int quality = 90;  // 1 to 100
  int threads = 0;   // 0: one for each core of this process
  // Leaves out pictures that cannot be decoded; otherwise they are an error. Without shorter_side only the header is
  // looked at.
  bool skip_corrupt = false;
};

struct PackSummary {
  std::int64_t pictures = 0;
  std::int64_t classes = 0;
  std::int64_t resized = 0;
  std::vector<std::string> left_out = {};  // "path: reason"
  std::uint64_t bytes_before = 0;          // of the pictures' files
  std::uint64_t bytes_after = 0;           // of the pack
};

// Packs a folder of class folders (folder_index.h) in its order, so that samples have the numbers that ImageFolder
// gives them. `progress` is called now and then in the calling thread. Blocks; memory for some hundred pictures.
Result<PackSummary> pack_folder(const std::filesystem::path& folder, const std::filesystem::path& file,
                                const PackOptions& options = {},
                                const std::function<void(std::int64_t done, std::int64_t of)>& progress = {});

}  // namespace lockstep::data
