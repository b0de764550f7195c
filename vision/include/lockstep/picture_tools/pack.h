// Packs: many encoded pictures in one file with an index. A pack is mapped into memory: no file is opened for each
// picture, and all processes of a machine share the page cache. `lockstep pack` makes them, or:
//
//   Result<PackSummary> packed = pack_folder("imagenet/train", "train.pack", {.shorter_side = 256});
//   PackedImages train("train.pack", Compose(...));   // packed_images.h
//
// Torch-free. Errors are values that name the file, and the byte or the picture. docs/data.md describes the format.
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

// A pack for reading. open() verifies the checksums of header and index, and that every offset is inside of the file. A
// value; copies and threads share the mapping. The file may be replaced meanwhile (by rename), but not be written to:
// if a mapped file shrinks, access ends the process with SIGBUS.
class PackReader {
 public:
  // Errors: kNotFound, kPermission, kIo, kUnsupported (a later version of the format), kCorrupt. Blocks while it reads
  // header and index.
  static Result<PackReader> open(const std::filesystem::path& path);

  std::int64_t size() const { return static_cast<std::int64_t>(entries_->size()); }
  const std::vector<std::string>& classes() const { return *classes_; }

  // These return what the pack has for picture `index`, 0 to size() - 1. The index is not checked.
  std::span<const std::uint8_t> bytes(
      std::int64_t index) const;  // valid while the reader, or a copy of the reader, lives
  std::int64_t label(std::int64_t index) const { return entry(index).label; }
  std::string_view name(std::int64_t index) const;  // the picture's path in the folder that was packed

  // Compares a picture's bytes with its checksum: kCorrupt when they have changed.
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

// Writes a pack. The file gets its name only when finish() succeeds.
class PackWriter {
 public:
  static Result<PackWriter> create(const std::filesystem::path& path, std::vector<std::string> classes);

  // Adds an encoded picture of class `label`. kInvalidArgument: no such class, an empty picture, or one above 4 GiB.
  Status add(std::span<const std::uint8_t> picture, std::int64_t label, std::string_view name);
  Status finish();
  // Bytes written so far.
  std::uint64_t bytes() const { return file_.size(); }

 private:
  PackWriter(AtomicFile file, std::vector<std::string> classes);

  AtomicFile file_;
  std::vector<std::string> classes_;
  std::vector<std::uint8_t> index_;
  std::string names_;
};

struct PackOptions {
  // Pictures whose shorter side is longer than this are resized to it, as PIL's bilinear resize does, and encoded as
  // JPEG of `quality`. 0: the bytes of the files, unchanged. With 256, training with RandomResizedCrop(224) loses
  // little.
  int shorter_side = 0;
  int quality = 90;  // 1 to 100
  int threads = 0;   // 0: one for each core of this process
  // On: decodes all pictures and leaves out pictures that cannot be decoded; a folder without any other picture is an
  // error. Off: a picture that cannot be decoded is an error; without shorter_side only the header of a picture is
  // looked at.
  bool skip_corrupt = false;
};

struct PackSummary {
  std::int64_t pictures = 0;
  std::int64_t classes = 0;
  std::int64_t resized = 0;
  std::vector<std::string> left_out = {};  // "path: reason"
  std::uint64_t bytes_before = 0;          // size of the files of the packed pictures
  std::uint64_t bytes_after = 0;           // size of the pack
};

// Packs a folder of class folders (folder_index.h) in the order of its index, so that samples have the same indices as
// in ImageFolder. Calls `progress` now and then in the calling thread. Blocks; needs memory for some hundred pictures.
Result<PackSummary> pack_folder(const std::filesystem::path& folder, const std::filesystem::path& file,
                                const PackOptions& options = {},
                                const std::function<void(std::int64_t done, std::int64_t of)>& progress = {});

}  // namespace lockstep::data
